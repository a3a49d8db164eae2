import pytest
import torch

from leporello.cells import IndRNN
from tests.cells.by_hand import product, relu, times, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
def test_a_step_follows_the_equation(inputs: int, hidden: int, batch: int) -> None:
    cell = shaken(IndRNN(inputs, hidden))
    x, h = step_inputs(cell, batch)
    p = lists(cell)
    after = [
        relu(total(product(p.U, row), times(p.w, old), p.b)) for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), after, after)


def test_a_unit_reads_its_own_past_alone() -> None:
    cell = shaken(IndRNN(3, 5))
    x, h = step_inputs(cell, 1)
    jacobian = torch.autograd.functional.jacobian(lambda h: cell(x, h)[1], h)[0, :, 0]
    assert torch.equal(jacobian, torch.diag(jacobian.diagonal()))
    assert jacobian.any()


def test_recurrent_weights_start_between_zero_and_one() -> None:
    torch.manual_seed(0)
    cell = IndRNN(4, 2001)
    assert cell.w.min() >= 0
    assert cell.w.max() <= 1
    assert cell.w.mean().item() == pytest.approx(0.5, abs=0.03)
    assert 0.49 < cell.U.abs().max() <= 0.5
    assert not cell.b.any()
