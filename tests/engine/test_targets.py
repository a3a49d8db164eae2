"""Targets: engines as records, a second one that lives in the tests, and what no neutral file may know."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.engine import targets
from leporello.engine.target import WindowSizes
from leporello.errors import EngineRefusal
from tests.cells.examples import EXAMPLES, KINDS
from tests.interpreted import INTERPRETED
from tests.nets.twins import agrees_with_the_plain_loop, normal, quickly, shaken, somewhere

SOURCES = Path(lp.__file__).parent
NEUTRAL = ("call", "engine", "gradient", "kernel", "rewrite")


def neutral_files() -> list[Path]:
    """All but the folders of targets, and their list."""
    own = [SOURCES / "engine" / "targets.py", *(path.parent for path in (SOURCES / "engine").glob("*/target.py"))]
    files = [path for room in NEUTRAL for path in (SOURCES / room).rglob("*.py")]
    return [path for path in files if not any(path.is_relative_to(one) for one in own)]


def test_no_neutral_file_names_an_engine_or_takes_an_address() -> None:
    named = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in neutral_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Constant) and node.value in ("cpu", "stepwise"))
        or (isinstance(node, ast.Attribute) and node.attr == "data_ptr")
    ]
    assert not named


@pytest.mark.parametrize("name", quickly(KINDS, "ElmanJordan", "LSTM", "LayerNormLSTM", "LIF", "MinGRU", "TimeDelay"))
def test_the_interpreted_target_runs_every_cell(name: str) -> None:
    net = shaken(lp.Recurrent(EXAMPLES[name]().double(), engine=INTERPRETED.name))
    agrees_with_the_plain_loop(net, normal(4, 3, 3), lengths=[4, 1, 3], resets=somewhere(4, 3))


def test_windows_are_of_about_equal_size_and_in_the_order_of_the_sweep() -> None:
    sizes = WindowSizes(max_rows=12)
    assert sizes.windows(7, 4, reverse=False) == [(0, 2), (2, 4), (4, 7)]
    assert sizes.windows(7, 4, reverse=True) == [(4, 7), (2, 4), (0, 2)]
    assert sizes.windows(7, 1, reverse=False) == [(0, 7)]
    assert sizes.windows(2, 100, reverse=False) == [(0, 1), (1, 2)]
    many = WindowSizes(max_rows=100, min_count=4, min_rows=8)
    assert len(many.windows(50, 1, reverse=False)) == 4
    assert len(many.windows(9, 1, reverse=False)) == 1  # too few rows for more


def test_a_registered_target_is_an_engine_that_auto_does_not_choose() -> None:
    assert INTERPRETED.name in targets.engine_names()
    assert INTERPRETED.name not in targets.AUTO
    assert lp.Recurrent(lp.RNN(3, 4), engine="interpreted").engine == "interpreted"


def test_a_target_says_what_it_cannot_run() -> None:
    elsewhere = replace(INTERPRETED, devices={"xpu": "an XPU", "cuda": "a GPU"})
    refusal = elsewhere.refusal(lp.fold(lp.RNN(3, 4), torch.zeros(1, 3)))
    assert refusal is not None
    assert refusal.what == "the engine 'interpreted' runs on an XPU or a GPU alone."
    refusing = replace(INTERPRETED, refuse=lambda loop: EngineRefusal(f"it is {loop.name}."))
    refusal = refusing.refusal(lp.fold(lp.RNN(3, 4), torch.zeros(1, 3)))
    assert refusal is not None
    assert refusal.what == "it is RNN."


def test_the_text_of_a_sweep_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEPORELLO_CACHE", str(tmp_path))
    text = lp.Recurrent(lp.RNN(3, 4), engine="stepwise").explain(torch.zeros(2, 2, 3))
    paths = [Path(line.split()[-1]) for line in text.splitlines() if "generated Python" in line]
    assert len(paths) == 2
    assert all(path.read_text().startswith("def sweep(length, batch, ") for path in paths)


def test_gradients_that_are_equal_do_not_share_memory() -> None:
    """Two biases that are added have the same gradient."""

    class Biased(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.a, self.b = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + self.a + self.b + h)
            return h, h

    for engine in ("stepwise", "interpreted"):
        net = lp.Recurrent(Biased(), engine=engine)
        net(torch.randn(5, 2, 4))[0].sum().backward()
        assert torch.equal(net.cell.a.grad, net.cell.b.grad)
        net.cell.a.grad.zero_()
        assert net.cell.b.grad.abs().sum() > 0
