"""Sweeps recorded and replayed as a whole give the bits that they give without, whatever a call does between two."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.engine.gpu.division.geometry import LEVELS
from leporello.engine.gpu.graphs import captured_sweeps, recordings
from leporello.engine.gpu.graphs.captured_sweeps import CapturedSweep, captured_sweep
from leporello.engine.target import Target
from leporello.engine.targets import STEPWISE, TARGETS, register
from tests.cells.examples import EXAMPLES, FEW, shaken
from tests.engine.python_recorder import PythonRecorder, installed
from tests.engine.test_captured_steps import SWITCH, check, run
from tests.gpu_on_host import target_on_host
from tests.nets.test_context import Attention, memory_of

ENGINE, ON_HOST = "recorded", "recorded-gpu-host"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonRecorder]:
    """Sweeps of `stepwise`, and of levels of `gpu` on the host, that are recorded as a whole."""
    recorder = installed(monkeypatch)
    none = Target("none").recorded
    register(replace(STEPWISE, name=ENGINE, recorded=none, recorded_sweep=captured_sweep))
    register(replace(target_on_host(ON_HOST, LEVELS), recorded_sweep=captured_sweep))
    yield recorder
    del TARGETS[ENGINE], TARGETS[ON_HOST]


def sweeps_of(net: Any) -> tuple[CapturedSweep, CapturedSweep]:
    """What records the forward and the backward sweep of the last plan."""
    *_, (plan, _) = net._plan_cache.plans.values()
    return plan.forward.recorded, plan.backward.recorded


@pytest.mark.parametrize("name", FEW)
def test_every_cell(name: str, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(shaken(EXAMPLES[name]()), engine=ENGINE)
    inputs = torch.randn(9, 3, 3, dtype=torch.float64)
    resets = torch.rand(9, 3) < 0.3
    draws = net.draw(inputs)
    for arguments in ({}, {"lengths": torch.tensor([9, 1, 4]), "resets": resets}):
        check(net, inputs, monkeypatch, calls=5, draws=draws, **arguments)
    assert recorder.replayed > 0
    with torch.no_grad():
        outputs = [net(inputs, draws=draws)[0] for _ in range(4)]
    leaves = [torch.utils._pytree.tree_leaves(one) for one in outputs]
    assert all(torch.equal(a, b) for one in leaves for a, b in zip(one, leaves[0], strict=True))


@pytest.mark.parametrize("length", [1, 3, 35])
@pytest.mark.parametrize("name", ["LSTM", "LayerNormLSTM"])
def test_kernels_of_the_gpu(name: str, length: int, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(getattr(lp, name)(3, 5), engine=ON_HOST)
    check(net, torch.randn(length, 4, 3), monkeypatch, calls=5)
    assert sweeps_of(net)[0].replayed > 0
    assert sweeps_of(net)[1].replayed > 0


def test_the_first_call_of_a_kind_records_nothing(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    for count, expected in ((4, 0), (4, 2), (4, 2), (2, 2)):
        run(net, torch.randn(9, count, 3))
        assert recorder.recorded == expected


def test_new_inputs_states_and_parameters(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    for _ in range(6):
        state = (torch.randn(4, 5), torch.randn(4, 5))
        check(net, torch.randn(9, 4, 3), monkeypatch, calls=1, state=state)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.9)
    assert recorder.replayed > 0
    before = recorder.recorded
    for _ in range(6):
        for parameter in net.parameters():
            parameter.data = parameter.data.clone() * 1.1
        check(net, torch.randn(9, 4, 3), monkeypatch, calls=1, state=state)
    assert recorder.recorded <= before + 4  # what moves is copied from then on


def test_results_of_earlier_calls_stay_as_they_are(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    kept, copies = [], []
    for _ in range(8):
        found = run(net, torch.randn(9, 4, 3))
        kept.append(found)
        copies.append([one.clone() for one in found])
    assert all(torch.equal(a, b) for pair in zip(kept, copies, strict=True) for a, b in zip(*pair, strict=True))
    storages = [one.untyped_storage()._cdata for found in kept for one in found]
    assert len(set(storages)) == len(storages)


def test_calls_that_wait_for_their_gradient(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = [torch.randn(9, 4, 3) for _ in range(6)]
    monkeypatch.setenv(SWITCH, "0")
    expected = [run(net, x) for x in inputs]
    monkeypatch.setenv(SWITCH, "1")
    for count in (1, 1, 1, 2, 3, 6, 6, 2, 1):
        leaves = [x.clone().requires_grad_() for x in inputs[:count]]
        called = [net(x) for x in leaves]  # all of them before the first gradient
        for x, (outputs, state), wanted in reversed(list(zip(leaves, called, expected, strict=False))):
            net.zero_grad(set_to_none=True)
            sum(one.cos().sum() for one in (outputs, *state)).backward()
            gradients = [parameter.grad for parameter in net.parameters()]
            found = [outputs, *state, *gradients, x.grad]
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert recorder.recorded == 2
    assert recorder.replayed > 0


@pytest.mark.parametrize("name", ["LSTM", "LayerNormLSTM"])
@pytest.mark.parametrize("engine", [ENGINE, ON_HOST])
def test_recordings_overwrite_the_results_of_others(
    engine: str, name: str, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.spoils = True
    nets = [lp.Recurrent(getattr(lp, name)(3, 5), engine=engine) for _ in range(2)]
    inputs = torch.randn(9, 4, 3)
    monkeypatch.setenv(SWITCH, "0")
    expected = [run(net, inputs) for net in nets]
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(6):
        leaves = [inputs.clone().requires_grad_() for _ in nets]
        called = [net(x) for net, x in zip(nets, leaves, strict=True)]
        for net, x, (outputs, state), wanted in zip(nets, leaves, called, expected, strict=True):
            net.zero_grad(set_to_none=True)
            sum(one.cos().sum() for one in (outputs, *state)).backward()
            found = [outputs, *state, *(parameter.grad for parameter in net.parameters()), x.grad]
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert all(sweep.replayed > 0 for net in nets for sweep in sweeps_of(net))


def test_two_backwards_and_gradients_of_gradients(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3, requires_grad=True)
    first = []
    for _ in range(5):
        outputs, _ = net(inputs)
        loss = outputs.cos().sum()
        once, again = (torch.autograd.grad(loss, inputs, retain_graph=True)[0] for _ in range(2))
        net(torch.randn(9, 4, 3))
        third = torch.autograd.grad(loss, inputs, create_graph=True)[0]
        (second,) = torch.autograd.grad(third.square().sum(), inputs)
        first = first or [once, second]
        assert all(torch.equal(one, first[0]) for one in (once, again))
        assert torch.allclose(third, first[0], atol=1e-6)
        assert torch.equal(second, first[1])
    assert recorder.replayed > 0


def test_outputs_changed_in_place_leave_the_gradient(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    for _ in range(4):
        with torch.no_grad():
            before, _ = net(inputs)
            net(inputs)[0].zero_()
            assert torch.equal(net(inputs)[0], before)
    for _ in range(4):
        wanted = [one.clone() for one in run(net, inputs)]
        outputs, _ = net(inputs)
        outputs.backward(torch.ones_like(outputs))
        for parameter in net.parameters():
            parameter.grad.zero_()
        assert all(torch.equal(a, b) for a, b in zip(run(net, inputs), wanted, strict=True))


@pytest.mark.parametrize(
    "arguments", [{"batch_first": True}, {"gradient": lp.Truncated(3)}, {"gradient": lp.Checkpointed()}]
)
def test_other_ways_to_call(
    arguments: dict[str, Any], recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(lp.Recurrent(lp.GRU(3, 5), engine=ENGINE, **arguments), torch.randn(9, 9, 3), monkeypatch, calls=5)
    assert recorder.replayed > 0


def test_autocast_and_inference_mode_take_turns(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    for _ in range(3):
        check(net, inputs, monkeypatch)
        with torch.autocast("cpu", torch.bfloat16):
            check(net, inputs, monkeypatch)
        expected = net(inputs)[0]
        for context in (torch.inference_mode, torch.no_grad):
            with context():
                assert all(torch.equal(net(inputs)[0], expected) for _ in range(2))
    assert recorder.replayed > 0


def test_transforms_of_functions(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.RNN(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    gradient = torch.func.grad(lambda x: net(x)[0].cos().sum())
    first = gradient(inputs)
    assert all(torch.allclose(gradient(inputs), first) for _ in range(3))
    several = torch.func.vmap(gradient, 0)(inputs.expand(2, 9, 4, 3))
    assert all(torch.allclose(one, first) for one in several)


def test_gradients_that_are_views_are_read_as_they_are(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    incoming = [torch.ones(()).expand(9, 4, 5), torch.randn(5, 9, 4).movedim(0, 2), torch.randn(9, 4, 6)[..., 1:]]
    first: dict[int, Tensor] = {}
    for index in (0, 1, 2) * 4:
        net.zero_grad(set_to_none=True)
        net(inputs)[0].backward(incoming[index])
        found = next(net.parameters()).grad
        assert torch.equal(found, first.setdefault(index, found))
    assert recorder.replayed > 0


def test_parameters_of_another_layout_at_the_same_address(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.RNN(5, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 5)
    for _ in range(6):
        for _ in range(3):
            check(net, inputs, monkeypatch, calls=1)
        for parameter in net.parameters():
            parameter.data = parameter.data.t() if parameter.dim() == 2 else parameter.data
    assert recorder.replayed > 0


def test_contexts_of_several_lengths(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(Attention(hidden=6), engine=ENGINE)
    inputs = torch.randn(9, 5, 3)
    contexts = [memory_of(5, size) for size in (6, 9, 4)]
    for context in contexts * 4:
        monkeypatch.setenv(SWITCH, "0")
        (expected, _), _ = net(inputs, context=context)
        monkeypatch.setenv(SWITCH, "1")
        assert torch.equal(net(inputs, context=context)[0][0], expected)
    assert recorder.replayed > 0


def test_threads_share_a_network(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    inputs = [torch.randn(9, 4, 3) for _ in range(3)]
    monkeypatch.setenv(SWITCH, "0")
    expected = [net(x)[0] for x in inputs]
    monkeypatch.setenv(SWITCH, "1")
    wrong: list[str] = []

    def work(x: Tensor, wanted: Tensor) -> None:
        try:
            for _ in range(20):
                outputs, _ = net(x)
                (gradient,) = torch.autograd.grad(outputs.sum(), net.cell.W)
                wrong.extend([] if torch.equal(outputs, wanted) and bool(gradient.isfinite().all()) else ["values"])
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert recorder.replayed > 0


def test_a_network_takes_its_recordings_with_it(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    for _ in range(4):
        run(net, torch.randn(9, 4, 3))
    assert len(recorder.kept) == 2
    outputs, _ = net(torch.randn(9, 4, 3))
    del net
    gc.collect()
    outputs.sum().backward()
    del outputs
    gc.collect()
    assert len(recorder.kept) == 0


def test_users_tensors_are_not_kept(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine=ENGINE)
    states = (torch.randn(4, 5), torch.randn(4, 5))
    inputs = torch.randn(9, 4, 3)
    counts = [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in (inputs, *states)]
    for _ in range(4):
        run(net, inputs, states)
    assert counts == [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in (inputs, *states)]


def test_what_takes_longer_than_its_launches_is_not_recorded(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.takes = 100.0
    net = lp.Recurrent(lp.GRU(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    check(net, inputs, monkeypatch, calls=4)
    assert recorder.recorded == 0
    assert recorder.measured == 2  # and not again
    assert not any(kind.memory for sweep in sweeps_of(net) for kind in sweep.kinds.values())
    text = net.explain(inputs.clone().requires_grad_())
    assert text.count("not captured in a CUDA graph: its kernels take longer than their launches") == 2


def test_long_and_large_calls_are_not_recorded(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.RNN(3, 5), engine=ENGINE)
    monkeypatch.setattr(captured_sweeps, "LONGEST", 40)
    check(net, torch.randn(41, 2, 3), monkeypatch)
    assert recorder.recorded == 0
    monkeypatch.setattr(captured_sweeps, "LONGEST", 100)
    monkeypatch.setattr(captured_sweeps, "MEMORY_BYTES", 4096)
    inputs = torch.randn(100, 4, 3)
    check(net, inputs, monkeypatch)
    assert recorder.recorded == 0
    assert "its values are more than 4 KiB" in net.explain(inputs.requires_grad_())


def test_calls_of_many_lengths_are_given_up(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "KINDS", 2)
    monkeypatch.setattr(captured_sweeps, "FIRST_ONES", 4)
    net = lp.Recurrent(lp.RNN(3, 5), engine=ENGINE)
    for length in range(2, 40):
        check(net, torch.randn(length, 4, 3), monkeypatch, calls=2)
    forward, backward = sweeps_of(net)
    assert len(forward.kinds) == len(backward.kinds) == 2
    assert forward.tried <= 5


def test_memory_of_recordings_is_bounded(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_sweeps, "MEMORY_BYTES", 10_000)
    net = lp.Recurrent(lp.RNN(3, 5), engine=ENGINE)
    for length in (20, 21, 22, 23):
        check(net, torch.randn(length, 4, 3), monkeypatch, calls=4)
    for sweep in sweeps_of(net):
        assert 0 < sum(kind.bytes for kind in sweep.kinds.values()) <= 20_000


def test_refusals_are_remembered_and_explained(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine=ENGINE)
    inputs = torch.randn(9, 4, 3)
    needed = inputs.clone().requires_grad_()
    assert net.explain(needed).count("captured in a CUDA graph by the second call of a kind, up to 4,096 steps") == 2
    check(net, inputs, monkeypatch, calls=4)
    assert net.explain(needed).count("one CUDA graph, for 1 kind of calls") == 2
    monkeypatch.setenv(SWITCH, "0")
    assert net.explain(needed).count("not captured in CUDA graphs: LEPORELLO_CUDA_GRAPHS=0") == 2
    monkeypatch.setenv(SWITCH, "1")
    recorder.refuses = "operation not permitted when stream is capturing"
    other = lp.Recurrent(lp.GRU(3, 5), engine=ENGINE)
    check(other, inputs, monkeypatch, calls=5)
    assert f"not captured in CUDA graphs: {recorder.refuses}" in other.explain(needed)


def test_nothing_is_recorded_within_another_recording(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine=ENGINE)
    recorder.busy = True
    check(net, torch.randn(9, 4, 3), monkeypatch)
    assert recorder.recorded == 0
