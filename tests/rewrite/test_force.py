"""force: what a step hands on in the feedback leaf is the true value, always or where a coin says so."""

from __future__ import annotations

import torch

import leporello as lp
from leporello.rewrite import force
from tests.close import assert_close, assert_same
from tests.rewrite.running import coins, loop_of, numbers, run

X, Y = numbers(5, 3, 2), numbers(5, 3, 4, seed=1)
START = numbers(3, 4, seed=2)


def jordan() -> tuple[lp.Jordan, lp.Loop]:
    cell = lp.Jordan(2, 6, 4).double()
    return cell, loop_of(cell, X)


def test_the_first_step_reads_the_initial_state_and_the_others_the_targets() -> None:
    cell, loop = jordan()
    found = run(force(loop, "o", always=True), {"x": X, "o": START, "call.target": Y})
    read = torch.cat([START.unsqueeze(0), Y[:-1]])
    wanted = torch.stack([cell(X[time], read[time])[0] for time in range(5)])
    assert_close({"o": found["o"]}, {"o": wanted}, "forced")


def test_the_final_state_is_what_the_next_step_would_read() -> None:
    _, loop = jordan()
    found = run(force(loop, "o", always=True), {"x": X, "o": START, "call.target": Y})
    assert torch.equal(found["final o"], Y[-1])


def test_a_coin_per_step_and_row_chooses_between_target_and_output() -> None:
    cell, loop = jordan()
    coin, outputs, fed = coins(5, 3), [], START
    for time in range(5):
        output, _ = cell(X[time], fed)
        fed = torch.where(coin[time].unsqueeze(1), Y[time], output)
        outputs.append(output)
    found = run(force(loop, "o", always=False), {"x": X, "o": START, "call.target": Y, "call.coin": coin})
    assert_close(found, {"o": torch.stack(outputs), "final o": fed}, "forced")


def test_without_a_single_coin_nothing_is_forced() -> None:
    _, loop = jordan()
    values = {"x": X, "o": START, "call.target": Y * float("inf"), "call.coin": torch.zeros(5, 3, dtype=torch.bool)}
    assert_same(run(force(loop, "o", always=False), values), run(loop, values), "unforced")


def test_always_forced_nothing_waits_for_the_step_before() -> None:
    _, loop = jordan()
    assert not loop.split().parallel
    assert force(loop, "o", always=True).split().parallel
