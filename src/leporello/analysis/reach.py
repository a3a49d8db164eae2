"""`reach`: how much the input of each step has to do with the output of each later one.

The sizes of do(t)/dx(k) for all t >= k: how far back a network listens, whatever it was trained for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.carried import ahead, back
from leporello.analysis.decay import draw_decay
from leporello.analysis.steps import Steps
from leporello.analysis.trend import Trend, left_of, left_table, relative, trend_of
from leporello.loop.state import Tree
from leporello.modules.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, heatmap, verdict_title
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Reach(Plottable):
    """The sizes of do(t)/dx(k): of the output of step t with respect to the input of step k, t >= k.

    sizes   (length, length), [t, k]: the root of the sum of the squares of all derivatives, the mean over rows
    left    (length,): what is left so many steps back, relative to the step itself
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
        """What it says, in a sentence."""
        if self.trend.ends == 1:
            return "an input reaches the output of its own step alone"
        return self.trend.verdict("an input's influence")

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.verdict}.",
                *left_table({"left": self.left}),
                f"  {format_count(len(self.sizes), 'step')} over {format_count(self.batch, 'row')}, in float64",
            ]
        )

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """A heat map of all sizes, and what is left against the number of steps back.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (whole, curves) = axes_side_by_side(ax, 2, 9.6, 4.3)
        title, shade = "From every input to every later output", "relative to the output's own step"
        heatmap(whole, relative(self.sizes), title, "input of step", "output of step", shade)
        draw_decay(curves, self.sizes, {}, self.trend, "What is left of an input's influence", single="output")
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
    steps = Steps.of(net, inputs, state, **arguments)
    steps.refuse_integers("inputs")
    steps.refuse_integers("outputs")
    fewer_inputs = steps.input_layout.size < steps.output_layout.size
    sizes = (_ahead(steps) if fewer_inputs else _back(steps)).cpu()
    return Reach(sizes, left_of(sizes), trend_of(sizes), steps.batch)


def _ahead(steps: Steps) -> Tensor:
    sizes = steps.states.new_zeros(steps.length, steps.length)
    for found in ahead(steps):
        each = found.values.square().sum((1, 3)).sqrt()  # (inputs, batch)
        alive = steps.alive[found.k]
        last = found.first + len(each)
        sizes[found.k, found.first : last] = (each * alive).sum(-1) / alive.sum().clamp_min(1)
    return sizes


def _back(steps: Steps) -> Tensor:
    sizes = steps.states.new_zeros(steps.length, steps.length)
    outputs = steps.output_layout.size
    unit = torch.eye(outputs, dtype=torch.float64, device=steps.device)
    every = unit.unsqueeze(1).expand(steps.length, outputs, steps.batch, outputs)
    for found in back(steps, every, inputs=True):
        assert found.inputs is not None
        each = found.inputs.square().sum((1, 3)).sqrt()  # (outputs' steps, batch)
        sizes[found.first : found.first + len(each), found.k] = steps.per_row(each, found.first)
    return sizes
