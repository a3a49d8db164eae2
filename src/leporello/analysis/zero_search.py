"""Zeros of a function from many starts: the search, which zeros are one and the same, and which form a continuum.

Where the Jacobian is singular, a search stops at some distance from a zero: |f| is below the tolerance there already.
Two such points are one zero if |f| is below the tolerance on the whole way between them. A zero lies in a continuum if
a search that starts beside it, in a direction in which the Jacobian is singular, stays there, near and far.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]

SAME_POINT_DISTANCE = 1e-5  # relative to the size of the points
MAX_BLUR = 0.05  # points further apart are never one, relative to their size
BETWEEN = (0.25, 0.5, 0.75)  # where on the way between two points the function is evaluated
SINGULAR = 1e-3  # a singular value of the Jacobian below it: the function may stay zero in that direction
SIDE_STEPS = (0.02, 0.005)  # to look for further zeros beside one, relative to its size
STAYS = 0.25  # of a side step: a search that moves less has found a zero beside the first
SIDE_ROUNDS = 60
SIDE_TOLERANCE = 1e-13  # of |f| beside a zero


class ZeroSearch:
    """Zeros of a function, from many starts at once, by damped least squares (Levenberg and Marquardt).

    Each start has its own damping: with little of it a step is Newton's, with much of it a short step downhill on the
    square. The best points so far are `points` (starts, size).

    function    of points, (starts, size) in and out
    jacobian    of the function, (starts, size) in, (starts, size, size) out
    tolerance   of |f|, relative to the size of the point
    """

    TOLERANCE = 1e-10
    DECREASE, INCREASE = 0.1, 5.0  # of the damping after a good step and after a bad one
    MIN_DAMPING, MAX_DAMPING = 1e-14, 1e12  # with the largest one nothing moves any more

    def __init__(self, function: Function, jacobian: Function, starts: Tensor, tolerance: float = TOLERANCE) -> None:
        self.function, self.jacobian, self.tolerance = function, jacobian, tolerance
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
        return self.residuals <= self.tolerance * (1 + self.points.norm(dim=-1))

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


# ---- which zeros are one


def distinct_zeros(search: ZeroSearch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct zeros of a search, most often found first: points, how often found, residuals, dimensions.

    Of points that are one the one with the least residual stays. The dimension is that of the continuum of zeros which
    a point lies in, 0 for a point by itself.
    """
    converged = search.converged
    order = search.residuals[converged].argsort()
    points, residuals = search.points[converged][order], search.residuals[converged][order]
    counts = torch.ones(len(points), dtype=torch.int64, device=points.device)
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    sizes = 1 + points.norm(dim=-1)
    first = _first_of_each(distances <= SAME_POINT_DISTANCE * sizes, counts)
    points, residuals, distances, sizes = points[first], residuals[first], distances[first][:, first], sizes[first]
    counts = counts[first]
    dimensions = _dimensions(search, points)
    isolated = dimensions == 0
    near = (distances <= MAX_BLUR * sizes) & isolated & isolated.unsqueeze(-1)
    first = _first_of_each(_told_together(search, points, near), counts)
    by_count = first[counts[first].argsort(descending=True, stable=True)]
    return points[by_count], counts[by_count], residuals[by_count], dimensions[by_count]


def _first_of_each(same: Tensor, counts: Tensor) -> Tensor:
    """The indices of points that are the same as none before them; counts of the others are added to theirs.

    same     (points, points), whether two points are one
    counts   (points,), changed in place
    """
    free = torch.ones(len(same), dtype=torch.bool, device=same.device)
    kept = []
    for index in range(len(same)):
        if free[index]:
            group = free & same[index]
            group[index] = True
            kept.append(index)
            counts[index] = counts[group].sum()
            free &= ~group
    return torch.tensor(kept, dtype=torch.int64, device=same.device)


def _told_together(search: ZeroSearch, points: Tensor, near: Tensor) -> Tensor:
    """Of pairs of near points, those between which the function is zero to within the tolerance: (points, points)."""
    same = near.clone()
    left, right = near.triu(1).nonzero().unbind(-1)
    if not len(left):
        return same
    for share in BETWEEN:
        between = torch.lerp(points[left], points[right], share)
        with torch.no_grad():
            zero = search.function(between).norm(dim=-1) <= search.tolerance * (1 + between.norm(dim=-1))
        same[left, right] &= zero
        same[right, left] &= zero
    return same


# ---- which zeros form a continuum


def _dimensions(search: ZeroSearch, points: Tensor) -> Tensor:
    """The dimension of the set of zeros around each of some zeros, (points,): 0 for one by itself."""
    dimensions = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    if not len(points):
        return dimensions
    _, singular, directions = torch.linalg.svd(search.jacobian(points))
    owner, which = (singular < SINGULAR).nonzero().unbind(-1)
    if not len(owner):
        return dimensions
    way = _moved_beside(search, points[owner], SIDE_STEPS[0] * directions[owner, which])[0]
    sides = nn.functional.normalize(way, dim=-1)  # [candidates, size]: along the zeros, if there are any
    stays = way.norm(dim=-1) > STAYS * SIDE_STEPS[0]
    for step in SIDE_STEPS:
        way, is_zero = _moved_beside(search, points[owner], step * sides)
        stays &= is_zero & ((way / step - sides).norm(dim=-1) <= STAYS)
    for index in owner[stays].unique():
        dimensions[index] = int((torch.linalg.svdvals(sides[stays & (owner == index)]) > STAYS).sum())
    return dimensions


def _moved_beside(search: ZeroSearch, points: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Where a search ends that starts beside the points, relative to them, and whether it ends at a zero.

    steps   relative to the size of the points
    """
    sizes = (1 + points.norm(dim=-1)).unsqueeze(-1)
    beside = ZeroSearch(search.function, search.jacobian, points + sizes * steps, tolerance=SIDE_TOLERANCE)
    for _ in range(SIDE_ROUNDS):
        if beside.finished:
            break
        beside.advance()
    return (beside.points - points) / sizes, beside.residuals <= search.tolerance * sizes.squeeze(-1)
