"""`reach`: how much the input of each step has to do with the output of each later one.

The sizes of do(t)/dx(k) for all t >= k: how far back a network reads, whatever it was trained for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.step_by_step import StepByStepRun
from leporello.analysis.sweeps import sweep_ahead, sweep_back
from leporello.analysis.trend import (
    Trend,
    fit_trend,
    plot_share_left,
    relative_to_own_step,
    share_left,
    share_left_table,
)
from leporello.loop.state import Tree
from leporello.nets.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, heatmap, verdict_title
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Reach(Plottable):
    """The sizes of do(t)/dx(k): of the output of step t with respect to the input of step k, t >= k.

    sizes   (length, length), [t, k]: the root of the sum of the squares of all derivatives, the mean over rows
    left    (length,): at [n] the share that is left n steps back
    trend   the rate that fits them, and what follows from it
    batch   how many rows there are
    """

    sizes: Tensor
    left: Tensor
    trend: Trend
    batch: int

    @property
    def rate(self) -> float:
        """What each step back multiplies the influence by."""
        return self.trend.rate

    @property
    def horizon(self) -> float:
        """The number of steps back after which 1% is left."""
        return self.trend.horizon

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.trend.ends == 1:
            return "an input reaches the output of its own step alone"
        return self.trend.verdict("an input's influence")

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.verdict}.",
                *share_left_table({"left": self.left}),
                f"  {format_count(len(self.sizes), 'step')} over {format_count(self.batch, 'row')}, in float64",
            ]
        )

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """A heat map of all sizes, and the share that is left against the number of steps back.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (map_axes, curve_axes) = axes_side_by_side(ax, 2, 9.6, 4.3)
        title, colour_label = "From every input to every later output", "relative to the output's own step"
        heatmap(map_axes, relative_to_own_step(self.sizes), title, "input of step", "output of step", colour_label)
        title = "What is left of an input's influence"
        plot_share_left(curve_axes, self.sizes, {}, self.trend, title, source="output")
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure


def reach(net: Recurrent, inputs: Tree, state: Tree = None, **arguments: Any) -> Reach:
    """How much the input of each step has to do with the output of each later one.

        for t in range(length):
            for k in range(t + 1):
                sizes[t, k] = |d outputs[t] / d inputs[k]|, all derivatives together, the mean over rows

    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    All in float64: one sweep that carries all outputs back, or all inputs ahead, whichever are fewer numbers.

    >>> net = lp.Recurrent(lp.GRU(2, 8))
    >>> reach(net, torch.randn(20, 3, 2)).sizes.shape
    torch.Size([20, 20])
    """
    run = StepByStepRun.of(net, inputs, state, **arguments)
    run.check_floating("inputs")
    run.check_floating("outputs")
    fewer_inputs = run.input_layout.size < run.output_layout.size
    sizes = (_sizes_ahead(run) if fewer_inputs else _sizes_back(run)).cpu()
    return Reach(sizes, share_left(sizes), fit_trend(sizes), run.batch)


def _sizes_ahead(run: StepByStepRun) -> Tensor:
    """The sizes by a sweep ahead, which gives those of one output, [t, :], at each step."""
    sizes = run.states.new_zeros(run.length, run.length)
    for swept in sweep_ahead(run):
        by_row = swept.values.square().sum((1, 3)).sqrt()  # (inputs, batch)
        alive = run.alive[swept.k]
        sizes[swept.k, swept.first : swept.first + len(by_row)] = (by_row * alive).sum(-1) / alive.sum().clamp_min(1)
    return sizes


def _sizes_back(run: StepByStepRun) -> Tensor:
    """The sizes by a sweep back, which gives those of one input, [:, k], at each step."""
    sizes = run.states.new_zeros(run.length, run.length)
    outputs = run.output_layout.size
    unit = torch.eye(outputs, dtype=torch.float64, device=run.device)
    output_gradients = unit.unsqueeze(1).expand(run.length, outputs, run.batch, outputs)
    for swept in sweep_back(run, output_gradients, inputs=True):
        assert swept.inputs is not None
        by_row = swept.inputs.square().sum((1, 3)).sqrt()  # (steps of outputs, batch)
        sizes[swept.first : swept.first + len(by_row), swept.k] = run.mean_over_rows(by_row, swept.first)
    return sizes
