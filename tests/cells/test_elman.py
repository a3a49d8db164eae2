import pytest
import torch

from leporello.cells import Elman
from tests.cells.by_hand import product, tanh, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "outputs", "batch"), SIZES)
def test_a_step_follows_the_equations(inputs: int, hidden: int, outputs: int, batch: int) -> None:
    cell = shaken(Elman(inputs, hidden, outputs))
    x, h = step_inputs(cell, batch)
    p = lists(cell)
    states = [
        tanh(total(p.b, product(p.W, old), product(p.U, row))) for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h), [total(p.c, product(p.V, row)) for row in states], states)


def test_the_recurrent_matrix_keeps_lengths_at_first() -> None:
    W = Elman(3, 63, 2).W.detach().double()
    torch.testing.assert_close(W @ W.T, torch.eye(63, dtype=torch.float64), rtol=0, atol=1e-5)


def test_other_parameters_start_uniform_and_biases_at_zero() -> None:
    torch.manual_seed(0)
    cell = Elman(25, 400, 100)
    for weight, bound in ((cell.U, 1 / 5), (cell.V, 1 / 20)):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    assert not cell.b.any()
    assert not cell.c.any()
