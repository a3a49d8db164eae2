"""What is measured: a cell, on sizes, doing something. Knows nothing of contestants or clocks."""

from __future__ import annotations

import copy
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

    def exact(self) -> Exercise:
        """The same in float64, with the numbers as they were rounded."""
        return Exercise(copy.deepcopy(self.cell).double(), self.inputs.double(), self.weighting.double())


@dataclass(frozen=True)
class Case:
    """A cell with its sizes; weights and inputs follow from the seed, so every contestant sees the same."""

    cell: str
    size: Size
    what: str = TRAINING
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def name(self) -> str:
        return f"{self.cell} {self.size} {self.doing}"

    @property
    def doing(self) -> str:
        """What is done, and in which dtype where that is not float32."""
        return self.what if self.dtype == torch.float32 else f"{self.what}, {self.dtype_name}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def build(self, seed: int = 0) -> Exercise:
        size, form = self.size, {"dtype": self.dtype, "device": self.device}
        torch.manual_seed(seed)
        cell = CELLS[self.cell](size.inputs, size.hidden).to(self.device)
        if self.dtype != torch.float32:  # the dtype that a cell is made in; a complex one stays complex
            cell = cell.to(self.dtype)
        inputs = torch.randn(size.length, size.batch, size.inputs, **form)
        with torch.no_grad():
            output, _ = cell(inputs[0], cell.initial_state(size.batch))
        return Exercise(cell, inputs, torch.randn(size.length, *output.shape, **form))


@dataclass(frozen=True)
class Choice:
    """Shell patterns of cells, sizes and dtypes, with commas between several: `LSTM,*GRU`, `35x*`, `*float16`."""

    cells: str = "*"
    sizes: str = "*"
    dtypes: str = "*"

    def takes(self, case: Case) -> bool:
        own = ((case.cell, self.cells), (str(case.size), self.sizes), (case.dtype_name, self.dtypes))
        return all(_fits(name, patterns) for name, patterns in own)


def _fits(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(","))
