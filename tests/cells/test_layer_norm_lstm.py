import pytest
import torch

from leporello.cells import LayerNormLSTM
from tests.cells.by_hand import normalised, parts, product, sigmoid, tanh, times, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
def test_a_step_follows_equations_20_to_22(inputs: int, hidden: int, batch: int) -> None:
    cell = shaken(LayerNormLSTM(inputs, hidden))
    x, state = step_inputs(cell, batch)
    p = lists(cell)
    hs, cs = [], []
    for row, h, c in zip(x.tolist(), state.h.tolist(), state.c.tolist(), strict=True):
        from_h = times(p.gain_h, normalised(product(p.W, h)))
        from_x = times(p.gain_x, normalised(product(p.U, row)))
        i, f, g, o = parts(total(from_h, from_x, p.b), 4)
        c = total(times(sigmoid(f), c), times(sigmoid(i), tanh(g)))
        cs.append(c)
        hs.append(times(sigmoid(o), tanh(total(times(p.gain_c, normalised(c)), p.shift_c))))
    assert_rows(cell(x, state), hs, hs, cs)


def test_a_larger_recurrent_matrix_changes_nothing() -> None:
    cell = shaken(LayerNormLSTM(3, 63))
    x, state = step_inputs(cell, 3)
    before = cell(x, state)
    cell.W.data.mul_(1000)
    torch.testing.assert_close(cell(x, state), before, rtol=1e-5, atol=1e-5)


def test_gains_start_at_one_and_the_shift_at_zero() -> None:
    cell = LayerNormLSTM(3, 5)
    assert all((gain == 1).all() for gain in (cell.gain_h, cell.gain_x, cell.gain_c))
    assert not cell.shift_c.any()
    assert all(0 < value.abs().max() <= 5**-0.5 for value in (cell.U, cell.W, cell.b))
