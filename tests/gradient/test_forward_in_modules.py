"""Methods that go forward in time, in all that takes a method: summaries, stacks, both ways, checks, explain."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from benchmarks.memory import peak_bytes
from leporello.errors import ArgumentError
from tests.benchmarks.made import Calling
from tests.errors.said import said
from tests.nets.twins import close, gradients, normal, shaken, somewhere, thoroughly

ENGINES = ("stepwise", *thoroughly("reference"))
METHODS = [lp.RTRL(), lp.UORO()]


def with_method(make: Any, method: Any, engine: str) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    net, results = make(gradient=method, engine=engine)
    return gradients(results, list(net.parameters()))


def compared(make: Any, engine: str) -> None:
    """What `make(**options)` gives, a net and its results, has the gradients of Full under RTRL."""
    close(with_method(make, lp.RTRL(), engine), with_method(make, lp.Full(), engine), 1e-10, "gradient")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_summary_hears_the_final_state_alone(engine: str) -> None:
    cell, head, x = shaken(lp.LSTM(3, 4)), shaken(nn.Linear(4, 2), seed=1), normal(7, 3, 3)

    def make(**options: Any) -> Any:
        net = lp.Summary(cell, lambda state: head(state.h), reads="state", **options)
        return net, net(x, lengths=[7, 1, 4])[0]

    compared(make, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stack_is_a_cell_like_others(engine: str) -> None:
    cell, x, resets = shaken(lp.Stack(lp.GRU(3, 4), lp.Elman(4, 3, 2), dropout=0.5)), normal(5, 3, 3), somewhere(5, 3)
    draws = lp.Recurrent(cell).draw(x, resets=resets)

    def make(**options: Any) -> Any:
        net = lp.Recurrent(cell, **options)
        return net, net(x, resets=resets, draws=draws)

    compared(make, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_first(engine: str) -> None:
    cell, x, resets = shaken(lp.RNN(3, 4)), normal(3, 7, 3), somewhere(3, 7)

    def make(**options: Any) -> Any:
        net = lp.Recurrent(cell, batch_first=True, **options)
        return net, net(x, lengths=[7, 2, 4], resets=resets)

    compared(make, engine)


def test_both_directions() -> None:
    one, two, x = shaken(lp.RNN(3, 4)), shaken(lp.RNN(3, 4), seed=1), normal(7, 2, 3)

    def make(**options: Any) -> Any:
        net = lp.Bidirectional(one, two, **options)
        return net, net(x, lengths=[7, 3])

    compared(make, "stepwise")


def test_packed_sequences() -> None:
    cell, x = shaken(lp.RNN(3, 4)), normal(7, 3, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 7, 3]), enforce_sorted=False)

    def make(**options: Any) -> Any:
        net = lp.Recurrent(cell, **options)
        outputs, final = net(packed)
        return net, (outputs.data, final)

    compared(make, "stepwise")


def test_a_system_without_input() -> None:
    class System(lp.Cell):
        def __init__(self) -> None:
            super().__init__(s=3, learned=True)
            self.A = nn.Linear(3, 3)

        def forward(self, x: Any, s: torch.Tensor) -> Any:
            s = torch.tanh(self.A(s))
            return s, s

    cell = shaken(System())

    def make(**options: Any) -> Any:
        net = lp.Recurrent(cell, **options)
        return net, net(None, steps=5)

    compared(make, "stepwise")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_at_a_time_is_a_call_of_one_step(engine: str) -> None:
    cell, x = shaken(lp.RNN(3, 4)), normal(2, 3)

    def make(**options: Any) -> Any:
        net = lp.Recurrent(cell, **options)
        output, state = net.step(x)
        return net, net.step(output[:, :3].detach(), state)

    compared(make, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_check_compares_all_but_inputs(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.Jordan(3, 4, 2)), gradient=lp.RTRL(), engine=engine)
    y, resets = normal(7, 3, 2, seed=2), somewhere(7, 3)
    report = lp.check_gradients(net, normal(7, 3, 3), lengths=[7, 2, 4], resets=resets, targets=y, forcing=0.5)
    assert report.worst < 1e-12
    assert "x" not in report.gradients
    assert {"W", "o"} <= set(report.gradients)


def test_the_check_refuses_what_is_random() -> None:
    net = lp.Recurrent(lp.RNN(3, 4), gradient=lp.UORO())
    said(ArgumentError, lambda: lp.check_gradients(net, torch.zeros(5, 2, 3)), "UORO() are random", "lp.RTRL()")


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_explain_tells_both_sweeps_and_what_is_carried(method: Any) -> None:
    net = lp.Recurrent(lp.Elman(3, 4, 2), gradient=method, engine="stepwise")
    text = net.explain(torch.zeros(7, 5, 3))
    assert f"gradient {method}\nforward\n" in text
    assert "all steps at once  35 rows: product with U" in text
    after = text[text.index("forward again, with the outputs' gradients\n") :]
    assert "all steps at once" not in after
    assert "step by step       5 rows: product with U" in after
    assert "saved    nothing" in after
    size = 5 * 4 * (4 * (4 * 3 + 4 * 4 + 4) if method == lp.RTRL() else 4 + 4 * 3 + 4 * 4 + 4)
    assert f": {size:,} bytes, however many steps" in after
    assert "V" not in after[after.index("carried") :]  # it acts within a step


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_explain_tells_what_reference_does(method: Any) -> None:
    text = lp.Recurrent(lp.RNN(3, 4), gradient=method, engine="reference").explain(torch.zeros(7, 5, 3))
    assert "then again, with the outputs' gradients" in text
    assert "bytes, however many steps" in text
    with torch.no_grad():
        text = lp.Recurrent(lp.RNN(3, 4), gradient=method, engine="reference").explain(torch.zeros(7, 5, 3))
        assert "then again" not in text


@pytest.mark.kernels
def test_kernels_run_forward_and_torch_the_large_products() -> None:
    net = lp.Recurrent(lp.Elman(3, 4, 2), gradient=lp.RTRL(), engine="cpu")
    text = net.explain(torch.zeros(7, 5, 3))
    assert "forward again, with the outputs' gradients, on stepwise\n" in text
    assert text.count("generated C") == 1


def test_without_gradients_nothing_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise AssertionError("carried")

    monkeypatch.setattr(lp.RTRL, "carrying", fails)
    net, x = lp.Recurrent(lp.RNN(3, 4), gradient=lp.RTRL()), torch.zeros(5, 2, 3)
    with torch.no_grad():
        net(x)
    with pytest.raises(AssertionError, match="carried"):
        net(x)


def test_methods_are_compared_by_value_and_copied() -> None:
    assert lp.RTRL() == lp.RTRL() != lp.UORO()
    assert len({lp.RTRL(), lp.RTRL(), lp.UORO(), lp.Full()}) == 3
    net = lp.Recurrent(lp.RNN(3, 4), gradient=lp.RTRL())
    assert copy.deepcopy(net).gradient == pickle.loads(pickle.dumps(net)).gradient == lp.RTRL()
    assert "gradient=RTRL()" in repr(net)


def test_a_picture_has_no_arrows_for_what_goes_forward() -> None:
    strip = lp.fold(lp.Elman(3, 4, 2), torch.zeros(1, 3)).unfold(3)
    said(ArgumentError, lambda: strip.svg(gradient=lp.RTRL()), "carries nothing back", "lp.Full()")


@pytest.mark.parametrize("method", [lp.UORO(), *thoroughly(lp.RTRL())], ids=repr)
def test_memory_does_not_grow_with_the_length(method: Any) -> None:
    """Beyond inputs, outputs and the outputs' gradients."""
    net = lp.Recurrent(lp.RNN(3, 5), gradient=method, engine="stepwise")
    peaks = []
    for length in (128, 320):  # whole stretches, more than one
        x = torch.randn(length, 2, 3)

        def train(x: torch.Tensor = x) -> None:
            outputs, _ = net(x)
            outputs.backward(torch.ones(()).expand(outputs.shape))
            net.zero_grad()

        peaks.append(peak_bytes(Calling(train)) - length * 2 * 5 * 4)
    carried = 2 * 5 * (5 * 3 + 5 * 5 + 5 + 5) * 4 if method == lp.RTRL() else 2 * 60 * 4
    assert peaks[0] > carried
    assert peaks[1] - peaks[0] < 500  # one value of the state's size at every step would be 7,680 bytes
