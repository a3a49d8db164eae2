"""A portrait of a net that runs on its own: fixed points, and the ways that it goes from some starts.

Knows points, their kinds and paths; knows nothing of how they were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.plotting import GREY, INK, PALE, RED, label_axes, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PATHS = 24  # that are drawn
ROOM = 3  # how many times as far as starts and points the paths are followed
TITLE = "The ways from the starts, and the fixed points"

# Filled or not, round or not: told apart without colour.
FORMS: dict[str, dict[str, Any]] = {
    "stable": {"marker": "o", "facecolor": INK, "edgecolor": INK},
    "saddle": {"marker": "D", "facecolor": "white", "edgecolor": RED},
    "unstable": {"marker": "o", "facecolor": "white", "edgecolor": RED},
    "undecided": {"marker": "s", "facecolor": GREY, "edgecolor": INK},
}


def draw_points(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, names: Sequence[str]) -> None:
    """The points (count, numbers) and the paths (steps, starts, numbers): over time for a state of one number, in the
    plane for one of two, on their two main axes for a larger one.

    names   of the numbers
    """
    far = ROOM * torch.cat([paths[0], points]).abs().max()
    paths = torch.where((paths.abs() <= far).all(-1, keepdim=True), paths, torch.nan)
    if len(names) == 1:
        _over_time(ax, points[:, 0], kinds, paths[:, :, 0], names[0])
        return
    plane, shift, labels = _plane(points, paths, names)
    _in_plane(ax, (points - shift) @ plane, kinds, (paths - shift) @ plane, labels)


def _over_time(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, name: str) -> None:
    steps = len(paths) - 1
    ax.plot(torch.arange(steps + 1), paths[:, :MOST_PATHS], color=PALE, linewidth=0.8, zorder=1)
    for kind, own in _by_kind(kinds):
        ax.hlines(points[own], 0, steps, color=FORMS[kind]["edgecolor"], linewidth=0.8, linestyle=(0, (4, 2)))
        ends = torch.full_like(points[own], steps)
        ax.scatter(ends, points[own], s=48, label=kind, zorder=4, clip_on=False, **FORMS[kind])
    label_axes(ax, "step", name, TITLE)
    if kinds:
        legend(ax)


def _in_plane(ax: Axes, points: Tensor, kinds: Sequence[str], paths: Tensor, labels: tuple[str, str]) -> None:
    paths = paths[:, :MOST_PATHS]
    line = 0.6 if _smooth(paths) else 0.0
    ax.plot(paths[:, :, 0], paths[:, :, 1], color=PALE, linewidth=line, marker=".", markersize=2.5, zorder=1)
    ax.scatter(paths[0, :, 0], paths[0, :, 1], s=9, color=GREY, linewidths=0, zorder=2, label="start")
    for kind, own in _by_kind(kinds):
        ax.scatter(points[own, 0], points[own, 1], s=52, linewidths=1.5, label=kind, zorder=4, **FORMS[kind])
    label_axes(ax, *labels, TITLE)
    legend(ax)


def _by_kind(kinds: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The places of each kind that there is."""
    places = {kind: [index for index, other in enumerate(kinds) if other == kind] for kind in FORMS}
    return [(kind, own) for kind, own in places.items() if own]


def _plane(points: Tensor, paths: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor, tuple[str, str]]:
    """Two axes, (numbers, 2), the place they cross, and their names."""
    if len(names) == 2:
        return torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), (names[0], names[1])
    cloud = torch.cat([paths.flatten(0, 1), points])
    cloud = cloud[cloud.isfinite().all(-1)]
    shift = cloud.mean(0)
    _, sizes, axes = torch.linalg.svd(cloud - shift, full_matrices=False)
    shares = sizes.square() / sizes.square().sum().clamp_min(torch.finfo(torch.float64).tiny)
    first, second = (f"{share:.0%} of the variance" for share in shares[:2].tolist())
    return axes[:2].T, shift, (f"first main axis ({first})", f"second main axis ({second})")


def _smooth(paths: Tensor) -> bool:
    """Whether steps are short: lines between states far apart would hide everything."""
    there = paths[paths.isfinite().all(-1)]
    steps = (paths[1:] - paths[:-1]).norm(dim=-1)
    return bool(steps.nanmedian() < 0.1 * (there.amax(0) - there.amin(0)).norm())
