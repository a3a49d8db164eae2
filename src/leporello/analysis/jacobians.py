"""`jacobians`: what one step does to a small change of the state, at every step of a sequence.

J(t) = dh(t + 1)/dh(t), where h(t) is the state before step t, all its floating leaves as one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import MAX_ROWS_AT_ONCE, StepByStepRun
from leporello.loop.state import Tree
from leporello.nets.recurrent import Recurrent
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

MAX_EIGENVALUES_DRAWN = 4000


@dataclass(frozen=True, eq=False, repr=False)
class Jacobians(Plottable):
    """The derivatives of each step's next state with respect to the state before it.

    values   (length, batch, size, size), size that of all state leaves as one vector: at [t, row, i, j] the derivative
             of element i after step t with respect to element j before it
    places   for each state leaf its slice of the vector
    """

    values: Tensor
    places: dict[str, slice]

    @cached_property
    def eigenvalues(self) -> Tensor:
        """(length, batch, size), complex, largest first."""
        return sorted_eigenvalues(self.values)

    @property
    def radius(self) -> Tensor:
        """The spectral radius at each step, (length, batch): the largest |eigenvalue|."""
        return self.eigenvalues[..., 0].abs()

    @cached_property
    def singular(self) -> Tensor:
        """The singular values, (length, batch, size), largest first: the most and the least a step can stretch."""
        return torch.linalg.svdvals(self.values)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
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
        figure, (sizes_axes, plane_axes) = axes_side_by_side(ax, 2, 9.6, 4.3)
        self._plot_sizes(sizes_axes)
        _plot_eigenvalues(plane_axes, self.eigenvalues.flatten(), "All eigenvalues, and the unit circle")
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure

    def _plot_sizes(self, ax: Axes) -> None:
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


def _plot_eigenvalues(ax: Axes, values: Tensor, title: str) -> None:
    """Draw complex numbers as points, with the unit circle; those outside of it as red crosses."""
    from matplotlib.patches import Circle

    values = values[:: max(1, len(values) // MAX_EIGENVALUES_DRAWN)]
    ax.add_patch(Circle((0, 0), 1, fill=False, edgecolor=GREY, linewidth=0.9))
    ax.axhline(0, color=PALE, linewidth=0.6, zorder=0)
    ax.axvline(0, color=PALE, linewidth=0.6, zorder=0)
    for outside, marker, colour, size, line_width in ((False, "o", INK, 6, 0.0), (True, "x", RED, 14, 0.8)):
        points = values[(values.abs() > 1) == outside]
        ax.scatter(points.real, points.imag, s=size, marker=marker, color=colour, alpha=0.5, linewidths=line_width)
    span = 1.1 * max(1.0, values.real.abs().max().item(), values.imag.abs().max().item()) if len(values) else 1.1
    ax.set_xlim(-span, span)
    ax.set_ylim(-span, span)
    ax.set_aspect("equal")
    label_axes(ax, "real part", "imaginary part", title)


def jacobians(net: Recurrent, inputs: Tree, state: Tree = None, **arguments: Any) -> Jacobians:
    """The derivative of each step's next state with respect to the state before it, along a sequence.

        values[t] = d state after step t / d state before step t

    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    In float64; the result takes length * batch * size ** 2 numbers of memory, size that of the state.

    >>> net = lp.Recurrent(lp.LSTM(2, 8))
    >>> result = jacobians(net, torch.randn(5, 3, 2))
    >>> result.values.shape, result.radius.shape
    (torch.Size([5, 3, 16, 16]), torch.Size([5, 3]))
    """
    run = StepByStepRun.of(net, inputs, state, **arguments)
    run.check_floating_state()
    times = with_progress_bar(range(run.length), "jacobians")
    return Jacobians(torch.stack([jacobian_at(run, time).cpu() for time in times]), run.state_layout.slices)


def jacobian_at(run: StepByStepRun, time: int, state: Tensor | None = None) -> Tensor:
    """dh(t + 1)/dh(t) of every row: (rows, size, size), size that of the state as one vector.

    state   where to evaluate it, (rows, size), rows any multiple of the batch; by default the state before the step
    """
    state = run.states[time] if state is None else state
    rows, numbers = state.shape
    unit = torch.eye(numbers, dtype=torch.float64, device=run.device)
    blocks = []
    for directions in unit.split(max(1, MAX_ROWS_AT_ONCE // rows)):
        count = len(directions)
        place = state.detach().repeat(count, 1).requires_grad_()
        with torch.enable_grad():
            _, after = run.step(time, place, copies=count * rows // run.batch)
        gradient = torch.zeros_like(place)
        if after.requires_grad:
            weights = directions.repeat_interleave(rows, 0)
            (gradient,) = torch.autograd.grad(after, place, weights, materialize_grads=True)
        blocks.append(gradient.reshape(count, rows, numbers))
    return torch.cat(blocks).transpose(0, 1)


def sorted_eigenvalues(matrices: Tensor) -> Tensor:
    """The eigenvalues of matrices (..., size, size), complex, largest absolute value first: (..., size)."""
    values = torch.linalg.eigvals(matrices)
    return values.gather(-1, values.abs().argsort(-1, descending=True))
