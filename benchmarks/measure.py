"""How a training step is measured: agreement first, then time, then memory. Knows nothing of cells or tables.

A training step is one forward sweep, then the backward sweep of a fixed random weighting of the outputs, which fills
the gradients of all parameters. The inputs need no gradient, as those of a first layer do not.

Time: contestants take turns within each round, in an order that rotates, so that whatever slows the machine down for a
while hits all of them. Figures are medians; ratios are taken within rounds.

Memory: the bytes that the tensor allocator hands out and takes back during one training step, replayed to find the peak
above the level at its start. Exact for tensors; blind to the scratch memory of libraries that allocate on their own.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

Run = Callable[[Tensor], Tensor]

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # below that the profiler writes two lines of its own at each use

# Largest difference over largest magnitude, float32: sums over 512 steps and 32 rows in another order differ by 1e-6
# to 1e-5; a wrong gradient differs by far more.
TOLERANCE = 1e-4


# Agreement is checked on the first steps only: a cell that is chaotic at its start (LayerNormLSTM) makes two right
# answers differ completely after some hundred steps.
AGREEMENT_STEPS = 16


class Disagreement(AssertionError):
    """Two contestants compute different things; timing them would mean nothing."""


@dataclass(frozen=True)
class TrainingStep:
    """One contestant on one case: calling it does what is measured."""

    run: Run
    parameters: tuple[nn.Parameter, ...]
    inputs: Tensor
    weighting: Tensor

    def __call__(self) -> Tensor:
        outputs = self.run(self.inputs)
        outputs.backward(self.weighting)
        return outputs

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@dataclass(frozen=True)
class Times:
    """The seconds of one contestant, one a round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the first contestant: the median over rounds, and the quartiles around it."""

    median: float
    low: float
    high: float


def training_steps(cell: nn.Module, inputs: Tensor, runs: Mapping[str, Run]) -> dict[str, TrainingStep]:
    """One training step per contestant, all on the same parameters, inputs and weighting."""
    with torch.no_grad():
        shape = next(iter(runs.values()))(inputs[:1]).shape[1:]
    weighting = torch.randn(len(inputs), *shape, generator=torch.Generator().manual_seed(1))
    parameters = tuple(cell.parameters())
    return {name: TrainingStep(run, parameters, inputs, weighting) for name, run in runs.items()}


def check_agreement(steps: Mapping[str, TrainingStep]) -> None:
    """Raise `Disagreement` unless every contestant gives the first one's outputs and gradients."""
    (first, expected), *others = ((name, _results(step)) for name, step in steps.items())
    for name, results in others:
        for what, value in results.items():
            error = _difference(value, expected[what])
            if not error <= TOLERANCE:  # a NaN must fail
                raise Disagreement(f"{what}: {name} differs from {first} by {error:.1e} (allowed {TOLERANCE:.0e})")


def times(steps: Mapping[str, TrainingStep], rounds: int, warm_up: int = 2) -> dict[str, Times]:
    """The seconds of each contestant in each round, taken in turns."""
    for _ in range(warm_up):
        for step in steps.values():
            _seconds(step)
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        start = index % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(_seconds(steps[name]))
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def ratio(first: Times, other: Times) -> Ratio:
    """first / other, round by round: above 1 where the other one is faster."""
    values = [a / b for a, b in zip(first.seconds, other.seconds, strict=True)]
    if len(values) == 1:
        return Ratio(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)


def peak_bytes(step: TrainingStep) -> int:
    """The most memory in use at once during a training step, above what was in use before it."""
    step.clear()
    step()  # whatever is built once is built now
    step.clear()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    step.clear()
    return _peak(_allocations(recorded))


def _seconds(step: TrainingStep) -> float:
    step.clear()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _results(step: TrainingStep) -> dict[str, Tensor | None]:
    step.clear()
    outputs = step().detach()
    gradients = {f"gradient {index}": parameter.grad for index, parameter in enumerate(step.parameters)}
    step.clear()
    return {"outputs": outputs, **gradients}


def _difference(value: Tensor | None, expected: Tensor | None) -> float:
    if value is None or expected is None:
        return 0.0 if value is expected else float("inf")
    if value.shape != expected.shape:
        return float("inf")
    scale = expected.abs().max().clamp(min=1e-30)
    return float((value - expected).abs().max() / scale)


def _allocations(recorded: profile) -> list[int]:
    """Bytes handed out (positive) and taken back (negative), in the order of time."""
    events = recorded.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]


def _peak(changes: Sequence[int]) -> int:
    level = peak = 0
    for change in changes:
        level += change
        peak = max(peak, level)
    return peak
