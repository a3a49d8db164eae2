"""lp.stream: windows of a sequence without an end; the state goes on, gradients do not."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError, GraphGone, StateMismatch
from tests.errors.said import said
from tests.nets.twins import FASTEST, STEPWISE, close, normal, shaken

X, Y = normal(23, 2, 3), normal(23, 2, 4, seed=2)
RESETS = torch.zeros(23, 2, dtype=torch.bool)
RESETS[4, 0] = RESETS[11, 1] = RESETS[16, 0] = True


def net_of(**options: Any) -> lp.Recurrent:
    torch.manual_seed(0)
    return lp.Recurrent(shaken(lp.RNN(3, 4)), **options)


def outputs(windows: Any) -> Tensor:
    return torch.cat([window.outputs for window in windows])


def test_windows_give_what_one_call_gives() -> None:
    net = net_of()
    whole, state = net(X, resets=RESETS)
    windows = list(lp.stream(net, [(X, Y, RESETS)], window=5))
    assert [len(window.outputs) for window in windows] == [5, 5, 5, 5, 3]
    assert [window.start for window in windows] == [0, 5, 10, 15, 20]
    close(outputs(windows), whole)
    close(torch.cat([window.targets for window in windows]), Y, tolerance=0)
    close(windows[-1].state, state)


@pytest.mark.parametrize("cuts", [(3, 17), (5, 10), (1, 2), (23, 23)])
def test_pieces_of_any_length_are_one_sequence(cuts: tuple[int, int]) -> None:
    net = net_of()
    parts = [(X[a:b], Y[a:b]) for a, b in zip((0, *cuts), (*cuts, 23), strict=True) if b > a]
    windows = list(lp.stream(net, iter(parts), window=5))
    assert [len(window.outputs) for window in windows] == [5, 5, 5, 5, 3]
    close(outputs(windows), net(X)[0])


def test_resets_in_some_pieces_alone() -> None:
    net = net_of()
    parts = [(X[:9], Y[:9]), (X[9:], Y[9:], RESETS[9:])]
    later = RESETS.clone()
    later[:9] = False
    close(outputs(lp.stream(net, parts, window=6)), net(X, resets=later)[0])


def test_gradients_stay_within_a_window() -> None:
    net = net_of()
    parameters = list(net.cell.parameters())
    wanted = torch.autograd.grad(net(X, gradient=lp.Truncated(5))[0].square().sum(), parameters)
    for window in lp.stream(net, (X, Y), window=5):
        assert not window.state.requires_grad
        window.outputs.square().sum().backward()
    close([parameter.grad for parameter in parameters], wanted)


@pytest.mark.parametrize("engine", FASTEST)
def test_first_steps_of_a_sequence_burn_in(engine: str) -> None:
    """By hand: each sequence of each row alone, its first steps without gradient, cut at the borders of windows."""
    net, burn_in, size = net_of(engine=engine), 3, 8
    parameters = list(net.cell.parameters())
    for window in lp.stream(net, [(X, Y, RESETS)], window=size, burn_in=burn_in):
        window.outputs.square().sum().backward()
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    for row in range(2):
        for begin, end in pairwise([0, *RESETS[:, row].nonzero().flatten().tolist(), len(X)]):
            with torch.no_grad():
                _, state = net(X[begin : begin + burn_in, row : row + 1])
            borders = [begin + burn_in, *(t for t in range(0, len(X), size) if begin + burn_in < t < end), end]
            for first, last in pairwise(borders):
                result, state = net(X[first:last, row : row + 1], lp.detach(state))
                result.square().sum().backward()
    close(found, [parameter.grad for parameter in parameters])


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_method_that_cuts_cuts_beside_what_burns_in(engine: str) -> None:
    """Windows of the method within those of the stream; the first steps of the sequence are a window of their own."""
    net, cut = net_of(engine=engine), net_of(engine=engine, gradient=lp.Truncated(4))
    found = [list(lp.stream(one, (X, Y), window=12, burn_in=4)) for one in (net, cut)]
    by_hand = [list(lp.stream(net, (X, Y), window=4, burn_in=4))]
    parameters = list(net.cell.parameters())
    exact, truncated, wanted = (
        torch.autograd.grad(sum(w.outputs.square().sum() for w in windows if w.outputs.requires_grad), source)
        for windows, source in zip(
            [*found, *by_hand], [parameters, list(cut.cell.parameters()), parameters], strict=True
        )
    )
    close(truncated, wanted)
    assert not torch.allclose(exact[0], wanted[0])


def test_counts_say_which_steps_burn_in() -> None:
    windows = list(lp.stream(net_of(), [(X, Y, RESETS)], window=8, burn_in=3))
    counts = torch.cat([window.counts for window in windows])  # type: ignore[list-item]
    burnt = {0: [0, 1, 2, 4, 5, 6, 16, 17, 18], 1: [0, 1, 2, 11, 12, 13]}
    for row, steps in burnt.items():
        assert (~counts[:, row]).nonzero().flatten().tolist() == steps
    assert all(window.counts is None for window in lp.stream(net_of(), (X, Y), window=8))


def test_batch_first_axes_change_places() -> None:
    net, turned = net_of(batch_first=True), net_of()
    for burn_in in (0, 2):
        pair = (X.transpose(0, 1), Y.transpose(0, 1), RESETS.T)
        windows = list(lp.stream(net, [pair], window=8, burn_in=burn_in))
        assert windows[0].outputs.shape == (2, 8, 4) == windows[0].targets.shape
        wanted = torch.cat([w.outputs for w in lp.stream(turned, [(X, Y, RESETS)], window=8)])
        close(torch.cat([window.outputs for window in windows], 1).transpose(0, 1), wanted)


def test_nothing_of_an_old_window_stays() -> None:
    net = net_of()
    gc.freeze()  # what other tests have left takes seconds to look through
    seen: list[weakref.ref[Tensor]] = []
    for window in lp.stream(net, (X, Y), window=5):
        gc.collect()
        assert sum(reference() is not None for reference in seen) == 0
        seen.append(weakref.ref(window.outputs))
        del window


def test_a_state_is_where_it_begins() -> None:
    net = net_of()
    _, state = net(X[:10])
    close(outputs(lp.stream(net, (X[10:], Y[10:]), window=5, state=lp.detach(state))), net(X)[0][10:])


def test_going_back_twice_says_what_to_do() -> None:
    net = net_of()
    first, state = net(X[:5])
    first.sum().backward()
    second, _ = net(X[5:], state)
    said(GraphGone, lambda: second.sum().backward(), "for a second time", "lp.detach(state)", "lp.stream")


def test_a_parameter_that_changed_too_early_is_named_so() -> None:
    net = net_of()
    loss = net(X)[0].sum()
    with torch.no_grad():
        next(net.cell.parameters()).mul_(2)
    said(GraphGone, loss.backward, "was changed before its gradient went back", "before optimizer.step()")


def test_another_batch_says_so() -> None:
    parts = [(X, Y), (X[:, :1], Y[:, :1])]
    said(StateMismatch, lambda: list(lp.stream(net_of(), parts, window=5)), "number 1", "came      1 rows", "2 rows")


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (X, "holds no inputs and targets"),
        (3, "holds no inputs and targets"),
        ([X, Y, X, Y], "number 0 of the argument 'pairs' is no pair"),
        ([(X, Y[:7])], "have another length or batch than the inputs"),
        ([(X, Y, RESETS[:3])], "the resets in number 0"),
        ([(X, torch.zeros(3))], "are no sequence"),
    ],
)
def test_pairs_that_are_none_are_refused(pairs: Any, told: str) -> None:
    said(ArgumentError, lambda: list(lp.stream(net_of(), pairs, window=5)), told)


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 2.0}, {"window": 5, "burn_in": -1}], ids=repr)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    said(ArgumentError, lambda: lp.stream(net_of(), (X, Y), **options), "is no number of steps")


def test_burning_in_needs_weights() -> None:
    net = net_of(gradient=lp.Checkpointed())
    said(ArgumentError, lambda: lp.stream(net, (X, Y), window=5, burn_in=2), "Checkpointed()", "lp.Full()")
    assert len(list(lp.stream(net, (X, Y), window=5))) == 5
