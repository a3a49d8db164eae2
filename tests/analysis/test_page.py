"""The plots on the page are there. To draw them anew: python -m tests.analysis.test_page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure

import leporello as lp

FOLDER = Path(__file__).parent.parent.parent / "docs" / "plots"


def flow() -> Figure:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.Elman(3, 32, 2))
    return lp.analysis.gradient_flow(net, torch.randn(60, 4, 3), lambda output: output.square().sum(-1)).plot()


def fixed() -> Figure:
    pair = lp.Elman(1, 2, 1)
    pair.W.data = torch.diag(torch.tensor([1.5, 2.0]))
    return lp.analysis.fixed_points(lp.Recurrent(pair), torch.zeros(1), starts=200).plot()


def methods() -> Figure:
    torch.manual_seed(0)
    net = lp.Recurrent(lp.Elman(3, 32, 2))
    net.cell.W.data *= 1.6
    compared = {
        "full": lp.Full(),
        "checkpointed": lp.Checkpointed(),
        "windows of 10": lp.Truncated(10),
        "10 steps back": lp.Truncated(10, every=1),
        "cut at random": lp.RandomTruncated(0.9),
    }
    inputs = torch.randn(60, 4, 3)
    return lp.analysis.bias_and_variance(net, inputs, lambda output: output.square().sum(-1), compared).plot()


PLOTS: dict[str, Callable[[], Figure]] = {"flow": flow, "fixed": fixed, "methods": methods}


def test_every_plot_is_on_the_page() -> None:
    page = (FOLDER.parent / "analysis.md").read_text(encoding="utf-8")
    for name in PLOTS:
        assert f"(plots/{name}.png)" in page
    others = "".join(path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.md"))  # those of examples
    assert all(f"(plots/{path.name})" in others for path in FOLDER.glob("*"))


def test_the_page_prints_what_is_printed_now() -> None:
    page = (FOLDER.parent / "analysis.md").read_text(encoding="utf-8")
    torch.manual_seed(0)
    net = lp.Recurrent(lp.Elman(3, 32, 2))
    printed = str(lp.analysis.gradient_flow(net, torch.randn(60, 4, 3), lambda output: output.square().sum(-1)))
    assert f"```\n{printed}\n```" in page


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PLOTS.items():
        draw().savefig(FOLDER / f"{name}.png", dpi=100)
