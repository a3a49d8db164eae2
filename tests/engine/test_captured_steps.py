"""Steps recorded and replayed give the bits that they give without, whatever a call does between two of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.gpu.graphs import captured_steps, recordings
from tests.cells.examples import EXAMPLES, shaken
from tests.engine.python_recorder import PythonRecorder, installed
from tests.laws.windows import windows_of

SWITCH = "LEPORELLO_CUDA_GRAPHS"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> PythonRecorder:
    return installed(monkeypatch)


def run(net: Any, inputs: Tensor, state: Any = None, **arguments: Any) -> list[Tensor]:
    """Outputs, final states, and the gradients of parameters and inputs."""
    net.zero_grad(set_to_none=True)
    inputs = inputs.clone().requires_grad_()
    outputs, after = net(inputs, state, **arguments)
    leaves = torch.utils._pytree.tree_leaves((outputs, after))
    sum(leaf.cos().sum() for leaf in leaves if leaf.is_floating_point()).backward()
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return [*(leaf.detach() for leaf in leaves), *gradients, inputs.grad]


def check(net: Any, inputs: Tensor, monkeypatch: pytest.MonkeyPatch, calls: int = 3, **arguments: Any) -> None:
    """Several calls, recorded and not, give the same bits."""
    monkeypatch.setenv(SWITCH, "0")
    expected = run(net, inputs, **arguments)
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(calls):
        found = run(net, inputs, **arguments)
        assert len(found) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cell(name: str, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(shaken(EXAMPLES[name]()), engine="stepwise")
    inputs = torch.randn(9, 3, 3, dtype=torch.float64)
    resets = torch.rand(9, 3) < 0.3
    draws = net.draw(inputs)
    for arguments in ({}, {"lengths": torch.tensor([9, 1, 4]), "resets": resets}):
        check(net, inputs, monkeypatch, draws=draws, **arguments)
    assert recorder.replayed > 0 or "step by step" not in net.explain(inputs.clone().requires_grad_())


class Passing(lp.Cell):
    """States that only pass others on, one of them transposed, and a result that is neither."""

    def __init__(self) -> None:
        super().__init__(a=3, b=3, c=(2, 4), d=(4, 2))
        self.W = nn.Linear(3, 3)

    def forward(self, x: Tensor, state: Any) -> Any:
        a, b, c, d = state
        new = torch.tanh(self.W(a) + x)
        return (new * b, c), (b, new, d.transpose(1, 2) * 0.5, c.transpose(1, 2) + x[:, :1, None])


@pytest.mark.parametrize("length", [4, 5, 32, 33, 71])
def test_states_that_pass_others_on(length: int, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(Passing(), engine="stepwise")
    check(net, torch.randn(length, 5, 3), monkeypatch)
    assert recorder.replayed > 0


@pytest.mark.parametrize("length", [1, 3, 4, 7, 32, 35, 64, 70])
def test_windows_of_every_length(length: int, recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine="stepwise")
    for rows in (1 << 16, 44):
        with windows_of(rows):
            check(net, torch.randn(length, 4, 3), monkeypatch)
    assert (recorder.replayed > 0) == (length >= 4)


def test_the_first_call_of_a_kind_records_nothing(recorder: PythonRecorder) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="stepwise")
    run(net, torch.randn(40, 4, 3))
    assert recorder.recorded == 0
    run(net, torch.randn(40, 4, 3))
    assert recorder.recorded == 4  # of 32 and of 8 steps, forward and backward
    run(net, torch.randn(40, 2, 3))
    assert recorder.recorded == 4


def test_recordings_of_many_lengths_and_batches_stay_few(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.RNN(3, 5), engine="stepwise")
    monkeypatch.setattr(recordings, "KINDS", 2)
    lengths = range(4, 70, 3)
    for length in lengths:
        check(net, torch.randn(length, 4, 3), monkeypatch, calls=1)
    ((plan, _),) = net._plan_cache.plans.values()
    (steps,) = [timed.recorded for timed in plan.forward.program.timed if timed.recorded is not None]
    assert len(steps.kinds) == 1
    sizes = {size for kind in steps.kinds.values() for _, size in kind.recordings}
    assert sum(size & (size - 1) > 0 for size in sizes) <= captured_steps.ODD_SIZES
    assert len(sizes) <= captured_steps.ODD_SIZES + 6
    for batch in (1, 2, 3, 5):
        check(net, torch.randn(7, batch, 3), monkeypatch)
    assert len(steps.kinds) == 2


def test_parameters_that_change_and_move_are_read_anew(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.LSTM(3, 5), engine="stepwise")
    inputs = torch.randn(9, 4, 3)
    check(net, inputs, monkeypatch)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)
    check(net, inputs, monkeypatch, calls=1)
    for _ in range(3):
        for parameter in net.parameters():
            parameter.data = parameter.data.clone() * 1.5
        check(net, inputs, monkeypatch, calls=2)


def test_inference_mode_and_training_take_turns(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="stepwise")
    inputs = torch.randn(9, 4, 3)
    expected, _ = net(inputs)
    for context in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.no_grad):
        with context():
            for _ in range(2):
                assert torch.equal(net(inputs)[0], expected)
        check(net, inputs, monkeypatch)
    assert recorder.replayed > 0


def test_a_refused_capture_is_remembered_and_explained(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="stepwise")
    inputs = torch.randn(9, 4, 3)
    assert "captured in CUDA graphs of up to 32 steps" in net.explain(inputs.clone().requires_grad_())
    recorder.refuses = "operation not permitted when stream is capturing"
    check(net, inputs, monkeypatch, calls=4)
    assert recorder.replayed == 0
    assert f"not captured in CUDA graphs: {recorder.refuses}" in net.explain(inputs.clone().requires_grad_())
    recorder.refuses = None
    check(net, inputs, monkeypatch, calls=2)
    assert recorder.recorded == 0


def test_what_was_captured_is_explained(recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="stepwise")
    inputs = torch.randn(39, 4, 3)
    check(net, inputs, monkeypatch)
    assert net.explain(inputs.clone().requires_grad_()).count("captured in CUDA graphs of 32 and 7 steps") == 2
    monkeypatch.setenv(SWITCH, "0")
    assert (
        net.explain(inputs.clone().requires_grad_()).count("not captured in CUDA graphs: LEPORELLO_CUDA_GRAPHS=0") == 2
    )


def test_nothing_is_recorded_within_another_recording(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="stepwise")
    recorder.busy = True
    check(net, torch.randn(9, 4, 3), monkeypatch)
    assert recorder.replayed == 0


def test_steps_too_large_for_the_memory_are_not_recorded(
    recorder: PythonRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_steps, "MEMORY_BYTES", 64 * 1024)
    net = lp.Recurrent(lp.RNN(64, 64), engine="stepwise")
    inputs = torch.randn(40, 16, 64, requires_grad=True)
    check(net, inputs.detach(), monkeypatch)
    assert "captured in CUDA graphs of 8 steps" in net.explain(inputs)
    large = torch.randn(9, 80, 64, requires_grad=True)
    net = lp.Recurrent(lp.RNN(64, 64), engine="stepwise")
    check(net, large.detach(), monkeypatch)
    assert "not captured in CUDA graphs: 4 steps need more than 64 KiB" in net.explain(large)
