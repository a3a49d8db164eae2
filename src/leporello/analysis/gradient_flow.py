"""`gradient_flow`: how much of the gradient of each loss reaches each earlier state.

The norms of dL(t)/dh(k) for all t >= k: where gradients vanish, where they explode, and how fast. Exact gradients,
whatever the net's own gradient method is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.arguments import check_loss, check_targets, loss_per_row, to_float64
from leporello.analysis.step_by_step import StepByStepRun
from leporello.analysis.sweeps import sweep_back
from leporello.analysis.trend import (
    Trend,
    fit_trend,
    plot_share_left,
    relative_to_own_step,
    share_left,
    share_left_table,
)
from leporello.call.inputs import ArgumentAxes
from leporello.loop.state import Tree, map_leaves
from leporello.nets.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, heatmap, verdict_title
from leporello.rewrite.add_loss import unreduced
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class GradientFlow(Plottable):
    """The norms of dL(t)/dh(k): of the loss of step t with respect to the state before step k, t >= k.

    norms    (length, length), [t, k]; the mean over rows; 0 where t < k
    leaves   the same by state leaf
    gains    (length - 1,): what the step k multiplies gradients by on their way from h(k + 1) to h(k), on average
    left     (length,): at [n] the share that is left n steps back
    trend    the rate that fits them, and what follows from it
    batch    how many rows there are
    """

    norms: Tensor
    leaves: dict[str, Tensor]
    gains: Tensor
    left: Tensor
    trend: Trend
    batch: int

    @property
    def rate(self) -> float:
        """What each step back multiplies the gradient by."""
        return self.trend.rate

    @property
    def horizon(self) -> float:
        """The number of steps back after which 1% is left."""
        return self.trend.horizon

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return self.trend.verdict("the gradient")

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        curves = {"left": self.left}
        if len(self.leaves) > 1:
            curves |= {f"in {name}": share_left(norms) for name, norms in self.leaves.items()}
        lines += share_left_table(curves)
        gains = self.gains[self.gains.isfinite()].tolist()
        if gains and f"{min(gains):.2f}" != f"{max(gains):.2f}":
            lines.append(f"  one step multiplies it by {min(gains):.2f} to {max(gains):.2f}, depending on the step")
        lines.append(f"  {format_count(len(self.norms), 'loss')} over {format_count(self.batch, 'row')}, in float64")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """A heat map of all norms, and the share that is left against the number of steps back.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (map_axes, curve_axes) = axes_side_by_side(ax, 2, 9.6, 4.3)
        title, colour_label = "From every loss to every earlier state", "norm, relative to the loss's own step"
        norms = relative_to_own_step(self.norms)
        heatmap(map_axes, norms, title, "state before step", "loss of step", colour_label)
        plot_share_left(curve_axes, self.norms, self.leaves, self.trend, "What is left of the gradient")
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure


def gradient_flow(
    net: Recurrent,
    inputs: Tree,
    loss: Callable[..., Tensor],
    state: Tree = None,
    *,
    targets: Tree = None,
    forcing: Any = None,
    lengths: Any = None,
    resets: Tensor | None = None,
    steps: int | None = None,
    draws: Sequence[Tensor] | None = None,
) -> GradientFlow:
    """How much of the gradient of each step's loss reaches the state before each earlier step.

        for t in range(length):
            for k in range(t + 1):
                norms[t, k] = |d loss(outputs[t]) / d state before step k|, the mean over rows

    loss       loss(output) or, with targets, loss(output, target), of one step: (batch, ...) in, a number per row out;
               torch's losses are switched to reduction="none", and several numbers per row are averaged
    targets    (length, batch, ...): what the loss compares with
    forcing    as in a call: the targets are then fed back to the net too; without it they are not
    inputs, state, lengths, resets, steps, draws   as in a call; random numbers are drawn once

    All in float64, in one sweep back that carries all losses side by side.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> flow = gradient_flow(net, torch.randn(20, 3, 2), lambda output: output.square().sum(-1))
    >>> flow.norms.shape, 0 < flow.rate < 1
    (torch.Size([20, 20]), True)
    """
    fed_back = {} if forcing is None else {"targets": targets, "forcing": forcing}
    run = StepByStepRun.of(net, inputs, state, lengths=lengths, resets=resets, steps=steps, draws=draws, **fed_back)
    run.check_floating_state()
    run.check_floating("outputs")
    output_gradients = _output_gradients(run, loss, targets, ArgumentAxes(batch_first=net.batch_first))
    slices = run.state_layout.slices
    norms = run.states.new_zeros(run.length, run.length)
    leaves = {name: torch.zeros_like(norms) for name in slices}
    for swept in sweep_back(run, output_gradients):
        gradients = swept.values.squeeze(1)  # (losses, batch, numbers)
        losses = slice(swept.first, swept.first + len(gradients))
        norms[losses, swept.k] = run.mean_over_rows(gradients.norm(dim=-1), swept.first)
        for name, place in slices.items():
            leaf_norms = gradients[..., place].norm(dim=-1)
            leaves[name][losses, swept.k] = run.mean_over_rows(leaf_norms, swept.first)
    norms = norms.cpu()
    leaves = {name: leaf_norms.cpu() for name, leaf_norms in leaves.items()}
    return GradientFlow(norms, leaves, _gains(norms), share_left(norms), fit_trend(norms), run.batch)


def _output_gradients(run: StepByStepRun, loss: Callable[..., Tensor], targets: Tree, axes: ArgumentAxes) -> Tensor:
    """The gradient of each loss with respect to the output of its step: (length, 1, batch, outputs)."""
    check_loss(loss)
    unreduced_loss = unreduced(loss)
    if targets is not None:
        check_targets(targets, run.length, run.batch, axes)
        targets = axes.to_time_first(map_leaves(to_float64, targets))
    gradients = []
    for time in range(run.length):
        floating = [leaf[time] for leaf in run.outputs if leaf.is_floating_point() or leaf.is_complex()]
        output = run.output_layout.join(floating, run.batch).requires_grad_()
        target = () if targets is None else (map_leaves(lambda leaf: leaf[time], targets),)  # noqa: B023
        with torch.enable_grad():
            losses = loss_per_row(unreduced_loss, run.output_tree(time, output), target, run.batch)
            gradient = torch.zeros_like(output)
            if losses.requires_grad:
                (gradient,) = torch.autograd.grad(losses.sum(), output, materialize_grads=True)
        gradients.append(torch.where(run.alive[time].unsqueeze(-1), gradient, 0))
    return torch.stack(gradients).unsqueeze(1)


def _gains(norms: Tensor) -> Tensor:
    """The geometric mean, over the losses after step k, of the norm at k relative to k + 1; NaN where there is none."""
    ratios = norms[1:, :-1] / norms[1:, 1:]  # [t - 1, k], for t > k
    usable = torch.ones_like(ratios, dtype=torch.bool).tril() & ratios.isfinite() & (ratios > 0)
    logs = torch.where(usable, ratios, 1).log().sum(0)
    return torch.where(usable.any(0), (logs / usable.sum(0)).exp(), torch.nan)
