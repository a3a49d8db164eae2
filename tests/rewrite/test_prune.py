"""prune: a loop without the states and inputs that none of its results needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.rewrite import differentiate, prune
from tests.close import assert_same
from tests.rewrite.running import loop_of, numbers, run

X = numbers(4, 3, 2)


class Several(lp.Cell):
    """`used` feeds the output, `helper` feeds `used`, `lonely` feeds itself, `left` and `right` only each other."""

    def __init__(self) -> None:
        super().__init__(used=2, helper=2, lonely=2, left=2, right=2)
        self.w, self.idle = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        used, helper, lonely, left, right = state
        return used, (torch.tanh(used + helper), self.w * x, lonely * self.idle, right + 1, left * 2)


def names(loop: lp.Loop, kind: str) -> set[str]:
    return {port.name for port in loop.inputs if port.kind == kind}


def test_states_that_no_result_needs_are_left_out() -> None:
    assert names(prune(loop_of(Several(), X)), "state") == {"used", "helper"}


def test_what_only_dead_states_read_is_left_out_too() -> None:
    assert names(prune(loop_of(Several(), X)), "invariant") == {"w"}


def test_a_state_that_is_asked_for_keeps_what_it_needs_alive() -> None:
    pruned = prune(loop_of(Several(), X), keep=["left"])
    assert names(pruned, "state") == {"used", "helper", "left", "right"}


def test_results_do_not_change() -> None:
    loop = loop_of(Several(), X)
    values = {"x": X} | {name: numbers(3, 2, seed=4) for name in names(loop, "state")}
    pruned, whole = run(prune(loop), values), run(loop, values)
    assert_same(pruned, {name: whole[name] for name in pruned}, "pruned")


def test_gradients_of_what_nobody_reads_need_no_backward_state() -> None:
    loop = loop_of(lp.Perceptron(2, 4, 3), X)
    backward = prune(differentiate(loop, wanted=[port.name == "V" for port in loop.inputs]))
    assert [port.name for port in backward.outputs] == ["V"]
    assert "input.x" in names(backward, "sequence")
    assert "c" not in names(backward, "invariant")


def test_a_loop_in_which_all_is_needed_stays_as_it_is() -> None:
    loop = loop_of(lp.LSTM(2, 4), X)
    assert prune(loop).text() == loop.text()
