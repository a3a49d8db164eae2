"""Gradient methods in all that takes one: check_gradients, explain, summaries, both directions, packed rows, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.engine.state_gradient import Passing
from leporello.nets.plain_loop import plain_loop
from tests.gradient.by_hand import TOLERANCE, Case, Nets
from tests.nets.test_dtypes import Rotating
from tests.nets.twins import ALL, FASTEST, STEPWISE, close, gradients, normal, shaken, somewhere


@pytest.mark.parametrize("engine", STEPWISE)
def test_the_check_compares_like_with_like(engine: str) -> None:
    net = lp.Recurrent(
        lp.Stack(lp.ZoneoutLSTM(3, 4), lp.Jordan(4, 3, 2), dropout=0.5).double(),
        gradient=lp.Truncated(3),
        engine=engine,
    )
    x, y, resets = normal(7, 3, 3), normal(7, 3, 2, seed=2), somewhere(7, 3)
    report = lp.check_gradients(net, x, lengths=[7, 2, 4], resets=resets, targets=y, forcing=0.5, raises=True)
    assert report.worst < 1e-12
    net.gradient = lp.Full()
    assert lp.check_gradients(net, x, lengths=[7, 2, 4], resets=resets, targets=y, forcing=0.5).worst < 1e-12


@pytest.mark.parametrize("engine", FASTEST)
def test_the_check_finds_a_cut_that_is_missing(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=lp.Truncated(3), engine=engine)
    right = lp.Recurrent._run
    uncut = Passing(torch.ones(7, 2, dtype=torch.float64))
    monkeypatch.setattr(lp.Recurrent, "_run", lambda self, call, passing: right(self, call, uncut))
    report = lp.check_gradients(net, normal(7, 2, 3))
    assert not report.ok
    assert max(report.outputs.values()) < 1e-12
    assert report.gradients["W"] > 1e-3


@pytest.mark.parametrize("engine", ["stepwise", "reference"])
def test_complex_states_are_cut_too(engine: str) -> None:
    net = lp.Recurrent(Rotating(), gradient=lp.Truncated(2), engine=engine)
    assert lp.check_gradients(net, normal(5, 2, 3, dtype=torch.complex128), raises=True).worst < 1e-12


@pytest.mark.parametrize("engine", STEPWISE)
def test_explain_names_the_method(engine: str) -> None:
    net, x = lp.Recurrent(lp.GRU(3, 4), gradient=lp.Truncated(3), engine=engine), normal(7, 2, 3).float()
    assert "gradient Truncated(steps=3)\n" in net.explain(x)
    assert "gradient Full()\n" in lp.Recurrent(lp.GRU(3, 4), engine=engine).explain(x)
    with torch.no_grad():
        assert "gradient Truncated" not in net.explain(x)


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_summary_is_read_in_windows(engine: str) -> None:
    cell, head = shaken(lp.GRU(3, 4)), shaken(nn.Linear(4, 2), seed=1)
    net, x = lp.Summary(cell, head, gradient=lp.Truncated(3), engine=engine), normal(7, 2, 3, grad=True)
    found = gradients(net(x)[0], [x, *cell.parameters()])
    late, state = x[6:], lp.Recurrent(cell)(x[:6])[1].detach()
    wanted = gradients(head(lp.Recurrent(cell)(late, state)[1]), [x, *cell.parameters()])
    close(found, wanted, TOLERANCE, "gradient")


def test_both_directions_count_from_their_own_beginning() -> None:
    one, two = shaken(lp.GRU(3, 4)), shaken(lp.GRU(3, 4), seed=1)
    net, x = lp.Bidirectional(one, two, gradient=lp.Truncated(3)), normal(7, 2, 3, grad=True)
    ahead, back = (lp.Recurrent(cell, gradient=lp.Truncated(3)) for cell in (one, two))
    (first, after), (second, before) = ahead(x), back(x.flip(0))
    wanted = torch.cat([first, second.flip(0)], -1), (after, before)
    sources = [x, *net.parameters()]
    close(gradients(net(x), sources), gradients(wanted, sources), TOLERANCE, "gradient")


@pytest.mark.parametrize("engine", FASTEST)
def test_packed_sequences_are_cut_within_their_rows(engine: str) -> None:
    cell, x, lengths = shaken(lp.GRU(3, 4)), normal(7, 3, 3, grad=True), [5, 7, 3]
    net = lp.Recurrent(cell, gradient=lp.Truncated(3), engine=engine)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    outputs, final = net(packed)
    found = gradients((nn.utils.rnn.pad_packed_sequence(outputs)[0], final), [x, *cell.parameters()])
    close(found, gradients(net(x, lengths=lengths), [x, *cell.parameters()]), TOLERANCE, "gradient")


def test_copies_keep_the_method() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), gradient=lp.Truncated(3))
    assert copy.deepcopy(net).gradient == pickle.loads(pickle.dumps(net)).gradient == lp.Truncated(3)
    assert "gradient=Truncated(steps=3)" in repr(net)


def test_a_net_without_state_has_nothing_to_cut() -> None:
    cell, x = shaken(lp.Perceptron(3, 4, 2)), normal(7, 2, 3, grad=True)
    sources = [x, *cell.parameters()]
    for engine in ALL:
        found = gradients(lp.Recurrent(cell, gradient=lp.Truncated(3), engine=engine)(x), sources)
        close(found, gradients(plain_loop(cell, checked_call(cell, x, None)), sources), TOLERANCE, "gradient")


@pytest.mark.parametrize("engine", STEPWISE)
def test_without_gradients_nothing_is_weighed(engine: str) -> None:
    class Asked(lp.Truncated):
        def weights(self, *args: Any) -> Any:
            raise AssertionError("asked for weights")

    net = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=Asked(3), engine=engine)
    with torch.no_grad():
        net(normal(7, 2, 3))
    with pytest.raises(AssertionError, match="asked for weights"):
        net(normal(7, 2, 3))


def test_the_same_call_gives_the_same_bits() -> None:
    case = Case.of(Nets.of("Stack"), 12, 3)
    one, two = (case.by_net(lp.Truncated(5), "stepwise") for _ in range(2))
    close(one, two, tolerance=0)
