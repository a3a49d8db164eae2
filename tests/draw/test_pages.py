"""Pictures on the pages are what the code draws now. To draw them anew: python -m tests.draw.test_pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.loop.unfold import Unfolding

FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
X, S, Y = torch.zeros(2, 3), torch.zeros(5, 2, 3), torch.zeros(5, 2, 2)
MSE = nn.functional.mse_loss


def elman() -> lp.Loop:
    return lp.fold(lp.Elman(3, 4, 2), X, loss=MSE)


def jordan(**arguments: torch.Tensor) -> lp.Loop:
    return lp.fold(lp.Recurrent(lp.Jordan(3, 4, 2)), S, loss=MSE, **arguments)


def numbered() -> Unfolding:
    """An Elman net that was run, with weights that everyone can type in."""
    cell = lp.Elman(2, 3, 2).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.linspace(-0.9, 0.8, parameter.numel()).reshape(parameter.shape))
    strip = lp.fold(cell, torch.zeros(1, 2, dtype=torch.float64), loss=nn.functional.cross_entropy).unfold(3)
    inputs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]]], dtype=torch.float64)
    strip.run(inputs, targets=torch.tensor([[0], [1], [1]]))
    return strip


PICTURES: dict[str, Callable[[], str]] = {
    "leporello": lambda: elman().unfold(3).animate(),
    "elman": lambda: elman().svg(),
    "elman-strip": lambda: elman().unfold(3).svg(),
    "elman-operators": lambda: lp.fold(lp.Elman(3, 4, 2), X).svg("operators"),
    "function": lambda: lp.fold(lp.RNN(3, 4), X).svg("function"),
    "function-strip": lambda: lp.fold(lp.RNN(3, 4), X).unfold(3).svg("function"),
    "truncated": lambda: elman().unfold(6).svg(gradient=lp.Truncated(3)),
    "numbers": lambda: numbered().svg(values=True, gradients=True),
    "letters": lambda: (
        lp.fold(lp.Elman(8, 16, 8), torch.zeros(1, 8)).unfold(6).svg(captions={"x": "machin", "o": "achine"})
    ),
    "jordan": lambda: jordan().unfold(3).svg(),
    "forced": lambda: jordan(targets=Y).unfold(3).svg(),
    "stack": lambda: lp.fold(lp.Stack(lp.RNN(3, 4), lp.RNN(4, 4)), X).unfold(3).svg(),
    "bidirectional": lambda: lp.Bidirectional(lp.RNN(3, 4), lp.RNN(3, 4)).fold(S).unfold(3).svg(),
    "split": lambda: lp.fold(lp.LSTM(3, 4), X).split().svg(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_shows_what_is_drawn_now(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == PICTURES[name]()


def test_every_picture_is_on_a_page() -> None:
    pages = [
        path.read_text(encoding="utf-8") for path in (FOLDER.parent.parent / "README.md", FOLDER.parent / "pictures.md")
    ]
    assert {path.stem for path in FOLDER.glob("*")} == set(PICTURES)
    for name in PICTURES:
        assert any(f"pictures/{name}.svg" in page for page in pages), name


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
