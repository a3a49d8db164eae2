"""What is measured: a cell, on sizes, doing something. Knows nothing of contestants or clocks."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

import torch
from torch import Tensor

import leporello as lp
from benchmarks.cells import CELLS
from benchmarks.sizes import Size

FORWARD = "forward"  # under no_grad
KEPT = "forward, gradients on"  # what a backward sweep would need is kept, and none follows
TRAINING = "forward and backward"  # gradients of all parameters; inputs need none, as those of a first layer do not


@dataclass(frozen=True)
class Exercise:
    """What every contestant of a case is given.

    inputs      (length, batch, features)
    weighting   like the outputs: the backward sweep is that of their weighted sum
    """

    cell: lp.Cell
    inputs: Tensor
    weighting: Tensor

    def begin(self, steps: int) -> Exercise:
        """The same over the first steps."""
        return Exercise(self.cell, self.inputs[:steps], self.weighting[:steps])

    def weighting_only(self, steps: int) -> Exercise:
        """The same, with a weighting that is zero behind the first steps."""
        weighting = self.weighting.clone()
        weighting[steps:] = 0
        return Exercise(self.cell, self.inputs, weighting)


@dataclass(frozen=True)
class Case:
    """A cell with its sizes; weights and inputs follow from the seed, so every contestant sees the same."""

    cell: str
    size: Size
    what: str = TRAINING

    @property
    def name(self) -> str:
        return f"{self.cell} {self.size} {self.what}"

    def build(self, seed: int = 0) -> Exercise:
        size = self.size
        torch.manual_seed(seed)
        cell = CELLS[self.cell](size.inputs, size.hidden)
        inputs = torch.randn(size.length, size.batch, size.inputs)
        with torch.no_grad():
            output, _ = cell(inputs[0], cell.initial_state(size.batch))
        return Exercise(cell, inputs, torch.randn(size.length, *output.shape))


@dataclass(frozen=True)
class Choice:
    """Shell patterns of cells and sizes, with commas between several: `LSTM,*GRU`, `35x*`."""

    cells: str = "*"
    sizes: str = "*"

    def takes(self, case: Case) -> bool:
        return _fits(case.cell, self.cells) and _fits(str(case.size), self.sizes)


def _fits(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))
