"""`bias_and_variance`: the gradients of several methods beside the exact one, and what each costs.

A method may be exact; or fast, and wrong in the same way every time; or right on average, and different every time.
Known shortcoming: the result holds for these parameters, inputs and this loss; a net with a longer memory suffers more.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.gradient_samples import GradientProblem, GradientSamples
from leporello.analysis.measured_cost import peak_bytes
from leporello.analysis.progress_bar import with_progress_bar
from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.loop.state import Tree
from leporello.nets.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, bar_chart, bar_chart_height, verdict_title
from leporello.text_table import (
    enumeration,
    format_bytes,
    format_count,
    format_rate,
    format_share,
    format_short_time,
    html_table,
    plain_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CHANCE_ERRORS = 2.0  # standard errors within which a bias may be chance
COLUMNS = ("cosine", "bias", "std error", "variance", "draws", "time", "memory")


@dataclass(frozen=True)
class Measured:
    """One method beside the exact gradient g; m is the mean of its draws, and sizes are relative to |g|.

    name             of the method, its repr by default
    method           the object
    draws            how many were taken; 1 for a method that is not random, whose draws are all the same
    cosine           of the angle between m and g
    bias             |m - g| / |g|
    standard_error   of the bias: sqrt(variance / draws), the distance of m from its expectation; 0 if not random
    variance         the trace of the covariance of one draw, relative to |g| ** 2; 0 if not random
    seconds          of one gradient, forward and backward: the median without the first call
    bytes            at the peak of one gradient, beyond inputs, outputs and final state; None where nothing counts them
    rounding         a bias that the precision of the net explains
    """

    name: str
    method: Method
    draws: int
    cosine: float
    bias: float
    standard_error: float
    variance: float
    seconds: float
    bytes: int | None
    rounding: float

    @property
    def is_random(self) -> bool:
        """Whether its draws differ."""
        return self.draws > 1

    @property
    def is_biased(self) -> bool:
        """Whether its bias is more than chance and rounding explain."""
        return not self.bias <= self.rounding + MAX_CHANCE_ERRORS * self.standard_error


@dataclass(frozen=True, eq=False, repr=False)
class BiasAndVariance(Plottable):
    """The methods beside the exact gradient.

    rows         the lines of the table: one for each method, in the order of the argument
    norm         |g|, of the exact gradient
    parameters   how many numbers the gradient has
    """

    rows: tuple[Measured, ...]
    norm: float
    parameters: int
    length: int
    batch: int

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        exact = [row for row in self.rows if not row.is_biased and not row.is_random]
        unbiased = [row for row in self.rows if not row.is_biased and row.is_random]
        biased = [row for row in self.rows if row.is_biased]
        parts = []
        if exact:
            parts.append(f"{_names_are(exact)} exact")
        if unbiased:
            draws = max(row.draws for row in unbiased)
            parts.append(f"{_names_are(unbiased)} right on average, as far as {draws:,} draws tell")
        if biased:
            parts.append(f"{_names_are(biased)} biased")
        return "; ".join(parts)

    def __str__(self) -> str:
        table = plain_table([("", *COLUMNS), *map(_cells, self.rows)], indent=2)
        return f"{self.verdict}.\n{table}\n  {self._note}"

    __repr__ = __str__

    @property
    def _note(self) -> str:
        where = f"{format_count(self.length, 'step')}, {format_count(self.batch, 'row')}"
        return f"bias and variance relative to the exact gradient of {format_count(self.parameters, 'number')}; {where}"

    def _repr_html_(self) -> str:
        """The table as a notebook shows it, and the picture below it where matplotlib is installed."""
        verdict = self.verdict[:1].upper() + self.verdict[1:]
        parts = [
            f"<p>{html.escape(verdict)}.</p>",
            html_table(("", *COLUMNS), list(map(_cells, self.rows))),
            f"<p><small>{html.escape(self._note)}</small></p>",
        ]
        picture = self._repr_png_()
        if picture is not None:
            parts.append(f'<img alt="" src="data:image/png;base64,{base64.b64encode(picture).decode()}">')
        return "\n".join(parts)

    def plot(self, ax: Any = None) -> Figure:
        """Bars for each method: its bias with the standard error, the scatter of its draws, its time and its memory.

        ax   four axes of matplotlib to draw on; by default a figure of its own
        """
        names = [row.name for row in self.rows]
        figure, (bias, scatter, time, memory) = axes_side_by_side(ax, 4, 11.0, bar_chart_height(names))
        errors = [row.standard_error for row in self.rows]
        relative = "relative to the exact gradient"
        bar_chart(bias, names, [row.bias for row in self.rows], format_share, "Bias", relative, errors)
        deviations = [math.sqrt(row.variance) for row in self.rows]
        bar_chart(scatter, None, deviations, format_share, "Scatter of one draw", relative)
        bar_chart(time, None, [row.seconds for row in self.rows], format_short_time, "Time", "of one gradient")
        peaks = [math.nan if row.bytes is None else float(row.bytes) for row in self.rows]
        bar_chart(memory, None, peaks, format_bytes, "Memory", "at the peak, beyond the outputs")
        if ax is None:
            verdict_title(figure, self.verdict, 118)
        return figure


def bias_and_variance(
    net: Recurrent,
    inputs: Tree,
    loss: Callable[..., Tensor],
    methods: Sequence[Method] | Mapping[str, Method],
    draws: int = 100,
    *,
    state: Tree = None,
    targets: Tree = None,
    forcing: Any = None,
    lengths: Any = None,
    resets: Tensor | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> BiasAndVariance:
    """The gradient of each method with respect to the parameters of the cell, beside the exact one.

        g = the gradient of the mean loss by lp.Full()
        for each method:
            m = mean of the gradients of so many draws
            cosine, bias = (m . g) / (|m| |g|), |m - g| / |g|

    methods   a list of gradient methods, or a dict of them by name: {"windows": lp.Truncated(35)}
    draws     gradients of each random method; of one that is not random a few, to see that they are the same
    loss      loss(output) or, with targets, loss(output, target): (n, ...) in, n losses out, where n counts all steps
              of all rows but padding; torch's losses are switched to reduction="none". Their mean is differentiated
    targets   (length, batch, ...): what the loss compares with
    forcing   as in a call: the targets are then fed back to the net too; without it they are not
    seed      of what the methods draw; random numbers of the cell are drawn once, and are the same for all
    inputs, state, lengths, resets, steps   as in a call

    The exact gradient is computed in float64, those of the methods in the net's dtype and by its engine. The standard
    error of a bias is sqrt(variance / draws): so large is |m - g| on average where a method is right on average, and a
    bias of that size is none. A method is not random if it uses no random numbers of torch and returns the same
    gradient again; it has no standard error, and counts as one draw.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> result = bias_and_variance(net, torch.randn(20, 3, 2), lambda output: output.square().sum(-1),
    ...                            [lp.Full(), lp.Truncated(5), lp.RandomTruncated(0.9)], draws=30)
    >>> [row.is_biased for row in result.rows], [row.draws for row in result.rows]
    ([False, True, False], [1, 1, 30])
    """
    named = _named_methods(methods)
    if not isinstance(draws, int) or isinstance(draws, bool) or draws < 2:
        raise ArgumentError(
            "the argument 'draws' is no number of draws.", came=repr(draws), expected="an integer, 2 or more"
        )
    with torch.random.fork_rng(devices=_cuda_devices(net)):
        torch.manual_seed(seed)
        call = {"forcing": forcing, "lengths": lengths, "resets": resets, "steps": steps}
        problem = GradientProblem.of(net, inputs, loss, state, targets=targets, **call)
        exact = problem.exact_gradient()
        samples = {name: _samples(problem, method, draws) for name, method in named.items()}
        for name in with_progress_bar(list(named) * draws, "gradients"):  # in turns: what slows the machine slows all
            if not samples[name].is_complete:
                samples[name].draw()
        result_bytes = problem.result_bytes()
        rows = tuple(
            _measured(name, named[name], method_samples, exact, problem, result_bytes)
            for name, method_samples in samples.items()
        )
    return BiasAndVariance(rows, exact.norm().item(), exact.numel(), problem.length, problem.batch)


def _named_methods(methods: Any) -> dict[str, Method]:
    """The methods by name, checked: the names of a dict, or the repr of each of a list."""
    pairs = list(methods.items()) if isinstance(methods, Mapping) else None
    if pairs is None and isinstance(methods, Sequence) and not isinstance(methods, str):
        pairs = [(repr(method), method) for method in methods]
    if not pairs:
        raise ArgumentError(
            "the argument 'methods' holds no gradient methods.",
            came=repr(methods),
            expected="a list of them, or a dict with a name for each",
            tries="[lp.Truncated(35), lp.RandomTruncated(0.97)]",
        )
    for name, method in pairs:
        if not isinstance(method, Method) or not isinstance(name, str) or not name:
            raise ArgumentError(
                "the argument 'methods' holds something that is no gradient method."
                if not isinstance(method, Method)
                else "the argument 'methods' has a key that is no name.",
                came=repr(method) if not isinstance(method, Method) else repr(name),
                expected="objects such as lp.Truncated(35), a name for each if they are in a dict",
            )
    if len(dict(pairs)) < len(pairs):
        raise ArgumentError(
            "the argument 'methods' holds the same method twice.",
            came=", ".join(name for name, _ in pairs),
            tries="a dict with another name for each",
        )
    return dict(pairs)


def _cuda_devices(net: Any) -> list[int]:
    """The indices of the GPUs that hold parameters of the net; none where it is no network, which is checked later."""
    parameters = net.cell.parameters() if isinstance(net, Recurrent) else ()
    return sorted({parameter.device.index or 0 for parameter in parameters if parameter.is_cuda})


def _samples(problem: GradientProblem, method: Method, draws: int) -> GradientSamples:
    return GradientSamples(lambda: problem.gradients(method), draws, problem.device)


def _measured(
    name: str, method: Method, samples: GradientSamples, exact: Tensor, problem: GradientProblem, result_bytes: int
) -> Measured:
    """What one method gives beside the exact gradient, and what it costs: a line of the table.

    One more gradient is computed, to measure its memory.

    result_bytes   of outputs and final state, which are no cost of the method
    """
    norm = exact.norm().item()
    mean, variance = samples.mean, samples.variance / norm**2
    peak = peak_bytes(lambda: problem.gradients(method), problem.device)
    return Measured(
        name=name,
        method=method,
        draws=samples.draws,
        cosine=(torch.dot(mean, exact) / (mean.norm() * norm)).clamp(-1, 1).item(),
        bias=((mean - exact).norm() / norm).item(),
        standard_error=math.sqrt(variance / samples.draws),
        variance=variance,
        seconds=samples.median_seconds,
        bytes=None if peak is None else max(0, peak - result_bytes),
        rounding=max(torch.finfo(parameter.dtype).eps for parameter in problem.parameters) ** (2 / 3),
    )


def _names_are(rows: Sequence[Measured]) -> str:
    """The names of the methods and the verb."""
    return f"{enumeration([row.name for row in rows])} {'is' if len(rows) == 1 else 'are'}"


def _cells(row: Measured) -> list[str]:
    """The cells of a method in the table: its name, then those of `COLUMNS`."""
    return [
        row.name,
        _format_cosine(row.cosine),
        format_share(row.bias),
        format_share(row.standard_error) if row.is_random else "",
        format_share(row.variance) if row.is_random else "",
        f"{row.draws:,}",
        format_short_time(row.seconds),
        "" if row.bytes is None else format_bytes(row.bytes),
    ]


def _format_cosine(value: float) -> str:
    """A cosine with as many digits as tell it from 1."""
    return format_rate(value) if 0.01 <= value <= 1 else "-" if math.isnan(value) else f"{value:.2f}"
