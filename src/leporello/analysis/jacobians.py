"""`jacobians`: what one step does to a small change of the state, at every step of a sequence.

J(t) = dh(t + 1)/dh(t), where h(t) is the state that step t finds, all its floating leaves as one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.progress import watched
from leporello.analysis.steps import MOST_ROWS, Steps
from leporello.loop.state import Tree
from leporello.modules.recurrent import Recurrent
from leporello.plotting import (
    GREY,
    INK,
    PALE,
    RED,
    Plottable,
    axes_side_by_side,
    label_axes,
    legend,
    level_line,
    log_axis_powers_of_ten,
    verdict_title,
)
from leporello.text_table import format_count, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 4000  # eigenvalues that are drawn


@dataclass(frozen=True, eq=False, repr=False)
class Jacobians(Plottable):
    """The derivatives of each step's next state with respect to the state it found.

    values   (length, batch, numbers, numbers), numbers those of all state leaves together: row by column
    places   where each leaf lies among the numbers
    """

    values: Tensor
    places: dict[str, slice]

    @cached_property
    def eigenvalues(self) -> Tensor:
        """(length, batch, numbers), complex, largest first."""
        found = torch.linalg.eigvals(self.values)
        return found.gather(-1, found.abs().argsort(-1, descending=True))

    @property
    def radius(self) -> Tensor:
        """The spectral radius at each step, (length, batch): the largest |eigenvalue|."""
        return self.eigenvalues[..., 0].abs()

    @cached_property
    def singular(self) -> Tensor:
        """The singular values, (length, batch, numbers), largest first: the most and the least a step can stretch."""
        return torch.linalg.svdvals(self.values)

    @property
    def verdict(self) -> str:
        """What they say, in a sentence."""
        radius, most = self.radius, self.singular[..., 0]
        mean = format_rate(radius.mean().item())
        if most.max() <= 1:
            return f"no step stretches any change of the state (mean spectral radius {mean})"
        if radius.max() <= 1:
            return f"steps stretch some changes of the state, but no spectral radius is above 1 (mean {mean})"
        return f"the spectral radius is above 1 at {(radius > 1).double().mean().item():.0%} of the steps (mean {mean})"

    def __str__(self) -> str:
        length, batch, numbers, _ = self.values.shape
        leaves = ", ".join(f"{name} {place.stop - place.start}" for name, place in self.places.items())
        lines = [f"{self.verdict}."]
        for name, values in (
            ("spectral radius", self.radius),
            ("largest singular value", self.singular[..., 0]),
            ("smallest singular value", self.singular[..., -1]),
        ):
            low, high = values.min().item(), values.max().item()
            lines.append(f"  {name:<24} from {low:.3g} to {high:.3g}")
        where = f"{format_count(length, 'step')} over {format_count(batch, 'row')}"
        lines.append(f"  {where}, {format_count(numbers, 'number')} ({leaves})")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """Singular values and spectral radius at each step, and all eigenvalues beside the unit circle.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (sizes, plane) = axes_side_by_side(ax, 2, 9.6, 4.3)
        self._draw_sizes(sizes)
        draw_eigenvalues(plane, self.eigenvalues.flatten(), "All eigenvalues, and the unit circle")
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure

    def _draw_sizes(self, ax: Axes) -> None:
        times = torch.arange(len(self.values))
        singular, radius = self.singular.mean(1), self.radius.mean(1)
        smallest = singular[:, -1].clamp_min(singular[:, 0].max() * 1e-6)
        ax.fill_between(times, smallest, singular[:, 0], color=PALE, linewidth=0, label="all singular values")
        ax.plot(times, singular.median(-1).values, color=GREY, linewidth=1.1, label="their median")
        ax.plot(times, radius, color=INK, linewidth=1.7, label="spectral radius")
        label_axes(ax, "step", "factor of one step", "How much each step stretches a change")
        log_axis_powers_of_ten(ax, [smallest, singular[:, 0], torch.ones(1)])
        level_line(ax, 1)
        legend(ax, below=True)


def draw_eigenvalues(ax: Axes, values: Tensor, title: str) -> None:
    """Complex numbers as points, with the unit circle; those outside of it in red and as crosses."""
    from matplotlib.patches import Circle

    values = values[:: max(1, len(values) // MOST_POINTS)]
    ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=GREY, linewidth=0.9))
    ax.axhline(0, color=PALE, linewidth=0.6, zorder=0)
    ax.axvline(0, color=PALE, linewidth=0.6, zorder=0)
    for outside, form, colour, size in ((False, "o", INK, 6), (True, "x", RED, 14)):
        own = values[(values.abs() > 1) == outside]
        face = {"linewidths": 0} if form == "o" else {"linewidths": 0.8}
        ax.scatter(own.real, own.imag, s=size, marker=form, color=colour, alpha=0.5, **face)
    span = 1.1 * max(1.0, values.real.abs().max().item(), values.imag.abs().max().item()) if len(values) else 1.1
    ax.set_xlim(-span, span)
    ax.set_ylim(-span, span)
    ax.set_aspect("equal")
    label_axes(ax, "real part", "imaginary part", title)


def jacobians(net: Recurrent, inputs: Tree, state: Tree = None, **arguments: Any) -> Jacobians:
    """The derivative of each step's next state with respect to the state it found, along a sequence.

        values[t] = d state after step t / d state before step t

    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    In float64; length times batch times the square of the numbers of the state are kept.

    >>> net = lp.Recurrent(lp.LSTM(2, 8))
    >>> found = jacobians(net, torch.randn(5, 3, 2))
    >>> found.values.shape, found.radius.shape
    (torch.Size([5, 3, 16, 16]), torch.Size([5, 3]))
    """
    steps = Steps.of(net, inputs, state, **arguments)
    steps.refuse_stateless()
    times = watched(range(steps.length), "jacobians")
    return Jacobians(torch.stack([jacobian_at(steps, time).cpu() for time in times]), steps.state_layout.places)


def jacobian_at(steps: Steps, time: int, state: Tensor | None = None) -> Tensor:
    """dh(t + 1)/dh(t) of every row: (rows, numbers, numbers).

    state   where to take it, (rows, numbers), as many times the batch as one likes; by default where the call went
    """
    state = steps.states[time] if state is None else state
    rows, numbers = state.shape
    unit = torch.eye(numbers, dtype=torch.float64, device=steps.device)
    found = []
    for some in unit.split(max(1, MOST_ROWS // rows)):
        many = len(some)
        place = state.detach().repeat(many, 1).requires_grad_()
        with torch.enable_grad():
            _, after = steps.step(time, place, copies=many * rows // steps.batch)
        gradient = torch.zeros_like(place)
        if after.requires_grad:
            weights = some.repeat_interleave(rows, 0)
            (gradient,) = torch.autograd.grad(after, place, weights, materialize_grads=True)
        found.append(gradient.reshape(many, rows, numbers))
    return torch.cat(found).transpose(0, 1)
