"""`fixed_points`: states that a step with a constant input leaves unchanged, and what happens near them.

Searched for from many starts by least squares on f(h, x) - h (Levenberg and Marquardt), as Sussillo and Barak 2013 do.
Known shortcoming: a search from starts proves nothing about points that no start led to; of a whole line of fixed
points it finds as many as there are starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.arguments import check_net
from leporello.analysis.jacobians import jacobian_at, sorted_eigenvalues
from leporello.analysis.phase_portrait import plot_phase_portrait
from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import StepByStepRun
from leporello.call.initial_state import state_before
from leporello.errors import ArgumentError
from leporello.loop.state import Tree, batch_of, described, leaves_of, rows
from leporello.nets.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, verdict_title
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAME_POINT_DISTANCE = 1e-5  # relative to the size of the points
UNIT_CIRCLE_MARGIN = 1e-6  # an |eigenvalue| this close to 1 decides nothing
PATH_STEPS = 40  # that the net is followed from each start
MAX_POINTS_PRINTED = 10
KINDS = ("stable", "saddle", "unstable", "undecided")


@dataclass(frozen=True, eq=False, repr=False)
class FixedPoints(Plottable):
    """The states h with f(h, x) = h that the search found; size is that of a state as one real vector.

    points        (count, size), those that most starts led to first
    eigenvalues   (count, size) of dh'/dh there, complex, largest first
    kinds         "stable": small changes die out; "unstable": all grow; "saddle": some grow; "undecided": none grows,
                  but some eigenvalue is on the unit circle, as far as a float can tell
    found         (count,): how many starts led there
    residuals     (count,): |f(h, x) - h|
    lost          how many starts led nowhere
    paths         (steps + 1, starts, size): where the net itself goes from the starts
    places        for each state leaf its slice of the vector
    """

    points: Tensor
    eigenvalues: Tensor
    kinds: tuple[str, ...]
    found: Tensor
    residuals: Tensor
    lost: int
    paths: Tensor
    places: dict[str, slice]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def names(self) -> list[str]:
        """A name for each element of the state vector."""
        sizes = {name: place.stop - place.start for name, place in self.places.items()}
        return [name if size == 1 else f"{name}, unit {index}" for name, size in sizes.items() for index in range(size)]

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not len(self):
            return f"no fixed point was found from {self.paths.shape[1]} starts"
        if len(self) == 1:
            return f"one fixed point: {self.kinds[0]}"
        counts = [f"{self.kinds.count(kind)} {kind}" for kind in KINDS if kind in self.kinds]
        return f"{len(self)} fixed points: " + ", ".join(counts)

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        for index in range(min(MAX_POINTS_PRINTED, len(self))):
            values = ", ".join(f"{value:.3f}" for value in self.points[index, :4].tolist())
            more = ", ..." if self.points.shape[1] > 4 else ""
            lines.append(
                f"  {self.kinds[index]:<9}  largest |eigenvalue| {self.eigenvalues[index, 0].abs().item():.3f}  "
                f"from {format_count(int(self.found[index]), 'start')}  ({values}{more})"
            )
        if len(self) > MAX_POINTS_PRINTED:
            lines.append(f"  and {len(self) - MAX_POINTS_PRINTED} more")
        if self.lost:
            lines.append(f"  {self.lost} of {self.paths.shape[1]} starts led to none")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """The points, and the ways the net goes from the starts: in the plane of the state, or of its two main axes.

        ax   axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (axes,) = axes_side_by_side(ax, 1, 5.8, 5.0)
        plot_phase_portrait(axes, self.points, self.kinds, self.paths, self.names)
        if ax is None:
            verdict_title(figure, self.verdict, 60)
        return figure


