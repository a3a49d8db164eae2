"""`fixed_points`: states that a step with a constant input leaves as they are, and what happens near them.

Found from many starts by least squares on f(h, x) - h, Newton's step where that goes well and a short one downhill
where not (Levenberg and Marquardt), as Sussillo and Barak 2013 look for them. Known shortcoming: a search from starts
proves nothing about points that no start led to; of a whole line of fixed points it finds as many as there are starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.jacobians import jacobian_at
from leporello.analysis.portrait import draw_points
from leporello.analysis.progress import watched
from leporello.analysis.refusals import refuse_other_nets
from leporello.analysis.searching import Search
from leporello.analysis.steps import Steps
from leporello.errors import ArgumentError
from leporello.loop.state import Tree, batch_of, described, leaves_of, rows
from leporello.modules.beginning import state_before
from leporello.modules.recurrent import Recurrent
from leporello.plotting import Plottable, axes_side_by_side, verdict_title
from leporello.text_table import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAME = 1e-5  # points nearer to each other than this, relative to their size, are one
MARGIN = 1e-6  # an |eigenvalue| so near to 1 decides nothing
PATH = 40  # steps that the net is followed from each start
SHOWN = 10  # points that are printed
KINDS = ("stable", "saddle", "unstable", "undecided")


@dataclass(frozen=True, eq=False, repr=False)
class FixedPoints(Plottable):
    """The states h with f(h, x) = h that were found.

    points        (count, numbers), those that most starts led to first
    eigenvalues   (count, numbers) of dh'/dh there, complex, largest first
    kinds         "stable": small changes die out; "unstable": all grow; "saddle": some grow; "undecided": none grows,
                  but some eigenvalue lies on the unit circle, as far as a float can tell
    found         (count,): how many starts led there
    residuals     (count,): |f(h, x) - h|
    lost          how many starts led nowhere
    paths         (steps + 1, starts, numbers): where the net itself goes from the starts
    places        where each leaf lies among the numbers
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
        """A name for each number of the state."""
        sizes = {name: place.stop - place.start for name, place in self.places.items()}
        return [name if size == 1 else f"{name}, unit {index}" for name, size in sizes.items() for index in range(size)]

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if not len(self):
            return f"no fixed point was found from {self.paths.shape[1]} starts"
        counts = {kind: self.kinds.count(kind) for kind in KINDS if kind in self.kinds}
        if len(self) == 1:
            return f"one fixed point: {self.kinds[0]}"
        return f"{len(self)} fixed points: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        for index in range(min(SHOWN, len(self))):
            values = ", ".join(f"{value:.3f}" for value in self.points[index, :4].tolist())
            more = ", ..." if self.points.shape[1] > 4 else ""
            lines.append(
                f"  {self.kinds[index]:<9}  largest |eigenvalue| {self.eigenvalues[index, 0].abs().item():.3f}  "
                f"from {format_count(int(self.found[index]), 'start')}  ({values}{more})"
            )
        if len(self) > SHOWN:
            lines.append(f"  and {len(self) - SHOWN} more")
        if self.lost:
            lines.append(f"  {self.lost} of {self.paths.shape[1]} starts led to none")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """The points, and the ways the net goes from the starts: in the plane of the state, or of its two main axes.

        ax   axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (axes,) = axes_side_by_side(ax, 1, 5.8, 5.0)
        draw_points(axes, self.points, self.kinds, self.paths, self.names)
        if ax is None:
            verdict_title(figure, self.verdict, 60)
        return figure


def fixed_points(
    net: Recurrent, x: Tree = None, starts: Any = 64, *, spread: float = 1.0, seed: int = 0, rounds: int = 200
) -> FixedPoints:
    """States that a step with a constant input leaves as they are.

        h = f(h, x), looked for from every start; points found twice are one

    x        the constant input of one step and one row: (features,) or (1, features); None for a net without input
    starts   a number of random ones, or states to start from, one a row
    spread   the standard deviation of random starts
    rounds   of the search, at most

    In float64; random numbers are drawn once.

    >>> net = lp.Recurrent(lp.Elman(2, 8, 1))
    >>> fixed_points(net, torch.zeros(2), starts=8).points.shape[1]
    8
    """
    run = _one_step(net, x, starts)
    run.refuse_stateless()
    at = _starts(run, net, starts, spread, seed)
    search = Search(lambda h: run.step(0, h, copies=len(h))[1] - h, lambda h: _less_one(jacobian_at(run, 0, h)), at)
    for _ in watched(range(rounds), "fixed points"):
        if search.over:
            break
        search.advance()
    points, found, residuals = _merged(search.places[search.done].cpu(), search.sizes[search.done].cpu())
    eigenvalues = _eigenvalues(run, points)
    return FixedPoints(
        points=points,
        eigenvalues=eigenvalues,
        kinds=tuple(_kind(values.abs()) for values in eigenvalues),
        found=found,
        residuals=residuals,
        lost=int((~search.done).sum()),
        paths=_paths(run, at).cpu(),
        places=run.state_layout.places,
    )


def _one_step(net: Recurrent, x: Tree, starts: Any) -> Steps:
    """One step of one row."""
    refuse_other_nets(net)
    if isinstance(x, Tensor) and x.dim() == 1 and x.is_floating_point():
        x = x.unsqueeze(0)  # integers are tokens, one a row
    if (batch_of(x) or 1) > 1:
        raise ArgumentError(
            "the argument 'x' is no constant input: it has several rows.",
            came=described(x),
            expected="the input of one step and one row",
            tries="x[:1]; call once for each input",
        )
    given = rows(starts, 0) if _count(starts) is None else None
    return Steps.of(net, x, given, one_step=True)


def _count(starts: Any) -> int | None:
    """How many random starts are asked for, None where states are given."""
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


def _starts(run: Steps, net: Recurrent, starts: Any, spread: float, seed: int) -> Tensor:
    """(starts, numbers)."""
    drawn = _count(starts)
    if drawn is not None:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(drawn, run.state_layout.size, generator=generator, dtype=torch.float64)
        return (spread * numbers).to(run.device)
    count = batch_of(starts) or 1
    state = state_before(net.cell, starts, count, {"device": run.device, "dtype": None})
    floating = [leaf.double() if not leaf.is_complex() else leaf for leaf in leaves_of(state) if _floats(leaf)]
    return run.state_layout.joined([leaf.detach() for leaf in floating], count)


def _floats(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _less_one(jacobian: Tensor) -> Tensor:
    return jacobian - torch.eye(jacobian.shape[-1], dtype=jacobian.dtype, device=jacobian.device)


def _merged(points: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points, how often each was found, and how well: the best of each kind stands for all that lie there."""
    order = sizes.argsort()
    points, sizes = points[order], sizes[order]
    free = torch.ones(len(points), dtype=torch.bool, device=points.device)
    kept, counts = [], []
    for index in range(len(points)):
        if free[index]:
            near = (points - points[index]).norm(dim=-1) <= SAME * (1 + points[index].norm())
            kept.append(index)
            counts.append(int((near & free).sum()))
            free &= ~near
    found = torch.tensor(counts, dtype=torch.int64)
    by_count = found.argsort(descending=True, stable=True)
    chosen = torch.tensor(kept, dtype=torch.int64)[by_count]
    return points[chosen], found[by_count], sizes[chosen]


def _eigenvalues(run: Steps, points: Tensor) -> Tensor:
    """Of the step at each point, largest first."""
    if not len(points):
        return points.to(torch.complex128)
    found = torch.linalg.eigvals(jacobian_at(run, 0, points.to(run.device)).cpu())
    return found.gather(-1, found.abs().argsort(-1, descending=True))


def _kind(sizes: Tensor) -> str:
    """What |eigenvalues| say."""
    outside = int((sizes > 1 + MARGIN).sum())
    if outside:
        return "unstable" if outside == len(sizes) else "saddle"
    return "stable" if (sizes < 1 - MARGIN).all() else "undecided"


def _paths(run: Steps, starts: Tensor) -> Tensor:
    path = [starts]
    with torch.no_grad():
        for _ in range(PATH):
            path.append(run.step(0, path[-1], copies=len(starts))[1])
    return torch.stack(path)
