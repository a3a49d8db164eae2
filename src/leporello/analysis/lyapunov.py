"""`lyapunov`: how fast nearby states diverge or converge along a sequence, by repeated QR decompositions.

Benettin and others 1980; for driven networks Engelken, Wolf and Abbott 2023, arXiv 2006.02427. Known shortcoming: with
few steps the exponents still carry the directions they began with; `skip` leaves the first steps out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.arguments import check_range
from leporello.analysis.jacobians import jacobian_at
from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import StepByStepRun
from leporello.loop.state import Tree
from leporello.nets.recurrent import Recurrent
from leporello.plotting import (
    INK,
    LINE_STYLES,
    Plottable,
    axes_side_by_side,
    label_axes,
    legend,
    level_line,
    verdict_title,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE_NAMES = ("largest", "second", "third", "fourth")  # exponents whose running means are drawn


@dataclass(frozen=True, eq=False, repr=False)
class Lyapunov(Plottable):
    """Lyapunov exponents: the mean logarithm, per step, of the factors by which small changes of the state grow.

    exponents   (count,), largest first, the mean over rows
    by_row      (batch, count), largest first in each row
    running     (length - skip, count): the means up to each step, and over rows
    skip        steps left out at the beginning
    """

    exponents: Tensor
    by_row: Tensor
    running: Tensor
    skip: int

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        largest = self.exponents[0].item()
        if largest == -math.inf:
            return "nothing of a difference between two states is left after some steps"
        if abs(largest) * len(self.running) <= math.log(2):
            return f"nearby states keep their distance: the largest exponent is {largest:.2g} per step"
        steps = math.log(2) / abs(largest)
        every = f"{steps:.1f}" if steps < 10 else f"{steps:,.0f}"
        if largest > 0:
            return f"nearby states part: their distance doubles every {every} steps"
        return f"nearby states come together: their distance halves every {every} steps"

    def __str__(self) -> str:
        first = "  ".join(f"{value:+.3f}" for value in self.exponents[:6].tolist())
        rest = f"  ... {self.exponents[-1].item():+.3f}" if len(self.exponents) > 6 else ""
        positive = int((self.exponents > 0).sum())
        return "\n".join(
            [
                f"{self.verdict}.",
                f"  exponents per step   {first}{rest}",
                f"  {len(self.exponents)} of them, {positive} positive, over {len(self.running)} steps",
            ]
        )

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """The exponents in order, and the running means of the largest.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (spectrum, curves) = axes_side_by_side(ax, 2, 9.6, 3.8)
        finite = self.exponents[self.exponents.isfinite()]
        spectrum.plot(torch.arange(1, len(finite) + 1), finite, color=INK, linewidth=0.8, marker="o", markersize=3.5)
        label_axes(spectrum, "number of the exponent", "exponent per step", "All exponents, largest first")
        times = torch.arange(self.skip + 1, self.skip + 1 + len(self.running))
        for index, name in enumerate(CURVE_NAMES[: len(finite)]):
            width, style = 1.7 - 0.3 * index, LINE_STYLES[index]
            curves.plot(times, self.running[:, index], color=INK, linewidth=width, linestyle=style, label=name)
        label_axes(curves, "step", "exponent per step", "Their means up to each step")
        low, high = spectrum.get_ylim()
        spectrum.set_ylim(min(low, 0), max(high, 0.05 * (high - low)))
        for axes in (spectrum, curves):
            if axes.get_ylim()[0] <= 0 <= axes.get_ylim()[1]:
                level_line(axes, 0)
        if len(finite) > 1:
            legend(curves)
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure


def lyapunov(
    net: Recurrent, inputs: Tree, state: Tree = None, *, count: int | None = None, skip: int = 0, **arguments: Any
) -> Lyapunov:
    """Lyapunov exponents along a sequence.

        for t in range(length):
            Q, R = qr(J(t) Q)                              # J(t) = dh(t + 1)/dh(t)
            exponents += log |diagonal of R| / counted     # from step `skip` on; counted: the row's steps from there

    count   how many, the largest ones; all by default
    skip    steps to take before counting begins
    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    >>> net = lp.Recurrent(lp.RNN(2, 8))
    >>> lyapunov(net, torch.randn(50, 3, 2), count=3).exponents.shape
    torch.Size([3])
    """
    run = StepByStepRun.of(net, inputs, state, **arguments)
    run.check_floating_state()
    numbers = run.state_layout.size
    count = numbers if count is None else count
    check_range("count", count, 1, numbers, "the numbers in the state")
    check_range("skip", skip, 0, run.length - 1, "one less than the length")
    directions = torch.eye(numbers, count, dtype=torch.float64, device=run.device).expand(run.batch, -1, -1)
    logs = []
    for time in with_progress_bar(range(run.length), "exponents"):
        directions, stretched = torch.linalg.qr(jacobian_at(run, time) @ directions)
        growth = stretched.diagonal(dim1=-2, dim2=-1).abs().log()
        logs.append(torch.where(run.alive[time].unsqueeze(-1), growth, 0).cpu())
    steps_counted = run.alive[skip:].cpu().cumsum(0).clamp_min(1).unsqueeze(-1)
    running = torch.stack(logs[skip:]).cumsum(0) / steps_counted
    order = running[-1].mean(0).argsort(descending=True)
    by_row = running[-1].sort(-1, descending=True).values
    return Lyapunov(by_row.mean(0), by_row, running.mean(1)[:, order], skip)
