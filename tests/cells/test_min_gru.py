import pytest
import torch

from leporello.cells import MinGRU
from tests.cells.by_hand import mix, product, sigmoid, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
def test_a_step_follows_the_equations(inputs: int, hidden: int, batch: int) -> None:
    cell = shaken(MinGRU(inputs, hidden))
    x, h = step_inputs(cell, batch)
    p = lists(cell)
    after = [
        mix(sigmoid(total(p.bz, product(p.Wz, row))), total(p.bh, product(p.Wh, row)), old)
        for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), after, after)


def test_the_state_enters_linearly() -> None:
    cell = shaken(MinGRU(3, 5))
    x, h = step_inputs(cell, 3)
    at_zero = cell(x, torch.zeros_like(h))[1]
    torch.testing.assert_close(cell(x, 3 * h)[1] - at_zero, 3 * (cell(x, h)[1] - at_zero), rtol=1e-12, atol=1e-12)


def test_parameters_start_uniform_and_biases_at_zero() -> None:
    cell = MinGRU(4, 501)
    assert all(0.49 < weight.abs().max() <= 0.5 for weight in (cell.Wz, cell.Wh))
    assert not cell.bz.any()
    assert not cell.bh.any()
