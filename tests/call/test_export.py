"""torch.export of a model that holds networks: the file runs in a process that has neither the model nor its cells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import leporello as lp
from tests.close import assert_same
from tests.nets.twins import normal, shaken, thoroughly

LENGTHS, RESETS = torch.tensor([6, 1, 3, 4]), torch.arange(24).reshape(6, 4) % 5 == 3
LONGER = torch.tensor([9, 1]), torch.arange(18).reshape(9, 2) % 4 == 2
STEPS, ROWS = Dim("steps", min=1, max=1000), Dim("rows", min=1, max=1000)


class Own(lp.Cell):
    """A user's step: a buffer, a constant, a learned initial state of two leaves; outputs in a tree."""

    def __init__(self) -> None:
        super().__init__(learned=True, h=4, n=1)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("shift", torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor, state: Any) -> tuple[Any, Any]:
        h, n = state
        h = torch.tanh(self.U(x) + self.W(h) * torch.tensor([1.0, 0.5, 2.0, 1.5]) + self.shift)
        return {"h": h, "pair": (h.sum(-1), n)}, (h, n + 1)


class Model(nn.Module):
    """A network with lengths and resets inside of a model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, lengths: Tensor, resets: Tensor) -> Any:
        return self.net(x, lengths=lengths, resets=resets)


NETS: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: lp.Recurrent(lp.GRU(3, 5)),
    "LSTM on reference": lambda: lp.Recurrent(lp.LSTM(3, 4), engine="reference"),
    "a cell of one's own": lambda: lp.Recurrent(Own()),
    "a stack on stepwise": lambda: lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 5)), engine="stepwise"),
    "spikes": lambda: lp.Recurrent(lp.LIF(3, 4)),
    "a summary": lambda: lp.Summary(lp.LSTM(3, 4), nn.Linear(4, 2)),
    "Jordan": lambda: lp.Recurrent(lp.Jordan(3, 4, 2)),
}
LOADING = """
import sys, torch, leporello
from torch.utils import _pytree as pytree
for file in sys.argv[1:]:
    loaded = torch.export.load(file).module()
    inputs, wanted = torch.load(file + ".wanted")
    found = loaded(*inputs)
    for one, other in zip(pytree.tree_leaves(found), wanted, strict=True):
        assert (one - other).abs().max() <= 1e-12, (file, one, other)
    print(type(found[1]).__name__)
"""


def exported(net: nn.Module, *, strict: bool) -> torch.export.ExportedProgram:
    shapes = ({0: STEPS, 1: ROWS}, {0: ROWS}, {0: STEPS, 1: ROWS})
    return torch.export.export(
        Model(net).eval(), (normal(6, 4, 3), LENGTHS, RESETS), dynamic_shapes=shapes, strict=strict
    )


def loaded_elsewhere(*files: Path) -> list[str]:
    """Load files in another process, compare what they give, and return the types of the final states."""
    command = [sys.executable, "-W", "ignore", "-c", LOADING, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.parametrize("strict", [False, *thoroughly(True)])
def test_a_file_runs_in_another_process_on_other_lengths_and_batches(tmp_path: Path, strict: bool) -> None:
    files = []
    for name, make in NETS.items():
        net = shaken(make()).eval()
        program, file = exported(net, strict=strict), tmp_path / f"{name}.pt2"
        torch.export.save(program, file)
        inputs = (normal(9, 2, 3), *LONGER)
        with torch.no_grad():
            wanted = Model(net)(*inputs)
        torch.save((inputs, pytree.tree_leaves(wanted)), f"{file}.wanted")
        files.append(file)
    states = loaded_elsewhere(*files)
    assert states == ["Tensor", "State", "tuple", "tuple", "tuple", "State", "Tensor"]


def test_an_exported_model_follows_its_parameters() -> None:
    net = shaken(lp.Recurrent(lp.GRU(3, 4)))
    program = torch.export.export(net, (normal(5, 2, 3),), dynamic_shapes=({0: STEPS, 1: ROWS},))
    x = normal(1, 1, 3)
    with torch.no_grad():
        assert_same({"o": program.module()(x)[0]}, {"o": net(x)[0]}, "before")
        weights = {name: 2 * value for name, value in net.state_dict().items()}
        copy = program.module()
        copy.load_state_dict(weights)
        net.load_state_dict(weights)
        assert_same({"o": copy(x)[0]}, {"o": net(x)[0]}, "after")


def test_a_length_out_of_range_is_refused_by_a_file() -> None:
    program = exported(shaken(lp.Recurrent(lp.GRU(3, 4))), strict=True)
    with pytest.raises(lp.errors.ArgumentError, match="'lengths' is out of range"):
        program.module()(normal(3, 2, 3), torch.tensor([3, 4]), torch.zeros(3, 2, dtype=torch.bool))


def test_an_exported_model_has_no_gradients() -> None:
    program = torch.export.export(shaken(lp.Recurrent(lp.GRU(3, 4))), (normal(5, 2, 3),))
    outputs, _ = program.module()(normal(5, 2, 3))
    with pytest.raises(lp.errors.EngineRefusal, match="an exported network has no gradients"):
        outputs.sum().backward()


def test_a_step_that_decides_by_the_number_of_rows_is_refused() -> None:
    net = lp.Recurrent(lambda x, h: (h, h + x if x.shape[0] > 2 else h - x))
    with pytest.raises(lp.errors.EngineRefusal, match="depends on the number of rows"):
        torch.export.export(net, (normal(5, 2, 3), normal(2, 3)))


def test_one_step_is_exported() -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = shaken(lp.Recurrent(lp.LSTM(3, 4)))

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
            return self.net.step(x, (h, c))

    model, tensors = Step(), (normal(2, 3), normal(2, 4), normal(2, 4))
    program = torch.export.export(model, tensors, dynamic_shapes=({0: ROWS}, {0: ROWS}, {0: ROWS}))
    x, h, c = normal(5, 3), normal(5, 4), normal(5, 4)
    with torch.no_grad():
        found, wanted = program.module()(x, h, c), model(x, h, c)
    assert_same({"o": found[0], "c": found[1].c}, {"o": wanted[0], "c": wanted[1].c}, "step")
