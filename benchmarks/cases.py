"""What is measured: which cell, on what sizes. Knows nothing of contestants or clocks."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import leporello as lp

# one row a cell; n is the number of inputs, of hidden units, and of outputs where the cell has them
CELLS: dict[str, Callable[[int], nn.Module]] = {
    "Elman": lambda n: lp.Elman(n, n, n),
    "GRU": lambda n: lp.GRU(n, n),
    "LSTM": lambda n: lp.LSTM(n, n),
    "LayerNormLSTM": lambda n: lp.LayerNormLSTM(n, n),
    "Leaky": lambda n: lp.Leaky(n, n, n, alpha=0.1),
}


@dataclass(frozen=True)
class Case:
    """A cell with its sizes; its weights and inputs follow from the seed, so every contestant sees the same."""

    cell: str
    length: int
    batch: int
    hidden: int

    @property
    def name(self) -> str:
        return f"{self.cell}-{self.length}x{self.batch}x{self.hidden}"

    def build(self, seed: int = 0) -> tuple[nn.Module, Tensor]:
        """The cell, and inputs [length, batch, hidden]."""
        torch.manual_seed(seed)
        cell = CELLS[self.cell](self.hidden)
        return cell, torch.randn(self.length, self.batch, self.hidden)


CASES = tuple(
    Case(cell, length, batch=32, hidden=hidden) for cell in CELLS for length in (64, 512) for hidden in (64, 256)
)


def matching(pattern: str) -> tuple[Case, ...]:
    """The cases whose name fits a shell pattern: `LSTM*`, `*-64x*`."""
    return tuple(case for case in CASES if fnmatch.fnmatchcase(case.name, pattern))
