"""The engine `cpu`: any size, any step, and what its kernels write."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.close import assert_close
from tests.engine.results import Plain, found

CELLS = {
    "RNN": lp.RNN,
    "GRU": lp.GRU,
    "LSTM": lp.LSTM,
    "LayerNormLSTM": lp.LayerNormLSTM,
}

pytestmark = pytest.mark.kernels


SIZES = [(1, 1), (3, 2), (17, 5), (63, 1), (64, 3)]  # hidden, inputs
FEW = {"LSTM": SIZES[:2] + SIZES[4:], "RNN": SIZES[1:4], "GRU": SIZES[2:3], "LayerNormLSTM": SIZES[2:3]}
CASES = [
    pytest.param(name, *size, marks=[] if size in FEW[name] else pytest.mark.slow)
    for name in CELLS
    for size in SIZES
    if (name, size) != ("LayerNormLSTM", (1, 1))  # the norm of one number is zero: what comes out is rounding
]


@pytest.mark.parametrize(("name", "hidden", "inputs"), CASES)
def test_any_size_batch_and_length(name: str, hidden: int, inputs: int) -> None:
    cell = CELLS[name](inputs, hidden).double()
    net = lp.Recurrent(cell, engine="cpu")
    for length, batch in ((1, 1), (2, 13), (5, 25), (3, 50)):
        x = torch.randn(length, batch, inputs, dtype=torch.float64)
        assert_close(found(net, x), found(Plain(cell), x), f"{length} steps, batch {batch}")


def test_another_batch_or_length_never_builds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lp.Recurrent(lp.GRU(3, 5), engine="cpu")
    found(net, torch.randn(4, 2, 3))
    monkeypatch.setattr("leporello.engine.cpu.runner.library_ahead", None)
    for length, batch in ((1, 1), (9, 40)):
        found(net, torch.randn(length, batch, 3))


def test_nan_and_infinity_pass_through() -> None:
    net = lp.Recurrent(lp.RNN(2, 3), engine="cpu")
    x = torch.randn(3, 4, 2)
    x[1, 2] = float("nan")
    outputs, _ = net(x)
    assert outputs[1:, 2].isnan().all()
    assert outputs[:, [0, 1, 3]].isfinite().all()


def test_generated_code_is_the_same_for_the_same_loop_and_carries_names() -> None:
    texts = []
    for _ in range(2):
        net = lp.Recurrent(lp.LSTM(3, 5), engine="cpu")
        net(torch.randn(2, 2, 3))
        ((plan, _),) = net._plan_cache.plans.values()
        kernel = next(timed.kernel for timed in plan.forward.program.timed if timed.kernel is not None)
        texts.append(kernel.runner.source.read_text())
    assert texts[0] == texts[1]
    assert "v_h_state" in texts[0]
    assert "LSTM: one inside" in texts[0]


def test_a_step_may_be_long() -> None:
    """Longer than Python may go down into itself."""

    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        for number in range(150):
            h = h * 0.9 + x if number % 2 else torch.sin(h)
        return h, h

    x, h = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    net = lp.Recurrent(step, engine="cpu")
    with torch.no_grad():
        found, _ = net(x, h)
        wanted = [h := step(each, h)[0] for each in x]
    assert_close({"o": found}, {"o": torch.stack(wanted)}, "cpu")


def written(net: lp.Recurrent, sweep: str) -> list[str]:
    """The sequences that the one kernel of a net's one plan writes."""
    ((plan, _),) = net._plan_cache.plans.values()
    (kernel,) = [timed.kernel for timed in getattr(plan, sweep).program.timed if timed.kernel is not None]
    return [buffer.name for buffer in kernel.kernel.buffers["write"]]


def test_without_gradients_kernels_write_the_outputs_and_nothing_else() -> None:
    x = torch.randn(2, 2, 3)
    with torch.no_grad():
        net = lp.Recurrent(lp.LSTM(3, 5), engine="cpu")
        net(x)
        assert len(written(net, "plain")) == 1
    net = lp.Recurrent(lp.LSTM(3, 5), engine="cpu")
    net(x)
    assert len(written(net, "forward")) > 1


@pytest.mark.parametrize(("detail", "dtype"), [*product(["lengths", "resets"], [torch.float32, torch.float64])])
def test_lengths_and_resets_run_inside_kernels(detail: str, dtype: torch.dtype) -> None:
    cell = nn.Module.to(lp.LSTM(3, 5), dtype)
    options: dict[str, Any] = {
        "lengths": {"lengths": torch.tensor([6, 1, 4])},
        "resets": {"resets": torch.rand(6, 3) < 0.4},
    }[detail]
    x = torch.randn(6, 3, 3, dtype=dtype)
    lp.check_gradients(lp.Recurrent(cell, engine="cpu"), x, **options)
