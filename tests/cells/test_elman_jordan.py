import pytest
import torch

from leporello.cells import ElmanJordan
from tests.cells.by_hand import product, tanh, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "outputs", "batch"), SIZES)
def test_a_step_follows_the_equations(inputs: int, hidden: int, outputs: int, batch: int) -> None:
    cell = shaken(ElmanJordan(inputs, hidden, outputs))
    x, state = step_inputs(cell, batch)
    p = lists(cell)
    h = [
        tanh(total(p.b, product(p.W, hidden), product(p.R, output), product(p.U, row)))
        for row, hidden, output in zip(x.tolist(), state.h.tolist(), state.o.tolist(), strict=True)
    ]
    o = [total(p.c, product(p.V, row)) for row in h]
    assert_rows(cell(x, state), o, h, o)


def test_hidden_value_and_output_pass_through_delays() -> None:
    cell = ElmanJordan(3, 5, 2)
    assert cell.state_names() == ["h", "o"]
    assert cell.feedback_leaf() == "o"


def test_only_the_output_leaf_goes_through_feed() -> None:
    class Doubled(ElmanJordan):
        def feed(self, output):
            return 2 * output

    cell = shaken(Doubled(3, 5, 2))
    o, (h, fed) = cell(*step_inputs(cell, 3))
    assert torch.equal(fed, 2 * o)
    torch.testing.assert_close(o, cell.c + h @ cell.V.T, rtol=1e-12, atol=1e-12)
