"""RNN, GRU and LSTM against those of torch.nn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leporello.cells import GRU, LSTM, RNN
from leporello.loop.cell import Cell
from tests.cells.by_hand import product, total
from tests.cells.examples import SIZES, TOLERANCE, assert_rows, lists, shaken, step_inputs

OURS = {"U": "weight_ih", "W": "weight_hh", "b": "bias_ih", "c": "bias_hh", "P": "weight_hr"}
PAIRS = {
    "tanh": (RNN, nn.RNNCell, {}),
    "relu": (lambda *sizes, **o: RNN(*sizes, nonlinearity="relu", **o), nn.RNNCell, {"nonlinearity": "relu"}),
    "GRU": (GRU, nn.GRUCell, {}),
    "LSTM": (LSTM, nn.LSTMCell, {}),
}
pairs = pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS.values(), ids=PAIRS.keys())


def carry(cell: Cell, module: nn.Module, suffix: str = "") -> None:
    """The cell's parameters into torch's module; every one of the module's must find its own."""
    names = {theirs + suffix: ours for ours, theirs in OURS.items()}
    for name, parameter in module.named_parameters():
        parameter.data.copy_(getattr(cell, names[name]).data)
    assert len(list(module.parameters())) == len(list(cell.parameters()))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
@pairs
def test_a_step_is_that_of_torch(ours, theirs, options, inputs: int, hidden: int, batch: int, bias: bool) -> None:
    cell = shaken(ours(inputs, hidden, bias=bias))
    module = theirs(inputs, hidden, bias=bias, dtype=torch.float64, **options)
    carry(cell, module)
    x, state = step_inputs(cell, batch)
    output, after = cell(x, state)
    wanted = module(x, tuple(state) if isinstance(state, tuple) else state)
    torch.testing.assert_close(after, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(output, after[0] if isinstance(after, tuple) else after)


@pytest.mark.parametrize(("inputs", "hidden", "projection", "batch"), [(1, 3, 1, 1), (3, 63, 5, 3), (63, 4, 3, 1)])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_projected_lstm_is_that_of_torch(inputs: int, hidden: int, projection: int, batch: int, bias: bool) -> None:
    cell = shaken(LSTM(inputs, hidden, projection=projection, bias=bias))
    module = nn.LSTM(inputs, hidden, proj_size=projection, bias=bias, dtype=torch.float64)
    carry(cell, module, "_l0")
    state = cell.initial_state(batch)
    assert (state.h.shape, state.c.shape) == ((batch, projection), (batch, hidden))
    x = torch.randn(3, batch, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = []
    for row in x:
        output, state = cell(row, state)
        outputs.append(output)
    wanted, (h, c) = module(x)
    torch.testing.assert_close(torch.stack(outputs), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(state, (h[0], c[0]), rtol=TOLERANCE, atol=TOLERANCE)


def test_a_linear_step_follows_its_equation() -> None:
    cell = shaken(RNN(3, 5, nonlinearity="identity"))
    x, h = step_inputs(cell, 3)
    p = lists(cell)
    after = [
        total(p.b, p.c, product(p.U, row), product(p.W, old)) for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), after, after)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: RNN(3, 63), lambda: nn.RNN(3, 63)),
        (lambda: GRU(3, 63), lambda: nn.GRU(3, 63)),
        (lambda: LSTM(3, 63), lambda: nn.LSTM(3, 63)),
        (lambda: LSTM(3, 63, projection=5), lambda: nn.LSTM(3, 63, proj_size=5)),
        (lambda: LSTM(3, 63, bias=False), lambda: nn.LSTM(3, 63, bias=False)),
    ],
    ids=["RNN", "GRU", "LSTM", "projected", "no bias"],
)
def test_the_same_seed_starts_with_the_same_numbers(ours, theirs) -> None:
    torch.manual_seed(0)
    cell = ours()
    torch.manual_seed(0)
    module = theirs()
    for ours_name, theirs_name in OURS.items():
        wanted = getattr(module, theirs_name + "_l0", None)
        got = getattr(cell, ours_name, None)
        assert (got is None) == (wanted is None)
        assert got is None or torch.equal(got, wanted)


def test_without_bias_the_names_stay_and_hold_nothing() -> None:
    for cell in (RNN(3, 5, bias=False), GRU(3, 5, bias=False), LSTM(3, 5, bias=False)):
        assert cell.b is None
        assert cell.c is None
        assert set(cell.state_dict()) == {"U", "W"}


def test_outputs_are_as_large_as_what_comes_out() -> None:
    assert (RNN(3, 5).outputs, GRU(3, 5).outputs, LSTM(3, 5).outputs, LSTM(3, 5, projection=2).outputs) == (5, 5, 5, 2)