def fixed_points(
    net: Recurrent, x: Tree = None, starts: Any = 64, *, spread: float = 1.0, seed: int = 0, rounds: int = 200
) -> FixedPoints:
    """States that a step with a constant input leaves unchanged.

        h = f(h, x), searched for from every start; points found twice are one

    x        the constant input of one step and one row: (features,) or (1, features); None for a net without input
    starts   a number of random ones, or states to start from, one a row
    spread   the standard deviation of random starts
    seed     of random starts
    rounds   of the search, at most

    In float64; random numbers of the cell are drawn once.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> fixed_points(net, torch.zeros(2), starts=8).points.shape[1]
    8
    """
    run = _one_step_run(net, x, starts)
    run.check_floating_state()
    start_states = _start_states(run, net, starts, spread, seed)
    unit = torch.eye(run.state_layout.size, dtype=torch.float64, device=run.device)
    search = ZeroSearch(
        lambda h: run.step(0, h, copies=len(h))[1] - h, lambda h: jacobian_at(run, 0, h) - unit, start_states
    )
    for _ in with_progress_bar(range(rounds), "fixed points"):
        if search.finished:
            break
        search.advance()
    converged = search.converged
    points, counts, residuals = _distinct(search.points[converged].cpu(), search.residuals[converged].cpu())
    eigenvalues = points.to(torch.complex128)
    if len(points):
        eigenvalues = sorted_eigenvalues(jacobian_at(run, 0, points.to(run.device)).cpu())
    return FixedPoints(
        points=points,
        eigenvalues=eigenvalues,
        kinds=tuple(_kind(values.abs()) for values in eigenvalues),
        found=counts,
        residuals=residuals,
        lost=int((~converged).sum()),
        paths=_paths(run, start_states).cpu(),
        places=run.state_layout.slices,
    )


# ---- starts


def _one_step_run(net: Recurrent, x: Tree, starts: Any) -> StepByStepRun:
    """A run of one step on one row with input x; its `step` is called on the starts, its own state does not matter."""
    check_net(net)
    if isinstance(x, Tensor) and x.dim() == 1 and x.is_floating_point():
        x = x.unsqueeze(0)  # integers are tokens, one a row
    if (batch_of(x) or 1) > 1:
        raise ArgumentError(
            "the argument 'x' is no constant input: it has several rows.",
            came=described(x),
            expected="the input of one step and one row",
            tries="x[:1]; call once for each input",
        )
    state = rows(starts, 0) if _random_count(starts) is None else None
    return StepByStepRun.of(net, x, state, one_step=True)


def _random_count(starts: Any) -> int | None:
    """How many random starts are wanted, None where `starts` holds states."""
    if isinstance(starts, int) and not isinstance(starts, bool) and starts > 0:
        return starts
    if not batch_of(starts):
        raise ArgumentError(
            "the argument 'starts' is no number of starts and holds no states.",
            came=repr(starts),
            expected="a positive integer, or a state with a row for each start",
            tries="net.initial_state(10)",
        )
    return None


def _start_states(run: StepByStepRun, net: Recurrent, starts: Any, spread: float, seed: int) -> Tensor:
    """The states to start from, as float64 vectors (starts, size).

    starts   how many random ones, of standard deviation `spread`; or states of the user
    """
    count = _random_count(starts)
    if count is not None:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(count, run.state_layout.size, generator=generator, dtype=torch.float64)
        return (spread * noise).to(run.device)
    count = batch_of(starts) or 1
    state = state_before(net.cell, starts, count, {"device": run.device, "dtype": None})
    leaves = [leaf.detach() for leaf in leaves_of(state) if leaf.is_floating_point() or leaf.is_complex()]
    return run.state_layout.join([leaf if leaf.is_complex() else leaf.double() for leaf in leaves], count)


# ---- search


