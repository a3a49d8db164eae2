"""Contestants must agree before they are timed: same outputs, same gradients. Knows nothing of clocks."""

from __future__ import annotations

from collections.abc import Mapping

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


def check(tasks: Mapping[str, Task]) -> None:
    """Raise `Disagreement` unless every contestant gives the first one's results."""
    (first, expected), *others = ((name, task.results(STEPS)) for name, task in tasks.items())
    for name, results in others:
        if results.keys() != expected.keys():
            raise Disagreement(f"{name} gives {', '.join(results)}; {first} gives {', '.join(expected)}")
        for what, value in results.items():
            error = _difference(value, expected[what])
            if not error <= TOLERANCE:  # a NaN must fail
                raise Disagreement(f"{what}: {name} differs from {first} by {error:.1e} (allowed {TOLERANCE:.0e})")


def _difference(value: Tensor | None, expected: Tensor | None) -> float:
    if value is None or expected is None:
        return 0.0 if value is expected else float("inf")
    if value.shape != expected.shape:
        return float("inf")
    scale = expected.abs().max().clamp(min=1e-30)
    return float((value - expected).abs().max() / scale)
