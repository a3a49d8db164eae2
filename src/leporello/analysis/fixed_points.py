"""`fixed_points`: states that a step with a constant input leaves unchanged, and what happens near them.

Searched for from many starts by least squares on f(h, x) - h (Levenberg and Marquardt), as Sussillo and Barak 2013 do.
Known shortcoming: a search from starts proves nothing about points that no start led to; of a continuum of fixed points
it finds as many as there are starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.arguments import check_net
from leporello.analysis.jacobians import jacobian_at, sorted_eigenvalues
from leporello.analysis.phase_portrait import plot_phase_portrait
from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import StepByStepRun
from leporello.analysis.zero_search import ZeroSearch, distinct_zeros
from leporello.call.initial_state import state_before
from leporello.errors import ArgumentError
from leporello.loop.state import Tree, batch_of, described, leaves_of, map_leaves, rows
from leporello.nets.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, verdict_title
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNIT_CIRCLE_MARGIN = 1e-6  # an |eigenvalue| this close to 1 decides nothing
PATH_STEPS = 40  # that the net is followed from each start
MAX_POINTS_PRINTED = 10
KINDS = ("stable", "saddle", "unstable", "undecided", "continuum")


@dataclass(frozen=True, eq=False, repr=False)
class FixedPoints(Plottable):
    """The states h with f(h, x) = h that the search found; size is that of a state as one real vector.

    points        (count, size), those that most starts led to first
    eigenvalues   (count, size) of dh'/dh there, complex, largest first
    kinds         "stable": small changes die out; "unstable": all grow; "saddle": some grow; "undecided": none grows,
                  but some eigenvalue is on the unit circle, as far as a float can tell; "continuum": the same for
                  a point of a continuum
    dimensions    (count,): of the continuum of fixed points which a point lies in: 1 on a line; 0 for one by itself
    found         (count,): how many starts led there
    residuals     (count,): |f(h, x) - h|
    lost          how many starts led nowhere
    paths         (steps + 1, starts, size): where the net itself goes from the starts
    places        for each state leaf its slice of the vector
    noise         what stood for the random numbers of the step, in words; None if it draws none
    """

    points: Tensor
    eigenvalues: Tensor
    kinds: tuple[str, ...]
    dimensions: Tensor
    found: Tensor
    residuals: Tensor
    lost: int
    paths: Tensor
    places: dict[str, slice]
    noise: str | None = None

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
        isolated = [kind for kind, size in zip(self.kinds, self.dimensions.tolist(), strict=True) if not size]
        found = len(self) - len(isolated)
        if not len(self):
            return f"no fixed point was found from {self.paths.shape[1]} starts"
        if not isolated:
            return self._continuum
        named = f"one fixed point: {isolated[0]}" if len(isolated) == 1 else _counted(isolated, "fixed points")
        return f"{named}; and {self._continuum}" if found else named

    @property
    def _continuum(self) -> str:
        """The points that are not by themselves, in words."""
        sizes = sorted({size for size in self.dimensions.tolist() if size})
        kinds = [kind for kind, size in zip(self.kinds, self.dimensions.tolist(), strict=True) if size]
        of = " and ".join(map(str, sizes)) + (" dimension" if sizes == [1] else " dimensions")
        growing = [f"{kinds.count(kind)} {kind}" for kind in KINDS[:-1] if kind in kinds]
        found = f"{format_count(len(kinds), 'point')} of it found"
        return f"a continuum of fixed points, of {of}: {', '.join([found, *growing])}"

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        for index in range(min(MAX_POINTS_PRINTED, len(self))):
            values = ", ".join(f"{round(value, 3) + 0.0:.3f}" for value in self.points[index, :4].tolist())  # no -0.000
            more = ", ..." if self.points.shape[1] > 4 else ""
            lines.append(
                f"  {self.kinds[index]:<9}  largest |eigenvalue| {self.eigenvalues[index, 0].abs().item():.3f}  "
                f"from {format_count(int(self.found[index]), 'start')}  ({values}{more})"
            )
        if len(self) > MAX_POINTS_PRINTED:
            lines.append(f"  and {len(self) - MAX_POINTS_PRINTED} more")
        if self.lost:
            lines.append(f"  {self.lost} of {self.paths.shape[1]} starts led to none")
        if self.noise is not None:
            lines.append(f"  {self.noise}")
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


def _counted(kinds: Sequence[str], what: str) -> str:
    return f"{len(kinds)} {what}: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)


def fixed_points(
    net: Recurrent,
    x: Tree = None,
    starts: Any = 64,
    *,
    spread: float = 1.0,
    seed: int = 0,
    rounds: int = 200,
    draws: Sequence[Tensor] | None = None,
) -> FixedPoints:
    """States that a step with a constant input leaves unchanged.

        h = f(h, x), searched for from every start; points that agree within the accuracy of the search are one

    x        the constant input of one step and one row: (features,) or (1, features), a token as a number or a tensor,
             or a tree of them; None for a net without input
    starts   a number of random ones, or states to start from, one a row
    spread   the standard deviation of random starts
    seed     of random starts
    rounds   of the search, at most
    draws    random numbers of one step and one row, as `net.draw` gives them; by default every random operator of the
             step gives its mean, and the result says so

    In float64.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> fixed_points(net, torch.zeros(2), starts=8).points.shape[1]
    8
    """
    run = _one_step_run(net, x, starts, draws)
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
    points, counts, residuals, dimensions = distinct_zeros(search)
    eigenvalues = points.to(torch.complex128)
    if len(points):
        eigenvalues = sorted_eigenvalues(jacobian_at(run, 0, points))
    of_points = zip(eigenvalues.abs(), dimensions.tolist(), strict=True)
    return FixedPoints(
        points=points.cpu(),
        eigenvalues=eigenvalues.cpu(),
        kinds=tuple(_kind(sizes, dimension) for sizes, dimension in of_points),
        dimensions=dimensions.cpu(),
        found=counts.cpu(),
        residuals=residuals.cpu(),
        lost=int((~search.converged).sum()),
        paths=_paths(run, start_states).cpu(),
        places=run.state_layout.slices,
        noise=_noise_in_words(run, draws),
    )


# ---- starts


def _one_step_run(net: Recurrent, x: Tree, starts: Any, draws: Sequence[Tensor] | None) -> StepByStepRun:
    """A run of one step on one row with input x; its `step` is called on the starts, its own state does not matter."""
    check_net(net)
    x = _with_batch_axis(x)
    if (batch_of(x) or 1) > 1:
        raise ArgumentError(
            "the argument 'x' is no constant input: it has several rows.",
            came=described(x),
            expected="the input of one step and one row",
            tries="x[:1], and call once for each input; x.unsqueeze(0), if this is one row",
        )
    state = rows(starts, 0) if _random_count(starts) is None else None
    return StepByStepRun.of(net, x, state, one_step=True, draws=draws, mean_noise=draws is None)


def _with_batch_axis(x: Tree) -> Tree:
    """The input with a batch axis of one, where it has none: vectors of floating numbers, and single numbers."""
    leaves = [torch.as_tensor(leaf) if isinstance(leaf, (int, float)) else leaf for leaf in leaves_of(x)]
    axes = [
        leaf.dim() - int(leaf.is_floating_point() or leaf.is_complex()) for leaf in leaves if isinstance(leaf, Tensor)
    ]
    if not axes or max(axes) > 0:
        return x  # integers are tokens, one a row
    return map_leaves(lambda leaf: None if leaf is None else torch.as_tensor(leaf).unsqueeze(0), x)


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


# ---- what the search found


def _noise_in_words(run: StepByStepRun, draws: Sequence[Tensor] | None) -> str | None:
    if draws is not None:
        return "the noise of the step is the draws that were passed, at every step the same"
    return "the noise of the step is at its mean" if run.has_mean_noise else None


def _kind(sizes: Tensor, dimension: int) -> str:
    """The kind of a point, by its |eigenvalues| and the dimension of the continuum it lies in."""
    outside = int((sizes > 1 + UNIT_CIRCLE_MARGIN).sum())
    if outside:
        return "unstable" if outside == len(sizes) else "saddle"
    if dimension:
        return "continuum"
    return "stable" if (sizes < 1 - UNIT_CIRCLE_MARGIN).all() else "undecided"


def _paths(run: StepByStepRun, starts: Tensor) -> Tensor:
    """The states of the net on its way from the starts, (steps + 1, starts, size)."""
    path = [starts]
    with torch.no_grad():
        for _ in range(PATH_STEPS):
            path.append(run.step(0, path[-1], copies=len(starts))[1])
    return torch.stack(path)
