"""`bias_and_variance`: exact methods are exact, biased ones by as much as their own gradient is, random ones not."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import leporello as lp
from leporello.analysis import BiasAndVariance, bias_and_variance, measured_cost
from leporello.analysis.gradient_samples import TIMED_DRAWS, GradientSamples
from leporello.analysis.measured_cost import peak_bytes
from leporello.engine import buffer_pool
from leporello.errors import ArgumentError
from leporello.gradient import Method
from tests.analysis.nets import elman, example, normal, orthogonal
from tests.errors.said import said

CPU = torch.device("cpu")


def square(output: Tensor) -> Tensor:
    return output.square().sum(-1)


def remembering(size: int = 5) -> lp.Recurrent:
    """A net whose gradients go far back."""
    return elman(0.95 * orthogonal(size))


def by_hand(net: lp.Recurrent, inputs: Tensor, method: Method) -> Tensor:
    outputs, _ = net(inputs, gradient=method)
    gradients = torch.autograd.grad(square(outputs).mean(), list(net.cell.parameters()))
    return torch.cat([gradient.reshape(-1).double() for gradient in gradients])


@dataclass(frozen=True)
class Shaky(Method):
    """Right on average: the exact gradient times 1 + noise, so that its variance is known."""

    deviation: float = 0.5

    def run(self, *arguments: Any) -> Any:
        factor = 1 + self.deviation * torch.randn(()).item()
        return [_Scaled.apply(result, factor) for result in super().run(*arguments)]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None


def test_exact_methods_are_exact_and_say_so() -> None:
    result = bias_and_variance(remembering(), normal(9, 2, 3), square, [lp.Full(), lp.Checkpointed()], 3)
    for row in result.rows:
        assert row.bias < 1e-12
        assert (row.draws, row.standard_error, row.variance, row.is_biased) == (1, 0, 0, False)
        assert row.cosine == pytest.approx(1)
    assert result.verdict == "Full() and Checkpointed() are exact"


def test_the_bias_of_a_truncated_gradient_is_its_distance_from_the_exact_one() -> None:
    net, inputs, method = remembering(), normal(9, 2, 3), lp.Truncated(2)
    result = bias_and_variance(net, inputs, square, [method], 3)
    exact, cut = by_hand(net, inputs, lp.Full()), by_hand(net, inputs, method)
    (row,) = result.rows
    assert row.bias == pytest.approx(((cut - exact).norm() / exact.norm()).item(), rel=1e-9)
    assert row.cosine == pytest.approx((cut @ exact / cut.norm() / exact.norm()).item(), rel=1e-9)
    assert result.norm == pytest.approx(exact.norm().item(), rel=1e-9)
    assert result.parameters == len(exact)
    assert row.is_biased
    assert row.draws == 1
    assert result.verdict == "Truncated(steps=2) is biased"


def test_the_moments_of_a_random_method_are_those_of_its_draws() -> None:
    net, inputs, method = remembering(), normal(9, 2, 3), lp.RandomTruncated(0.8)
    (row,) = bias_and_variance(net, inputs, square, [method], 7, seed=3).rows
    torch.manual_seed(3)
    drawn = torch.stack([by_hand(net, inputs, method) for _ in range(7)])
    exact = by_hand(net, inputs, lp.Full())
    norm = exact.norm().item()
    assert row.draws == 7
    assert row.bias == pytest.approx((drawn.mean(0) - exact).norm().item() / norm, rel=1e-9)
    assert row.variance == pytest.approx(drawn.var(0).sum().item() / norm**2, rel=1e-9)
    assert row.standard_error == pytest.approx(math.sqrt(row.variance / 7), rel=1e-12)


def test_a_known_variance_is_found() -> None:
    (row,) = bias_and_variance(remembering(), normal(3, 2, 3), square, [Shaky(0.5)], 400).rows
    assert row.variance == pytest.approx(0.25, rel=0.25)
    assert row.standard_error == pytest.approx(0.025, rel=0.15)
    assert not row.is_biased


def test_a_random_method_is_told_from_a_biased_one() -> None:
    methods = {"cut": lp.Truncated(2), "by chance": lp.RandomTruncated(0.8)}
    result = bias_and_variance(remembering(), normal(20, 4, 3), square, methods, 200)
    assert [row.name for row in result.rows] == ["cut", "by chance"]
    assert [row.is_biased for row in result.rows] == [True, False]
    assert result.verdict == "by chance is right on average, as far as 200 draws tell; cut is biased"


def test_a_random_method_that_happens_to_draw_the_same_twice_is_random_all_the_same() -> None:
    method = lp.RandomTruncated(keep=1 - 1e-12)
    (row,) = bias_and_variance(remembering(), normal(4, 1, 3), square, [method], 5).rows
    assert (row.draws, row.variance) == (5, 0)


def test_draws_are_repeated_by_a_seed_and_those_outside_go_on_as_if_nothing_had_been() -> None:
    def measured(seed: int) -> float:
        return bias_and_variance(net, inputs, square, [lp.RandomTruncated(0.7)], 4, seed=seed).rows[0].bias

    net, inputs = remembering(), normal(9, 2, 3)
    before = torch.get_rng_state()
    assert measured(1) == measured(1) != measured(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_caller_s_net_is_left_alone() -> None:
    net, inputs = example("RNN"), normal(5, 2, 3)
    bias_and_variance(net, inputs.requires_grad_(), square, [lp.Full(clip_state=0.001)], 2)
    assert inputs.grad is None
    assert all(parameter.grad is None for parameter in net.parameters())
    assert net.clipped is None


def test_random_numbers_of_the_cell_are_the_same_for_all() -> None:
    net = example("ZoneoutLSTM", train=True)
    result = bias_and_variance(net, normal(9, 3, 3), square, [lp.Full(), lp.Checkpointed(3)], 3)
    assert [row.draws for row in result.rows] == [1, 1]
    assert max(row.bias for row in result.rows) < 1e-9


def test_a_learned_initial_state_is_among_the_parameters() -> None:
    class Learned(lp.Elman):
        def __init__(self) -> None:
            super().__init__(3, 4, 2)
            self.h0 = nn.Parameter(torch.ones(4))

        def initial_state(self, batch: int, **options: Any) -> Tensor:
            return self.h0.to(options.get("dtype") or self.h0.dtype).expand(batch, 4)

    net = lp.Recurrent(Learned().double())
    full, cut = bias_and_variance(net, normal(5, 2, 3), square, [lp.Full(), lp.Truncated(5)], 2).rows
    assert full.bias < 1e-12
    assert cut.bias > 1e-3  # windows as long as the sequence cut nothing but the initial state


CALLS: dict[str, Callable[[], tuple[lp.Recurrent, dict[str, Any]]]] = {
    "one step": lambda: (example("LSTM"), {"inputs": normal(1, 1, 3)}),
    "lengths": lambda: (example("GRU"), {"inputs": normal(7, 3, 3), "lengths": [7, 1, 4]}),
    "resets": lambda: (example("RNN"), {"inputs": normal(7, 3, 3), "resets": normal(7, 3) > 1}),
    "state": lambda: (example("RNN"), {"inputs": normal(7, 3, 3), "state": normal(3, 5)}),
    "packed": lambda: (
        example("RNN"),
        {"inputs": pack_padded_sequence(normal(7, 3, 3), torch.tensor([7, 5, 2]))},
    ),
    "batch first": lambda: (
        lp.Recurrent(lp.GRU(3, 5), batch_first=True),
        {"inputs": normal(3, 7, 3).float(), "lengths": [7, 1, 4]},
    ),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 2)) for i, n in enumerate(CALLS)])
def test_every_form_of_a_call_is_exact_by_an_exact_method(name: str) -> None:
    net, arguments = CALLS[name]()
    inputs = arguments.pop("inputs")
    result = bias_and_variance(net, inputs, square, [lp.Full()], 2, **arguments)
    assert not result.rows[0].is_biased
    assert result.rows[0].bias < (1e-12 if name != "batch first" else 1e-5)


def test_targets_are_compared_with_and_fed_back_only_where_forcing_says_so() -> None:
    net, inputs, targets = example("Jordan"), normal(6, 2, 3), normal(6, 2, 2)
    loss = nn.functional.mse_loss
    forced = bias_and_variance(net, inputs, loss, [lp.Full()], 3, targets=targets, forcing=0.5)
    free = bias_and_variance(net, inputs, loss, [lp.Full()], 3, targets=targets)
    assert forced.rows[0].draws == free.rows[0].draws == 1  # one coin for all draws
    assert max(forced.rows[0].bias, free.rows[0].bias) < 1e-12
    assert forced.norm != free.norm
    outputs = net(inputs)[0]
    gradients = torch.autograd.grad(loss(outputs, targets), list(net.cell.parameters()))
    assert free.norm == pytest.approx(torch.cat([gradient.flatten() for gradient in gradients]).norm().item(), rel=1e-9)


def test_steps_past_the_end_of_a_row_do_not_count() -> None:
    net, inputs = example("RNN"), normal(7, 2, 3)
    whole = bias_and_variance(net, inputs, square, [lp.Full()], 2, lengths=[7, 3])
    outputs = net(inputs, lengths=[7, 3])[0]
    loss = (square(outputs)[:, 0].sum() + square(outputs)[:3, 1].sum()) / 10
    gradients = torch.autograd.grad(loss, list(net.cell.parameters()))
    assert whole.norm == pytest.approx(
        torch.cat([gradient.flatten() for gradient in gradients]).norm().item(), rel=1e-9
    )


def test_a_float32_net_is_compared_with_float64() -> None:
    net = lp.Recurrent(lp.RNN(3, 5))
    full, windows = bias_and_variance(net, normal(9, 2, 3).float(), square, [lp.Full(), lp.Truncated(3)], 2).rows
    assert 0 < full.bias < 1e-5
    assert not full.is_biased
    assert windows.is_biased
    assert net.cell.W.dtype == torch.float32


def test_checkpoints_take_less_memory_and_every_method_takes_time() -> None:
    net = example("LSTM")
    full, kept = bias_and_variance(net, normal(100, 4, 3), square, [lp.Full(), lp.Checkpointed()], 2).rows
    assert kept.bytes < full.bytes / 2
    assert min(full.seconds, kept.seconds) > 0


def test_where_nothing_counts_memory_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)
    result = bias_and_variance(remembering(), normal(4, 2, 3), square, [lp.Full()], 2)
    assert result.rows[0].bytes is None
    assert "memory" in str(result)
    assert result.plot()


def test_peak_bytes_are_counted_to_the_byte_and_reused_blocks_too() -> None:
    def compute() -> None:
        first = torch.empty(1000, dtype=torch.float64)
        second = torch.empty(500, dtype=torch.float64)
        del first, second
        buffer_pool.empty_from_pool((1 << 14,), torch.float64, CPU)

    before = buffer_pool.MAP_FLAGS
    assert peak_bytes(lambda: torch.empty(1000, dtype=torch.float64).clone(), CPU) == 16_000
    assert peak_bytes(compute, CPU) == 8 << 14
    assert before == buffer_pool.MAP_FLAGS


def test_the_profiler_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    peak_bytes(lambda: torch.ones(3), CPU)
    assert capfd.readouterr() == ("", "")


def test_the_median_leaves_the_first_call_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 0.0, 1.0, 0.0, 3.0, 0.0, 2.0])
    monkeypatch.setattr(measured_cost.time, "perf_counter", lambda: next(clock))
    sample = GradientSamples(lambda: [torch.ones(2)], 4, CPU)
    while not sample.is_complete:
        sample.draw()
    assert sample.median_seconds == 2


def test_a_method_without_chance_is_not_drawn_more_often_than_it_is_timed() -> None:
    calls: list[int] = []

    def compute() -> list[Tensor]:
        calls.append(0)
        return [torch.ones(2)]

    sample = GradientSamples(compute, 10_000, CPU)
    while not sample.is_complete:
        sample.draw()
    assert (len(calls), sample.draws) == (1 + TIMED_DRAWS, 1)


# ---- how it shows itself


@cache
def measured() -> BiasAndVariance:
    methods = {"full": lp.Full(), "windows": lp.Truncated(2), "chance": lp.RandomTruncated(0.8)}
    return bias_and_variance(remembering(), normal(9, 2, 3), square, methods, 5)


def test_it_prints_a_table_with_a_line_for_each_method() -> None:
    lines = str(measured()).splitlines()
    assert lines[0].startswith("full is exact; ")
    assert lines[1].split() == ["cosine", "bias", "std", "error", "variance", "draws", "time", "memory"]
    assert [line.split()[0] for line in lines[2:5]] == ["full", "windows", "chance"]
    assert lines[5] == "  bias and variance relative to the exact gradient of 57 numbers; 9 steps, 2 rows"
    assert len({len(line) for line in lines[1:5]}) == 1


def test_its_rows_are_plain_numbers() -> None:
    rows = [{**asdict(row), "method": repr(row.method)} for row in measured().rows]
    assert json.loads(json.dumps(rows))[1]["name"] == "windows"


def test_a_notebook_gets_the_table_and_the_picture() -> None:
    shown = bias_and_variance(remembering(), normal(4, 1, 3), square, {"<b>": lp.Full()}, 2)._repr_html_()
    assert shown.count("<tr>") == 2
    assert "&lt;b&gt;" in shown
    assert "data:image/png;base64," in shown


def test_bars_stand_for_the_numbers() -> None:
    result = measured()
    figure = result.plot()
    assert [axes.get_title() for axes in figure.axes] == ["Bias", "Scatter of one draw", "Time", "Memory"]
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["full", "windows", "chance"]
    assert [bar.get_width() for bar in figure.axes[0].patches] == [row.bias for row in result.rows]
    assert [bar.get_width() ** 2 for bar in figure.axes[1].patches] == pytest.approx([r.variance for r in result.rows])


def test_axes_may_be_given() -> None:
    result, figure = measured(), Figure()
    ax = figure.subplots(1, 4)
    assert result.plot(ax=ax) is figure
    assert figure._suptitle is None
    said(ArgumentError, lambda: result.plot(ax=ax[0]), "'ax' is not what this plot is drawn on", "4 matplotlib axes")


def test_a_gradient_that_overflows_is_told_and_drawn() -> None:
    @dataclass(frozen=True)
    class Broken(Shaky):
        deviation: float = math.inf

    result = bias_and_variance(remembering(), normal(4, 1, 3), square, [lp.Full(), Broken()], 3)
    assert result.rows[1].is_biased
    assert "Broken" in result.verdict
    assert str(result)
    result.plot().savefig(io.BytesIO(), format="png")


# ---- refusals


def test_methods_that_are_none() -> None:
    net, inputs = remembering(), normal(4, 2, 3)
    call = lambda methods: bias_and_variance(net, inputs, square, methods)  # noqa: E731
    for methods in ([], {}, None, "full", lp.Full(), 3):
        said(ArgumentError, lambda methods=methods: call(methods), "'methods' holds no gradient methods", "a list")
    said(ArgumentError, lambda: call([lp.Full(), "full"]), "something that is no gradient method", "'full'")
    said(ArgumentError, lambda: call([lp.Full]), "something that is no gradient method", "Full")
    said(ArgumentError, lambda: call({3: lp.Full()}), "a key that is no name", "3")
    said(ArgumentError, lambda: call([lp.Full(), lp.Full()]), "the same method twice", "a dict")


@pytest.mark.parametrize("draws", [0, 1, -3, 2.5, True, None])
def test_draws_that_are_no_number(draws: Any) -> None:
    call = lambda: bias_and_variance(remembering(), normal(4, 2, 3), square, [lp.Full()], draws)  # noqa: E731
    said(ArgumentError, call, "'draws' is no number of draws", repr(draws), "2 or more")


def test_nets_inputs_losses_and_targets_that_do_not_fit() -> None:
    net, inputs = remembering(), normal(4, 2, 3)
    call: Any = lambda net, inputs, loss, **rest: bias_and_variance(net, inputs, loss, [lp.Full()], 2, **rest)  # noqa: E731
    said(ArgumentError, lambda: call(lp.GRU(3, 4), inputs, square), "no network to look into")
    said(ArgumentError, lambda: call(net, normal(4, 2, 7), square), "wrong number of features")
    said(ArgumentError, lambda: call(net, inputs, 3), "'loss' is no function")
    said(ArgumentError, lambda: call(net, inputs, lambda o: o.mean()), "no number per row", "[8]")
    said(ArgumentError, lambda: call(net, inputs, nn.functional.mse_loss), "fails on the outputs.", "targets=")
    targets = normal(3, 2, 2)
    said(ArgumentError, lambda: call(net, inputs, nn.functional.mse_loss, targets=targets), "(4, 2, ...)", "[3, 2, 2]")


def test_gradients_with_nothing_to_compare() -> None:
    net, inputs = remembering(), normal(4, 2, 3)
    call: Any = lambda net, loss=square, **rest: bias_and_variance(net, inputs, loss, [lp.Full()], 2, **rest)  # noqa: E731
    said(ArgumentError, lambda: call(net, lambda o: 0 * square(o)), "the exact gradient is 0")
    said(ArgumentError, lambda: call(net, lambda o: square(o) / 0), "the exact gradient is not finite")
    said(ArgumentError, lambda: call(net, lambda o: square(o).detach()), "does not depend on the parameters")
    bare = lp.Recurrent(lambda x, h: (h, h + x))
    said(ArgumentError, lambda: call(bare, state=normal(2, 3)), "no parameters to learn")

    class Whole(lp.Elman):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            o, h = super().forward(x, h)
            return (o > 0).long(), h

    said(ArgumentError, lambda: call(lp.Recurrent(Whole(3, 4, 2).double())), "no floating numbers", "int64")
