"""Steps that write to buffers, such as batch norm in training: on `reference`, as a plain loop writes to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError, EngineRefusal, LeporelloError, RowsMeet, UntraceableStep
from leporello.nets.non_finite import first_not_finite
from tests.errors.said import said

LENGTHS = [6, 1, 3, 2, 6]


class BatchNormed(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.U, self.W, self.norm = nn.Linear(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.norm(self.U(x) + self.W(h)))  # here: norm
        return h, h


class SpectralNormed(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.U, self.W = nn.Linear(3, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.U(x) + self.W(h))
        return h, h


class Counting(lp.Cell):
    """Reads a buffer before and after it writes to it, counts, and writes to parts of buffers."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("mean", torch.ones(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("memory", torch.zeros(7, 4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = self.U(x) + self.W(h)
        before = a * self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * a.abs().mean(0))
            self.memory[2:4] += a.sum(0)
        self.memory[:, 1] = 3.0
        self.count += 1
        h = torch.tanh(before / self.mean.clone() + self.memory.mean(0) / self.count)
        return h, h


class Dropping(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.W = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.W(nn.functional.dropout(h + x.sum(1, keepdim=True), 0.3)))
        self.mean.lerp_(h.detach().mean(0), 0.25)
        return h - self.mean, h


class GradientThroughBuffer(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4)
        self.W = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.W(h) + x.sum(1, keepdim=True))
        self.mean.mul_(0.5).add_(h.mean(0))
        return h - self.mean, h


CELLS = [BatchNormed, SpectralNormed, Counting]
every_cell = pytest.mark.parametrize("make", CELLS)


def normal(length: int = 6, batch: int = 5) -> Tensor:
    return torch.randn(length, batch, 3, dtype=torch.float64)


def buffers(cell: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in cell.named_buffers()}


