import pytest
import torch
from torch import nn

from leporello.cells import PeepholeLSTM
from tests.cells.by_hand import parts, product, sigmoid, tanh, times, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
def test_a_step_follows_equations_7_to_11(inputs: int, hidden: int, batch: int) -> None:
    cell = shaken(PeepholeLSTM(inputs, hidden))
    x, state = step_inputs(cell, batch)
    p = lists(cell)
    hs, cs = [], []
    for row, h, c in zip(x.tolist(), state.h.tolist(), state.c.tolist(), strict=True):
        i, f, g, o = parts(total(product(p.U, row), product(p.W, h), p.b), 4)
        i = sigmoid(total(i, times(p.p_i, c)))
        f = sigmoid(total(f, times(p.p_f, c)))
        c = total(times(f, c), times(i, tanh(g)))
        o = sigmoid(total(o, times(p.p_o, c)))
        cs.append(c)
        hs.append(times(o, tanh(c)))
    assert_rows(cell(x, state), hs, hs, cs)


def test_closed_peepholes_leave_an_lstm() -> None:
    cell = shaken(PeepholeLSTM(3, 5))
    for peephole in (cell.p_i, cell.p_f, cell.p_o):
        peephole.data.zero_()
    module = nn.LSTMCell(3, 5, dtype=torch.float64)
    module.weight_ih.data, module.weight_hh.data, module.bias_ih.data = cell.U.data, cell.W.data, cell.b.data
    module.bias_hh.data.zero_()
    x, state = step_inputs(cell, 3)
    torch.testing.assert_close(cell(x, state)[1], module(x, tuple(state)), rtol=1e-12, atol=1e-12)


def test_parameters_start_uniform() -> None:
    cell = PeepholeLSTM(3, 63)
    assert all(0 < value.abs().max() <= 63**-0.5 for value in cell.parameters())
