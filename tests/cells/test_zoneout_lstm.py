import pytest
import torch

from leporello.cells import ZoneoutLSTM
from tests.cells.by_hand import mix, parts, product, sigmoid, tanh, times, total
from tests.cells.examples import SIZES, assert_rows, lists, shaken, step_inputs


def new_values(cell: ZoneoutLSTM, x: torch.Tensor, state) -> tuple[list, list]:
    """h and c of a step in which no unit keeps its value."""
    p = lists(cell)
    hs, cs = [], []
    for row, h, c in zip(x.tolist(), state.h.tolist(), state.c.tolist(), strict=True):
        i, f, g, o = parts(total(product(p.U, row), product(p.W, h), p.b), 4)
        c = total(times(sigmoid(f), c), times(sigmoid(i), tanh(g)))
        cs.append(c)
        hs.append(times(sigmoid(o), tanh(c)))
    return hs, cs


@pytest.mark.parametrize(("inputs", "hidden", "batch"), [(i, h, b) for i, h, _, b in SIZES])
def test_in_eval_each_unit_takes_the_expectation(inputs: int, hidden: int, batch: int) -> None:
    cell = shaken(ZoneoutLSTM(inputs, hidden, zoneout_h=0.3, zoneout_c=0.6))
    x, state = step_inputs(cell, batch)
    new_h, new_c = new_values(cell, x, state)
    h = [mix(0.3, old, new) for old, new in zip(state.h.tolist(), new_h, strict=True)]
    c = [mix(0.6, old, new) for old, new in zip(state.c.tolist(), new_c, strict=True)]
    assert_rows(cell(x, state), h, h, c)


def test_in_train_each_unit_keeps_its_value_with_its_probability() -> None:
    cell = shaken(ZoneoutLSTM(1, 3, zoneout_h=0.3, zoneout_c=0.6)).train()
    x, state = step_inputs(cell, 4001)
    new_h, new_c = (torch.tensor(rows, dtype=torch.float64) for rows in new_values(cell, x, state))
    torch.manual_seed(0)
    _, (h, c) = cell(x, state)
    for got, old, new, probability in ((h, state.h, new_h, 0.3), (c, state.c, new_c, 0.6)):
        kept = got == old
        torch.testing.assert_close(got, torch.where(kept, old, new), rtol=1e-12, atol=1e-12)
        share = kept.double().mean(0)  # a standard deviation of 0.008 per unit
        assert ((share - probability).abs() < 0.035).all()
    both = ((h == state.h) & (c == state.c)).double().mean()
    assert both.item() == pytest.approx(0.18, abs=0.02)  # h and c are drawn apart


def test_units_are_drawn_apart() -> None:
    cell = shaken(ZoneoutLSTM(1, 3, zoneout_h=0.5, zoneout_c=0.5)).train()
    x, state = step_inputs(cell, 4001)
    torch.manual_seed(0)
    _, after = cell(x, state)
    for got, old in zip(after, state, strict=True):
        correlations = torch.corrcoef((got == old).double().T) - torch.eye(3, dtype=torch.float64)
        assert correlations.abs().max() < 0.1  # a standard deviation of 0.016


def test_every_step_draws_anew() -> None:
    cell = shaken(ZoneoutLSTM(3, 63, zoneout_h=0.5, zoneout_c=0.5)).train()
    x, state = step_inputs(cell, 3)
    assert not torch.equal(cell(x, state)[0], cell(x, state)[0])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_probability_zero_keeps_nothing_and_one_keeps_all(training: bool) -> None:
    cell = shaken(ZoneoutLSTM(3, 5, zoneout_h=0, zoneout_c=1)).train(training)
    x, state = step_inputs(cell, 3)
    _, (h, c) = cell(x, state)
    assert torch.equal(c, state.c)
    assert_rows(h, new_values(cell, x, state)[0])
