"""Contestants must agree before they are timed: same outputs, same gradients. Knows nothing of clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.tasks import Task

# Largest difference over largest magnitude, float32: sums over many steps and rows in another order differ by 1e-6 to
# 1e-5; a wrong gradient differs by far more.
TOLERANCE = 1e-4

# Agreement is checked on the first steps only: a cell that is chaotic at its start (LayerNormLSTM) makes two right
# answers differ completely after some hundred steps. Calls have their full length all the same.
STEPS = 16


class Disagreement(AssertionError):
    """Two contestants compute different things; timing them would mean nothing."""


def largest_difference(value: Tensor, expected: Tensor) -> float:
    """Over the largest magnitude."""
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def norm_of_difference(value: Tensor, expected: Tensor) -> float:
    """Over the norm, both in float64: for dtypes in which single numbers are rounded coarsely."""
    value, expected = value.double(), expected.double()
    return float((value - expected).norm() / expected.norm().clamp(min=1e-30))


def check(
    tasks: Mapping[str, Task],
    tolerance: float = TOLERANCE,
    steps: int = STEPS,
    difference: Callable[[Tensor, Tensor], float] = largest_difference,
) -> None:
    """Raise `Disagreement` unless every contestant gives the first one's results."""
    (first, expected), *others = ((name, task.results(steps)) for name, task in tasks.items())
    for name, results in others:
        for what, error in errors(name, results, first, expected, difference).items():
            refuse(name, what, error, tolerance, first)


def errors(
    name: str,
    results: Mapping[str, Tensor | None],
    other: str,
    expected: Mapping[str, Tensor | None],
    difference: Callable[[Tensor, Tensor], float] = largest_difference,
) -> dict[str, float]:
    """How far each result of a contestant is from that of another one."""
    if results.keys() != expected.keys():
        raise Disagreement(f"{name} gives {', '.join(results)}; {other} gives {', '.join(expected)}")
    return {what: _error(value, expected[what], difference) for what, value in results.items()}


def refuse(name: str, what: str, error: float, allowed: float, other: str) -> None:
    """Raise `Disagreement` if a result is further from another's than allowed."""
    if not error <= allowed:  # a NaN must fail
        raise Disagreement(f"{what}: {name} differs from {other} by {error:.1e} (allowed {allowed:.0e})")


def check_same_bits(name: str, task: Task, steps: int = STEPS) -> None:
    """Raise `Disagreement` unless a contestant gives the same bits when it is run again."""
    first, again = task.results(steps), task.results(steps)
    for what, value in first.items():
        other = again[what]
        if value is not other and (value is None or other is None or not torch.equal(value, other)):
            raise Disagreement(f"{what}: {name} gives other bits when it is run again")


def _error(value: Tensor | None, expected: Tensor | None, difference: Callable[[Tensor, Tensor], float]) -> float:
    if value is None or expected is None:
        return 0.0 if value is expected else float("inf")
    return difference(value, expected) if value.shape == expected.shape else float("inf")
