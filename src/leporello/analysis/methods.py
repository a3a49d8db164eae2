"""`bias_and_variance`: the gradients of several methods beside the exact one, and what each costs.

A method may be exact, cheap and wrong in the same way every time, or right on average and different every time. Known
shortcoming: what is found holds for these parameters, inputs and this loss; a net that remembers longer suffers more.
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

from leporello.analysis.asked import Asked
from leporello.analysis.cost import peak_bytes
from leporello.analysis.progress import watched
from leporello.analysis.sampled import Sampled
from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.loop.state import Tree
from leporello.loop.step import place_of
from leporello.modules.recurrent import Recurrent
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

BY_CHANCE = 2.0  # standard errors within which a bias may be chance
COLUMNS = ("cosine", "bias", "std error", "variance", "draws", "time", "memory")


@dataclass(frozen=True)
class Measured:
    """One method beside the exact gradient g; m is the mean of its draws, and sizes are relative to |g|.

    name             as it was given
    method           the object
    draws            how many were taken; 1 for a method without chance, whose draws are all the same
    cosine           of the angle between m and g
    bias             |m - g| / |g|
    standard_error   of the bias: sqrt(variance / draws), the distance that m has from its own mean by chance; 0 without
    variance         the trace of the covariance of one draw, relative to |g| ** 2; 0 without chance
    seconds          of one gradient, forward and back: the median, the first call left out
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
        return not self.bias <= self.rounding + BY_CHANCE * self.standard_error