def plain(cell: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The loop one writes by hand."""
    state, outputs = torch.zeros(inputs.shape[1], 4, dtype=inputs.dtype), []
    for x in inputs:
        output, state = cell(x, state)
        outputs.append(output)
    return torch.stack(outputs), state


def gradients(cell: nn.Module, outputs: Tensor, state: Tensor) -> list[Tensor]:
    loss = outputs.square().sum() + state.sum()
    return [gradient for gradient in torch.autograd.grad(loss, list(cell.parameters())) if gradient is not None]


@every_cell
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_outputs_gradients_and_buffers_are_those_of_a_plain_loop(make: Callable[[], lp.Cell], engine: str) -> None:
    cell = make().double()
    by_hand, net = copy.deepcopy(cell), lp.Recurrent(cell, engine=engine)
    for length, batch in ((6, 5), (1, 2), (6, 5), (3, 7)):
        inputs = normal(length, batch)
        found, wanted = net(inputs), plain(by_hand, inputs)
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
        before, after = buffers(by_hand), buffers(cell)
        assert all(torch.equal(after[name], before[name]) for name in before)
        for one, other in zip(gradients(cell, *found), gradients(by_hand, *wanted), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not any(buffer.requires_grad for buffer in cell.buffers())


@pytest.mark.parametrize("make", [*CELLS, Dropping, GradientThroughBuffer])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("with_resets", [False, True])
def test_check_gradients_compares_the_buffers_and_leaves_them_as_they_were(
    make: Callable[[], lp.Cell], lengths: Any, with_resets: bool
) -> None:
    net = lp.Recurrent(make().double())
    before = buffers(net.cell)
    resets = torch.rand(6, 5) < 0.4 if with_resets else None
    report = lp.check_gradients(net, normal(), lengths=lengths, resets=resets)
    assert report.ok, report
    assert any(name.startswith("buffer ") for name in report.outputs)
    assert all(torch.equal(value, before[name]) for name, value in buffers(net.cell).items())
    assert not any(buffer.requires_grad for buffer in net.cell.buffers())


def test_check_gradients_sees_a_buffer_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(BatchNormed().double())
    run = lp.Recurrent._run

    def late(self: Any, *args: Any, **options: Any) -> Any:
        results = run(self, *args, **options)
        self.cell.norm.running_mean += 1
        return results

    monkeypatch.setattr(lp.Recurrent, "_run", late)
    report = lp.check_gradients(net, normal(), raises=False)
    assert report.outputs["buffer norm.running_mean"] > 0.1
    assert report.outputs["buffer norm.running_var"] < 1e-9


def test_explain_says_why_and_writes_nothing() -> None:
    net = lp.Recurrent(BatchNormed())
    text = net.explain(torch.randn(6, 5, 3))
    reason = "the step writes to its buffer 'norm.running_mean', which all rows share (test_written_buffers.py, line "
    assert "engine   reference (chosen by auto; not " in text
    assert reason in text
    assert "# here: norm" in text
    said(RowsMeet, lambda: lp.Recurrent(net.cell, engine="stepwise")(torch.randn(6, 5, 3)), reason, "eval()")
    lp.fold(net, torch.randn(6, 5, 3)).text()
    first_not_finite(net, torch.full((6, 5, 3), torch.nan))
    assert net.cell.norm.num_batches_tracked == 0
    assert not net.cell.norm.running_mean.any()


@every_cell
def test_in_eval_the_step_runs_on_the_other_engines_again(make: Callable[[], lp.Cell]) -> None:
    if make is Counting:  # writes in eval too
        return
    net = lp.Recurrent(make())
    net(torch.randn(6, 5, 3))
    net.engine = "stepwise"
    net.eval()
    before, inputs = buffers(net.cell), torch.randn(6, 1, 3)
    torch.testing.assert_close(net(inputs)[0], plain(net.cell, inputs)[0])
    assert all(torch.equal(value, before[name]) for name, value in buffers(net.cell).items())
    net.train()
    with pytest.raises(RowsMeet):
        net(torch.randn(6, 5, 3))


def test_one_step_writes_once() -> None:
    net = lp.Recurrent(BatchNormed())
    net.step(torch.randn(5, 3), torch.zeros(5, 4))
    with torch.no_grad():
        net.step(torch.randn(5, 3), torch.zeros(5, 4))
    with torch.inference_mode():
        net.step(torch.randn(5, 3), torch.zeros(5, 4))
    assert net.cell.norm.num_batches_tracked == 3


@pytest.mark.parametrize("method", [lp.Checkpointed(), lp.RTRL(), lp.UORO(), lp.Truncated(4, every=2)], ids=repr)
def test_methods_that_run_steps_again_are_refused_by_name(method: Any) -> None:
    net = lp.Recurrent(BatchNormed(), gradient=method)
    what = f"the gradient method {method!r} runs steps more than once"
    said(EngineRefusal, lambda: net(torch.randn(6, 5, 3)), "buffer 'norm.running_mean'", what, "lp.Full()")
    assert net.cell.norm.num_batches_tracked == 0
    with torch.no_grad():
        net(torch.randn(6, 5, 3))
    assert net.cell.norm.num_batches_tracked == 6


@pytest.mark.parametrize("method", [lp.Truncated(2), lp.RandomTruncated(), lp.Full(clip_state=0.1)], ids=repr)
def test_methods_of_one_sweep_write_once_a_step(method: Any) -> None:
    net = lp.Recurrent(BatchNormed(), gradient=method)
    net(torch.randn(6, 5, 3))[0].sum().backward()
    assert net.cell.norm.num_batches_tracked == 6


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when it imports its compiler
@pytest.mark.parametrize(
    "call",
    [
        lambda net, x: torch.func.vmap(lambda y: net(y)[0])(torch.stack([x, x])),
        lambda net, x: torch.func.jvp(lambda y: net(y)[0], (x,), (x,)),
        lambda net, x: torch.export.export(net, (x,), strict=False),
        lambda net, x: torch.compile(net, backend="eager", fullgraph=True)(x),
        lp.quantise,
    ],
    ids=["vmap", "jvp", "export", "compile", "quantise"],
)
def test_what_cannot_write_at_every_step_refuses(call: Callable[[Any, Tensor], Any]) -> None:
    net = lp.Recurrent(BatchNormed())
    with pytest.raises(Exception, match=r"the step writes to its buffer 'norm\.running_mean' at every step"):
        call(net, torch.randn(6, 5, 3))
    assert net.cell.norm.num_batches_tracked == 0


def test_batch_norm_refuses_one_row_at_every_call() -> None:
    net = lp.Recurrent(BatchNormed())
    for batch in (1, 5, 1):
        before = buffers(net.cell)
        if batch == 1:
            said(ArgumentError, lambda: net(torch.randn(6, 1, 3)), "Expected more than 1 value per channel")
            assert all(torch.equal(value, before[name]) for name, value in buffers(net.cell).items())
        else:
            net(torch.randn(6, batch, 3))


def test_other_steps_run_one_row() -> None:
    cell = Counting().double()
    by_hand, net = copy.deepcopy(cell), lp.Recurrent(cell)
    for batch in (5, 1, 2, 1):
        inputs = normal(3, batch)
        assert torch.equal(net(inputs)[0], plain(by_hand, inputs)[0])


def test_a_call_that_fails_writes_nothing() -> None:
    net = lp.Recurrent(BatchNormed())
    with pytest.raises(LeporelloError):
        net(normal())
    assert net.cell.norm.num_batches_tracked == 0
    with pytest.raises(LeporelloError):
        net(torch.randn(6, 5, 8))
    assert net.cell.norm.num_batches_tracked == 0
    assert not net.cell.norm.running_mean.any()


class Viewed(BatchNormed):
    """Reads a written buffer by a view that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.views = [self.norm.running_mean[1:]]

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        output, h = super().forward(x, h)
        return output + self.views[0].sum(), h


def test_a_view_that_the_cell_keeps_of_a_written_buffer_is_refused() -> None:
    net = lp.Recurrent(Viewed())
    said(UntraceableStep, lambda: net(torch.randn(6, 5, 3)), "the buffer 'norm.running_mean', whose memory '", "views")
    net.eval()
    net(torch.randn(6, 5, 3))


def test_a_buffer_of_two_modules_is_written_by_both() -> None:
    class Tied(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.U, self.first, self.second = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)
            self.second.running_mean = self.first.running_mean

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.second(2 * self.first(self.U(x) + h) + 1))
            return h, h

    cell, inputs = Tied(), torch.randn(6, 5, 3)
    by_hand, net = copy.deepcopy(cell), lp.Recurrent(cell)
    for _ in range(2):
        torch.testing.assert_close(net(inputs)[0], plain(by_hand, inputs)[0])
        torch.testing.assert_close(cell.first.running_mean, by_hand.second.running_mean)


@pytest.mark.parametrize("name", ["net.onnx", "net.c"])
def test_an_export_is_refused_and_writes_nothing(name: str, tmp_path: Path) -> None:
    net = lp.Recurrent(BatchNormed())
    said(
        EngineRefusal,
        lambda: lp.export(net, tmp_path / name, example=torch.randn(6, 5, 3)),
        "the step writes to its buffer 'norm.running_mean'",
    )
    assert net.cell.norm.num_batches_tracked == 0


def test_functional_call_writes_to_the_buffers_that_it_is_passed() -> None:
    net = lp.Recurrent(BatchNormed())
    own = {name: value.clone() for name, value in net.state_dict().items()}
    torch.func.functional_call(net, own, (torch.randn(6, 5, 3),))
    assert own["cell.norm.num_batches_tracked"] == 6
    assert net.cell.norm.num_batches_tracked == 0
