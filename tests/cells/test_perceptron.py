import pytest

from leporello.cells import Perceptron
from tests.cells.by_hand import product, tanh, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "outputs", "batch"), SIZES)
def test_a_step_follows_the_equations(inputs: int, hidden: int, outputs: int, batch: int) -> None:
    cell = shaken(Perceptron(inputs, hidden, outputs))
    x, state = step_inputs(cell, batch)
    p = lists(cell)
    wanted = [total(p.c, product(p.V, tanh(total(p.b, product(p.U, row))))) for row in x.tolist()]
    assert_rows(cell(x, state), wanted)


def test_there_is_no_state() -> None:
    cell = Perceptron(3, 5, 2)
    x, state = step_inputs(cell, 3)
    assert state == ()
    assert cell.state_names() == []
    assert cell(x, ())[1] == ()


def test_parameters_start_uniform_and_biases_at_zero() -> None:
    cell = Perceptron(4, 400, 9)
    assert 0.49 < cell.U.abs().max() <= 0.5
    assert 0.049 < cell.V.abs().max() <= 0.05
    assert not cell.b.any()
    assert not cell.c.any()
