"""The phase portrait of a network with constant input: its fixed points, and its paths from some starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.plotting import GREY, INK, PALE, RED, label_axes, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PATHS_DRAWN = 24
MAX_PATH_DISTANCE = 3  # as a multiple of the largest coordinate of starts and points; a path ends there
TITLE = "The ways from the starts, and the fixed points"

# Filled or not, round or not: distinct without colour.
MARKERS: dict[str, dict[str, Any]] = {
    "stable": {"marker": "o", "facecolor": INK, "edgecolor": INK},
    "saddle": {"marker": "D", "facecolor": "white", "edgecolor": RED},
    "unstable": {"marker": "o", "facecolor": "white", "edgecolor": RED},
    "undecided": {"marker": "s", "facecolor": GREY, "edgecolor": INK},
}


def plot_phase_portrait(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, names: Sequence[str]) -> None:
    """Draw points (count, size) and paths (steps, starts, size), size that of the state as one vector.

    A state of size 1 is drawn over time, one of size 2 in its plane, a larger one on its two principal axes.

    kinds   of the points, keys of `MARKERS`
    names   of the elements of the state, (size)
    """
    limit = MAX_PATH_DISTANCE * torch.cat([paths[0], points]).abs().max()
    paths = torch.where((paths.abs() <= limit).all(-1, keepdim=True), paths, torch.nan)
    if len(names) == 1:
        _plot_over_time(ax, points[:, 0], kinds, paths[:, :, 0], names[0])
        return
    axes, origin, labels = _principal_plane(points, paths, names)
    _plot_in_plane(ax, (points - origin) @ axes, kinds, (paths - origin) @ axes, labels)


def _plot_over_time(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, name: str) -> None:
    steps = len(paths) - 1
    ax.plot(torch.arange(steps + 1), paths[:, :MAX_PATHS_DRAWN], color=PALE, linewidth=0.8, zorder=1)
    for kind, indices in _indices_by_kind(kinds):
        heights = points[indices]
        ax.hlines(heights, 0, steps, color=MARKERS[kind]["edgecolor"], linewidth=0.8, linestyle=(0, (4, 2)))
        right_end = torch.full_like(heights, steps)
        ax.scatter(right_end, heights, s=48, label=kind, zorder=4, clip_on=False, **MARKERS[kind])
    label_axes(ax, "step", name, TITLE)
    if kinds:
        legend(ax)


def _plot_in_plane(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, labels: tuple[str, str]) -> None:
    paths = paths[:, :MAX_PATHS_DRAWN]
    width = 0.6 if _steps_are_short(paths) else 0.0  # lines between distant states would hide everything
    ax.plot(paths[:, :, 0], paths[:, :, 1], color=PALE, linewidth=width, marker=".", markersize=2.5, zorder=1)
    ax.scatter(paths[0, :, 0], paths[0, :, 1], s=9, color=GREY, linewidths=0, zorder=2, label="start")
    for kind, indices in _indices_by_kind(kinds):
        x, y = points[indices, 0], points[indices, 1]
        ax.scatter(x, y, s=52, linewidths=1.5, label=kind, zorder=4, **MARKERS[kind])
    label_axes(ax, *labels, TITLE)
    legend(ax)


def _indices_by_kind(kinds: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The kinds that occur, in the order of `MARKERS`, and the indices of their points."""
    indices = {kind: [index for index, other in enumerate(kinds) if other == kind] for kind in MARKERS}
    return [(kind, of_kind) for kind, of_kind in indices.items() if of_kind]


def _principal_plane(points: Tensor, paths: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor, tuple[str, str]]:
    """Two axes (size, 2), their origin (size,), and their labels; a state of size 2 has its own axes."""
    if len(names) == 2:
        return torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), (names[0], names[1])
    cloud = torch.cat([paths.flatten(0, 1), points])
    cloud = cloud[cloud.isfinite().all(-1)]
    mean = cloud.mean(0)
    _, sizes, axes = torch.linalg.svd(cloud - mean, full_matrices=False)
    shares = sizes.square() / sizes.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    first, second = (f"{share:.0%} of the variance" for share in shares[:2].tolist())
    return axes[:2].T, mean, (f"first main axis ({first})", f"second main axis ({second})")


def _steps_are_short(paths: Tensor) -> bool:
    """Whether the median step is shorter than a tenth of the diagonal of all paths."""
    finite = paths[paths.isfinite().all(-1)]
    lengths = (paths[1:] - paths[:-1]).norm(dim=-1)
    return bool(lengths.nanmedian() < 0.1 * (finite.amax(0) - finite.amin(0)).norm())