@dataclass(frozen=True, eq=False, repr=False)
class BiasAndVariance(Plottable):
    """The methods beside the exact gradient.

    rows         one for each method, in the order they were given
    norm         |g|, of the exact gradient
    parameters   how many numbers it has
    """

    rows: tuple[Measured, ...]
    norm: float
    parameters: int
    length: int
    batch: int

    @property
    def verdict(self) -> str:
        """What they say, in a sentence."""
        right = [row.name for row in self.rows if not row.is_biased and not row.is_random]
        average = [row for row in self.rows if not row.is_biased and row.is_random]
        biased = [row.name for row in self.rows if row.is_biased]
        said = []
        if right:
            said.append(f"{enumeration(right)} {'is' if len(right) == 1 else 'are'} exact")
        if average:
            names, draws = enumeration([row.name for row in average]), max(row.draws for row in average)
            verb = "is" if len(average) == 1 else "are"
            said.append(f"{names} {verb} right on average, as far as {draws:,} draws tell")
        if biased:
            said.append(f"{enumeration(biased)} {'is' if len(biased) == 1 else 'are'} biased")
        return "; ".join(said)

    def __str__(self) -> str:
        table = plain_table([("", *COLUMNS), *self._cells], indent=2)
        return f"{self.verdict}.\n{table}\n  {self._note}"

    __repr__ = __str__

    @property
    def _cells(self) -> list[list[str]]:
        return [[row.name, *_cells(row)] for row in self.rows]

    @property
    def _note(self) -> str:
        where = f"{format_count(self.length, 'step')}, {format_count(self.batch, 'row')}"
        return f"bias and variance relative to the exact gradient of {format_count(self.parameters, 'number')}; {where}"

    def _repr_html_(self) -> str:
        """The table, and the picture where matplotlib is there."""
        verdict = self.verdict[:1].upper() + self.verdict[1:]
        parts = [
            f"<p>{html.escape(verdict)}.</p>",
            html_table(("", *COLUMNS), self._cells),
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
        bytes_there = [math.nan if row.bytes is None else float(row.bytes) for row in self.rows]
        bar_chart(memory, None, bytes_there, format_bytes, "Memory", "at the peak, beyond the outputs")
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

    methods   gradient methods, or a name for each: {"windows": lp.Truncated(35)}
    draws     gradients of each method that differ; of one without chance a few, to see that they are the same
    loss      loss(output) or, with targets, loss(output, target): (rows, ...) in, a number per row out, where rows are
              all steps of all rows; torch's losses are told not to reduce. The mean over them is differentiated
    targets   (length, batch, ...): what the loss compares with
    forcing   as in a call: the targets are then fed back to the net too; without it they are not
    seed      of what the methods draw; random numbers of the cell are drawn once, and are the same for all
    inputs, state, lengths, resets, steps   as in a call

    The exact gradient is computed in float64, those of the methods in the net's dtype and by its engine. The standard
    error of a bias is sqrt(variance / draws): so large is |m - g| on average where a method is right on average, and a
    bias of that size is none. A method without chance has none, and one draw suffices: it is one that asks torch for no
    random numbers and gives the same numbers again.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> found = bias_and_variance(net, torch.randn(20, 3, 2), lambda output: output.square().sum(-1),
    ...                           [lp.Full(), lp.Truncated(5), lp.RandomTruncated(0.9)], draws=30)
    >>> [row.is_biased for row in found.rows], [row.draws for row in found.rows]
    ([False, True, False], [1, 1, 30])
    """
    named = _named(methods)
    if not isinstance(draws, int) or isinstance(draws, bool) or draws < 2:
        raise ArgumentError(
            "the argument 'draws' is no number of draws.", came=repr(draws), expected="an integer, 2 or more"
        )
    cuda = sorted({parameter.device.index or 0 for parameter in _on_gpu(net)})
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        call = {"forcing": forcing, "lengths": lengths, "resets": resets, "steps": steps}
        asked = Asked.of(net, inputs, loss, state, targets=targets, **call)
        exact = _exact(asked)
        samples = {name: _sampled(asked, method, draws) for name, method in named.items()}
        for name in watched(list(named) * draws, "gradients"):  # in turns: what slows the machine slows all
            if not samples[name].over:
                samples[name].draw()
        given = asked.bytes_given()
        rows = tuple(_measured(name, named[name], sample, exact, asked, given) for name, sample in samples.items())
    return BiasAndVariance(rows, exact.norm().item(), exact.numel(), asked.length, asked.batch)


def _named(methods: Any) -> dict[str, Method]:
    """Names for the methods; each stands for one."""
    listed = list(methods.items()) if isinstance(methods, Mapping) else None
    if listed is None and isinstance(methods, Sequence) and not isinstance(methods, str):
        listed = [(repr(method), method) for method in methods]
    if not listed:
        raise ArgumentError(
            "the argument 'methods' holds no gradient methods.",
            came=repr(methods),
            expected="a list of them, or a dict with a name for each",
            tries="[lp.Truncated(35), lp.RandomTruncated(0.97)]",
        )
    for name, method in listed:
        if not isinstance(method, Method) or not isinstance(name, str) or not name:
            raise ArgumentError(
                "the argument 'methods' holds something that is no gradient method."
                if not isinstance(method, Method)
                else "the argument 'methods' has a key that is no name.",
                came=repr(method) if not isinstance(method, Method) else repr(name),
                expected="objects such as lp.Truncated(35), a name for each if they are in a dict",
            )
    if len(dict(listed)) < len(listed):
        raise ArgumentError(
            "the argument 'methods' holds the same method twice.",
            came=", ".join(name for name, _ in listed),
            tries="a dict with another name for each",
        )
    return dict(listed)


def _on_gpu(net: Any) -> list[Tensor]:
    cell = net.cell if isinstance(net, Recurrent) else torch.nn.Module()
    return [parameter for parameter in cell.parameters() if parameter.is_cuda]


def _exact(asked: Asked) -> Tensor:
    found = asked.exact()
    norm = found.norm().item()
    if not 0 < norm < math.inf:
        raise ArgumentError(
            "the exact gradient is 0: there is nothing to compare with."
            if norm == 0
            else "the exact gradient is not finite: there is nothing to compare with.",
            cell=place_of(asked.net.cell),
            expected="a loss whose gradient with respect to the parameters is a finite one",
        )
    return found


def _sampled(asked: Asked, method: Method, draws: int) -> Sampled:
    return Sampled(lambda: asked.gradients(method), draws, asked.device)


def _measured(name: str, method: Method, sample: Sampled, exact: Tensor, asked: Asked, given: int) -> Measured:
    norm = exact.norm().item()
    mean, variance = sample.mean, sample.variance / norm**2
    peak = peak_bytes(lambda: asked.gradients(method), asked.device)
    return Measured(
        name=name,
        method=method,
        draws=sample.draws,
        cosine=(torch.dot(mean, exact) / (mean.norm() * norm)).clamp(-1, 1).item(),
        bias=((mean - exact).norm() / norm).item(),
        standard_error=math.sqrt(variance / sample.draws),
        variance=variance,
        seconds=sample.median_seconds,
        bytes=None if peak is None else max(0, peak - given),
        rounding=max(torch.finfo(parameter.dtype).eps for parameter in asked.parameters) ** (2 / 3),
    )


def _cells(row: Measured) -> list[str]:
    """What the table says of a method."""
    return [
        _cosine(row.cosine),
        format_share(row.bias),
        format_share(row.standard_error) if row.is_random else "",
        format_share(row.variance) if row.is_random else "",
        f"{row.draws:,}",
        format_short_time(row.seconds),
        "" if row.bytes is None else format_bytes(row.bytes),
    ]


def _cosine(value: float) -> str:
    """With as many digits as tell it from 1."""
    return format_rate(value) if 0.01 <= value <= 1 else "-" if math.isnan(value) else f"{value:.2f}"
