"""reset: the state is the initial one where reset(t) holds, before step t, and no gradient crosses."""

from __future__ import annotations

import torch

import leporello as lp
from leporello.rewrite import reset
from tests.close import assert_close, assert_same
from tests.rewrite.running import loop_of, numbers, run

X, START, FRESH = numbers(6, 3, 2), numbers(3, 4, seed=1), numbers(3, 4, seed=2)
NEVER = torch.zeros(6, 3, dtype=torch.bool)


def resets(*places: tuple[int, int]) -> torch.Tensor:
    found = NEVER.clone()
    for time, row in places:
        found[time, row] = True
    return found


def rnn() -> lp.Loop:
    return loop_of(lp.RNN(2, 4), X)


def test_a_row_begins_anew_before_the_step_that_is_marked() -> None:
    loop = rnn()
    found = run(reset(loop), {"x": X, "h": START, "call.reset": resets((2, 1))})
    begun = run(loop, {"x": X[2:], "h": torch.zeros(3, 4).double()})
    plain = run(loop, {"x": X, "h": START})
    assert_close({"1": found["o"][2:, 1]}, {"1": begun["o"][:, 1]}, "after the reset, row")
    assert_same({"1": found["o"][:2, 1]}, {"1": plain["o"][:2, 1]}, "before the reset, row")
    for row in (0, 2):
        assert_same({"o": found["o"][:, row]}, {"o": plain["o"][:, row]}, "another row")


def test_without_resets_nothing_changes() -> None:
    loop = rnn()
    values = {"x": X, "h": START, "call.reset": NEVER}
    assert_same(run(reset(loop), values), run(loop, values), "never reset")


def test_a_given_initial_state_is_what_a_row_goes_back_to() -> None:
    loop = rnn()
    values = {"x": X, "h": START, "call.reset": resets((3, 0))}
    found = run(reset(loop, given=["h"]), values, {"call.initial.h": FRESH})
    begun = run(loop, {"x": X[3:], "h": FRESH})
    assert_close({"0": found["o"][3:, 0]}, {"0": begun["o"][:, 0]}, "after the reset, row")


def test_a_reset_before_the_first_step_forgets_the_state_that_came_in() -> None:
    found = run(reset(rnn()), {"x": X, "h": START * float("nan"), "call.reset": resets((0, 0), (0, 1), (0, 2))})
    assert not found["o"].isnan().any()


def test_no_gradient_crosses_a_reset() -> None:
    start = START.clone().requires_grad_()
    found = run(reset(rnn()), {"x": X, "h": start, "call.reset": resets((5, 1))})
    (gradient,) = torch.autograd.grad(found["final h"].sum(), start)
    assert not gradient[1].any()
    assert gradient[0].all()


def test_every_reset_gives_the_initial_state_a_gradient() -> None:
    fresh = FRESH.clone().requires_grad_()
    values = {"x": X, "h": START, "call.reset": resets((0, 1), (5, 1))}
    found = run(reset(rnn(), given=["h"]), values, {"call.initial.h": fresh})
    (gradient,) = torch.autograd.grad(found["o"].sum(), fresh)
    assert gradient[1].all()
    assert not gradient[0].any()


def test_a_step_without_state_has_nothing_to_reset() -> None:
    loop = loop_of(lp.Perceptron(2, 4, 3), X)
    assert reset(loop) is loop