class ZeroSearch:
    """Zeros of a function, from many starts at once, by damped least squares (Levenberg and Marquardt).

    Each start has its own damping: with little of it a step is Newton's, with much of it a short step downhill on the
    square. The best points so far are `points` (starts, size).

    function   of points, (starts, size) in and out
    jacobian   of the function, (starts, size) in, (starts, size, size) out
    """

    TOLERANCE = 1e-10  # of |f|, relative to the size of the point
    DECREASE, INCREASE = 0.1, 5.0  # of the damping after a good step and after a bad one
    MIN_DAMPING, MAX_DAMPING = 1e-14, 1e12  # with the largest one nothing moves any more

    def __init__(
        self, function: Callable[[Tensor], Tensor], jacobian: Callable[[Tensor], Tensor], starts: Tensor
    ) -> None:
        self.function, self.jacobian = function, jacobian
        self.points = starts.clone()
        self.values = self._evaluate(self.points)
        self.damping = torch.full((len(starts),), 1e-3, dtype=torch.float64, device=starts.device)

    @property
    def residuals(self) -> Tensor:
        """|f| at the points, (starts,)."""
        return self.values.norm(dim=-1)

    @property
    def converged(self) -> Tensor:
        """Whether each point is a zero, (starts,)."""
        return self.residuals <= self.TOLERANCE * (1 + self.points.norm(dim=-1))

    @property
    def finished(self) -> bool:
        """Whether every start has come to a zero, or to where it does not move any more."""
        return not bool(self._moving.any())

    @property
    def _moving(self) -> Tensor:
        return ~self.converged & (self.damping < self.MAX_DAMPING) & self.residuals.isfinite()

    def advance(self) -> None:
        """One step of every start that still moves; a step that leads uphill is not taken."""
        moving = self._moving.nonzero().squeeze(-1)
        points, values, damping = self.points[moving], self.values[moving], self.damping[moving]
        new_points = points + _damped_step(self.jacobian(points), values, damping)
        new_values = self._evaluate(new_points)
        better = new_values.norm(dim=-1) < values.norm(dim=-1)  # false for NaN
        self.points[moving] = torch.where(better.unsqueeze(-1), new_points, points)
        self.values[moving] = torch.where(better.unsqueeze(-1), new_values, values)
        damping = torch.where(better, damping * self.DECREASE, damping * self.INCREASE)
        self.damping[moving] = damping.clamp(self.MIN_DAMPING, self.MAX_DAMPING)

    def _evaluate(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return self.function(points)


def _damped_step(jacobian: Tensor, values: Tensor, damping: Tensor) -> Tensor:
    """The step d that minimises |jacobian d + value|^2 + damping |d|^2, for each start."""
    unit = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    matrix = torch.cat([jacobian, damping.sqrt().reshape(-1, 1, 1) * unit], -2)
    right_side = torch.cat([-values, torch.zeros_like(values)], -1).unsqueeze(-1)
    return torch.linalg.lstsq(matrix, right_side, driver="gels").solution.squeeze(-1)


# ---- what the search found


def _distinct(points: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct points, how often each was found, and their residuals; most often found first.

    Of points closer than `SAME_POINT_DISTANCE` the one with the least residual stays.
    """
    order = residuals.argsort()
    points, residuals = points[order], residuals[order]
    free = torch.ones(len(points), dtype=torch.bool, device=points.device)
    kept, counts = [], []
    for index in range(len(points)):
        if free[index]:
            near = (points - points[index]).norm(dim=-1) <= SAME_POINT_DISTANCE * (1 + points[index].norm())
            kept.append(index)
            counts.append(int((near & free).sum()))
            free &= ~near
    times_found = torch.tensor(counts, dtype=torch.int64)
    by_count = times_found.argsort(descending=True, stable=True)
    chosen = torch.tensor(kept, dtype=torch.int64)[by_count]
    return points[chosen], times_found[by_count], residuals[chosen]


def _kind(sizes: Tensor) -> str:
    """The kind of a point, by its |eigenvalues|."""
    outside = int((sizes > 1 + UNIT_CIRCLE_MARGIN).sum())
    if outside:
        return "unstable" if outside == len(sizes) else "saddle"
    return "stable" if (sizes < 1 - UNIT_CIRCLE_MARGIN).all() else "undecided"


def _paths(run: StepByStepRun, starts: Tensor) -> Tensor:
    """The states of the net on its way from the starts, (steps + 1, starts, size)."""
    path = [starts]
    with torch.no_grad():
        for _ in range(PATH_STEPS):
            path.append(run.step(0, path[-1], copies=len(starts))[1])
    return torch.stack(path)
