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

from leporello.analysis.carried import back
from leporello.analysis.decay import draw_decay
from leporello.analysis.exact import wide
from leporello.analysis.losses import refuse_no_loss, row_by_row
from leporello.analysis.steps import Steps
from leporello.analysis.trend import Trend, left_of, left_table, relative, trend_of
from leporello.errors import ArgumentError
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.modules.recurrent import Recurrent
from leporello.modules.words import Words
from leporello.plotting import Plottable, axes_side_by_side, heatmap, verdict_title
from leporello.rewrite.loss import unreduced
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class GradientFlow(Plottable):
    """The norms of dL(t)/dh(k): of the loss of step t with respect to the state that step k found, t >= k.

    norms    (length, length), [t, k]; the mean over rows; 0 where t < k
    leaves   the same by state leaf
    gains    (length - 1,): what the step k multiplies gradients by on their way from h(k + 1) to h(k), on average
    left     (length,): what is left so many steps back, relative to none
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
        """What it says, in a sentence."""
        return self.trend.verdict("the gradient")

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        curves = {"left": self.left}
        if len(self.leaves) > 1:
            curves |= {f"in {name}": left_of(norms) for name, norms in self.leaves.items()}
        lines += left_table(curves)
        gains = self.gains[self.gains.isfinite()].tolist()
        if gains and f"{min(gains):.2f}" != f"{max(gains):.2f}":
            lines.append(f"  one step multiplies it by {min(gains):.2f} to {max(gains):.2f}, depending on the step")
        lines.append(f"  {format_count(len(self.norms), 'loss')} over {format_count(self.batch, 'row')}, in float64")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """A heat map of all norms, and what is left against the number of steps back.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (whole, curves) = axes_side_by_side(ax, 2, 9.6, 4.3)
        title, shade = "From every loss to every earlier state", "norm, relative to the loss's own step"
        heatmap(whole, relative(self.norms), title, "state before step", "loss of step", shade)
        draw_decay(curves, self.norms, self.leaves, self.trend, "What is left of the gradient")
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
    """How much of the gradient of each step's loss reaches the state that each earlier step found.

        for t in range(length):
            for k in range(t + 1):
                norms[t, k] = |d loss(outputs[t]) / d state before step k|, the mean over rows

    loss       loss(output) or, with targets, loss(output, target), of one step: (batch, ...) in, a number per row out;
               torch's losses are told not to reduce, and several numbers per row are averaged
    targets    (length, batch, ...): what the loss compares with
    forcing    as in a call: the targets are then fed back to the net too; without it they are not
    inputs, state, lengths, resets, steps, draws   as in a call; random numbers are drawn once

    All in float64, in one sweep back that carries all losses side by side.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> flow = gradient_flow(net, torch.randn(20, 3, 2), lambda output: output.square().sum(-1))
    >>> flow.norms.shape, 0 < flow.rate < 1
    (torch.Size([20, 20]), True)
    """
    fed = {} if forcing is None else {"targets": targets, "forcing": forcing}
    run = Steps.of(net, inputs, state, lengths=lengths, resets=resets, steps=steps, draws=draws, **fed)
    run.refuse_stateless()
    run.refuse_integers("outputs")
    places = run.state_layout.places
    norms = run.states.new_zeros(run.length, run.length)
    leaves = {name: torch.zeros_like(norms) for name in places}
    for found in back(run, _at_the_outputs(run, loss, targets, Words(batch_first=net.batch_first))):
        gradients = found.values.squeeze(1)  # (losses, batch, numbers)
        last = found.first + len(gradients)
        norms[found.first : last, found.k] = run.per_row(gradients.norm(dim=-1), found.first)
        for name, place in places.items():
            sizes = gradients[..., place].norm(dim=-1)
            leaves[name][found.first : last, found.k] = run.per_row(sizes, found.first)
    norms = norms.cpu()
    leaves = {name: own.cpu() for name, own in leaves.items()}
    return GradientFlow(norms, leaves, _gains(norms), left_of(norms), trend_of(norms), run.batch)


def _gains(norms: Tensor) -> Tensor:
    """The geometric mean, over the losses behind step k, of what is found at k relative to k + 1; NaN where none is."""
    ratios = norms[1:, :-1] / norms[1:, 1:]  # [t - 1, k], for t > k
    there = torch.ones_like(ratios, dtype=torch.bool).tril() & ratios.isfinite() & (ratios > 0)
    logs = torch.where(there, ratios, 1).log().sum(0)
    return torch.where(there.any(0), (logs / there.sum(0)).exp(), torch.nan)


def _at_the_outputs(steps: Steps, loss: Callable[..., Tensor], targets: Tree, words: Words) -> Tensor:
    """The gradient of each loss with respect to the output of its step: (length, 1, batch, outputs)."""
    refuse_no_loss(loss)
    per_row = unreduced(loss)
    wanted = None if targets is None else _targets(steps, words.taken(map_leaves(wide, targets)), words)
    found = []
    for time in range(steps.length):
        floating = [leaf[time] for leaf in steps.outputs if leaf.is_floating_point() or leaf.is_complex()]
        output = steps.output_layout.joined(floating, steps.batch).requires_grad_()
        given = () if wanted is None else (map_leaves(lambda leaf: leaf[time], wanted),)  # noqa: B023
        with torch.enable_grad():
            rows = row_by_row(per_row, steps.output_tree(time, output), given, steps.batch)
            gradient = torch.zeros_like(output)
            if rows.requires_grad:
                (gradient,) = torch.autograd.grad(rows.sum(), output, materialize_grads=True)
        found.append(torch.where(steps.alive[time].unsqueeze(-1), gradient, 0))
    return torch.stack(found).unsqueeze(1)


def _targets(steps: Steps, targets: Tree, words: Words) -> Tree:
    for leaf in leaves_of(targets):
        if not isinstance(leaf, Tensor) or tuple(leaf.shape[:2]) != (steps.length, steps.batch):
            raise ArgumentError(
                "the argument 'targets' has the wrong shape.",
                came=words.came(leaf),
                expected=words.shape(steps.length, steps.batch, "..."),
            )
    return targets
