import pytest
import torch

from leporello.cells import Jordan
from tests.cells.by_hand import product, tanh, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


@pytest.mark.parametrize(("inputs", "hidden", "outputs", "batch"), SIZES)
def test_a_step_follows_the_equations(inputs: int, hidden: int, outputs: int, batch: int) -> None:
    cell = shaken(Jordan(inputs, hidden, outputs))
    x, o = step_inputs(cell, batch)
    p = lists(cell)
    hidden_rows = [
        tanh(total(p.b, product(p.W, old), product(p.U, row))) for row, old in zip(x.tolist(), o.tolist(), strict=True)
    ]
    output = [total(p.c, product(p.V, row)) for row in hidden_rows]
    assert_rows(cell(x, o), output, output)


def test_the_output_passes_through_the_delay() -> None:
    cell = Jordan(3, 5, 2)
    assert cell.feedback_leaf() == "o"
    assert cell.state_names() == ["o"]


def test_what_is_fed_back_is_what_feed_says() -> None:
    class Softmax(Jordan):
        def feed(self, output):
            return torch.softmax(output, -1)

    cell = shaken(Softmax(3, 5, 2))
    o, state = cell(*step_inputs(cell, 3))
    torch.testing.assert_close(state, o.exp() / o.exp().sum(-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("hidden", "outputs"), [(63, 3), (3, 63)])
def test_the_feedback_matrix_keeps_lengths_at_first(hidden: int, outputs: int) -> None:
    assert torch.linalg.svdvals(Jordan(3, hidden, outputs).W.detach()).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
