"""A small example of each built-in cell, and what tests of cells share: sizes, random parameters, the tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from leporello import cells
from leporello.loop.cell import Cell
from leporello.loop.state import leaves_of, map_leaves

SIZES = [(1, 1, 1, 1), (3, 5, 2, 3), (3, 63, 1, 1), (63, 3, 3, 3)]  # inputs, hidden, outputs, batch
TOLERANCE = 1e-12  # float64, sums of at most 63 products of numbers near 1: the order of summation alone differs

EXAMPLES: dict[str, Callable[..., Cell]] = {
    "Elman": partial(cells.Elman, 3, 5, 2),
    "Jordan": partial(cells.Jordan, 3, 5, 2),
    "ElmanJordan": partial(cells.ElmanJordan, 3, 5, 2),
    "RNN": partial(cells.RNN, 3, 5),
    "RNN identity": partial(cells.RNN, 3, 5, nonlinearity="identity", bias=False),
    "GRU": partial(cells.GRU, 3, 5),
    "GRU without bias": partial(cells.GRU, 3, 5, bias=False),
    "LSTM": partial(cells.LSTM, 3, 5),
    "LSTM with projection": partial(cells.LSTM, 3, 5, bias=False, projection=2),
    "LayerNormLSTM": partial(cells.LayerNormLSTM, 3, 5),
    "PeepholeLSTM": partial(cells.PeepholeLSTM, 3, 5),
    "ZoneoutLSTM": partial(cells.ZoneoutLSTM, 3, 5, zoneout_h=0.3, zoneout_c=0.4),
    "IndRNN": partial(cells.IndRNN, 3, 5),
    "MinGRU": partial(cells.MinGRU, 3, 5),
    "Leaky": partial(cells.Leaky, 3, 5, 2, alpha=0.2, noise=0.1),
    "Leaky current": partial(
        cells.Leaky,
        3,
        5,
        2,
        alpha=[0.1, 0.2, 0.3, 0.4, 0.5],
        form="current",
        signs=[1, 1, 0, -1, -1],
        nonlinearity="softplus",
    ),
    "Leaky learned": partial(cells.Leaky, 3, 5, 2, alpha=0.2, learn_alpha=True, mask=1 - torch.eye(5), noise=0.1),
    "LIF": partial(cells.LIF, 3, 5, threshold=0.5),
    "LIF without recurrence": partial(cells.LIF, 3, 5, decay=[0.1, 0.5, 0.8, 0.9, 1.0], recurrent=False, reset="zero"),
    "Perceptron": partial(cells.Perceptron, 3, 5, 2),
    "TimeDelay": partial(cells.TimeDelay, 3, 2, 4),
    "TimeDelay of two": partial(cells.TimeDelay, 3, 2, 2),
    "TimeDelay of one": partial(cells.TimeDelay, 3, 2, 1),
}
VARIANTS = {
    "RNN identity",
    "GRU without bias",
    "LSTM with projection",
    "Leaky current",
    "Leaky learned",
    "LIF without recurrence",
    "TimeDelay of two",
    "TimeDelay of one",
}


def variants_slow(names: Iterable[str]) -> list[Any]:
    """Cells to test: one of each kind always, its variants in make check-all alone."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in names]


KINDS = variants_slow(EXAMPLES)
TELLING = {"Jordan", "GRU", "LayerNormLSTM", "Leaky", "TimeDelay"}  # feedback, gates, a norm, constants, no cycle
FEW = [name if name in TELLING else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES]


def shaken(cell: Cell, seed: int = 0) -> Cell:
    """The cell in float64 and eval(), every parameter random: a forgotten bias or gain shows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in cell.double().parameters():
        parameter.data.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return cell.eval()


def step_inputs(cell: Cell, batch: int, seed: int = 1) -> tuple[Tensor, object]:
    """A random input and a random state, in the cell's dtype."""
    generator = torch.Generator().manual_seed(seed)
    zeros = cell.initial_state(batch)
    dtype = next(cell.parameters()).dtype
    x = torch.randn(batch, cell.inputs, generator=generator, dtype=dtype)
    return x, map_leaves(lambda leaf: torch.randn(leaf.shape, generator=generator, dtype=dtype), zeros)


def lists(cell: Cell) -> SimpleNamespace:
    """The parameters and buffers of a cell as nested lists."""
    return SimpleNamespace(**{name: value.tolist() for name, value in cell.state_dict().items()})


def assert_rows(values: object, *expected: list[list[float]]) -> None:
    """The leaves of a result against rows computed by hand."""
    leaves = leaves_of(values)
    assert len(leaves) == len(expected)
    for leaf, rows in zip(leaves, expected, strict=True):
        wanted = torch.tensor(rows, dtype=torch.float64)
        assert leaf.shape == wanted.shape
        torch.testing.assert_close(leaf, wanted, rtol=TOLERANCE, atol=TOLERANCE)
