"""`gpu-own`: cells that no library has, on a GPU: beside an eager loop, and beside the compiled step in a CUDA graph.

The graph holds a whole training step, of the compiled step and of our network. Also what `lengths` and `resets` cost
there, and a recurrence of twelve heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import agreement
from benchmarks.cases import TRAINING, Case, Exercise
from benchmarks.compare import medians
from benchmarks.contestants import Contestant, Eager, Engine
from benchmarks.record import Measurement, Promise, Suite
from benchmarks.sizes import Size
from benchmarks.suites.arguments import lengths, resets
from benchmarks.suites.gpu import DEVICE, OTHERS, TOLERANCES, lacks, tf32_allowed
from benchmarks.tasks import Run, Task
from benchmarks.turns import Settings, device_seconds_of, ratio, times

CELLS = ("LayerNormLSTM", "PeepholeLSTM", "Leaky", "MultiplicativeLSTM", "ThreeProducts")
SIZES = (Size(64, 16, 256, 256), Size(64, 64, 512, 512))
MOST = 0.2  # beyond it nothing is right, whoever computes it
COMPARED_STEPS = 16  # with the loop in float64: some of these cells are chaotic as they begin, whoever runs them
HEADS = Case("TwelveHeads", Size(1024, 16, 768, 768), TRAINING, torch.bfloat16, DEVICE)
ARGUMENTS: dict[str, Callable[[Exercise], dict[str, Any]]] = {"lengths": lengths, "resets": resets}
WITH = tuple(f"with {name} over without" for name in ARGUMENTS)


@dataclass
class Graphed:
    """A whole training step, captured in a CUDA graph; a call replays it.

    run   from inputs to outputs
    """

    exercise: Exercise
    run: Run

    def __post_init__(self) -> None:
        exercise, cell = self.exercise, self.exercise.cell
        self.weighting = exercise.weighting.clone()

        def train() -> Tensor:
            whole = self.run(exercise.inputs)
            whole.backward(self.weighting)
            return whole

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.clear()
                train()
        torch.cuda.current_stream().wait_stream(side)
        self.clear()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=side):
            self.outputs = train().detach()
        self.gradients = [parameter.grad for parameter in cell.parameters()]
        self.clear()

    def __call__(self) -> object:
        self.graph.replay()
        return self.outputs

    def clear(self) -> None:
        for parameter in self.exercise.cell.parameters():
            parameter.grad = None

    def results(self, steps: int) -> dict[str, Tensor | None]:
        self.weighting.copy_(self.exercise.weighting_only(steps).weighting)
        self.graph.replay()
        found: dict[str, Tensor | None] = {"outputs": self.outputs[:steps].clone()}
        found |= {f"gradient {i}": None if g is None else g.clone() for i, g in enumerate(self.gradients)}
        self.weighting.copy_(self.exercise.weighting)
        return found


class StepInGraph:
    """A loop over the compiled step."""

    name = "graph"

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Graphed:
        cell = exercise.cell
        step = torch.compile(cell.forward, dynamic=False)

        def run(inputs: Tensor) -> Tensor:
            state, outputs = cell.initial_state(inputs.shape[1]), []
            for x in inputs:
                output, state = step(x, state)
                outputs.append(output)
            return torch.stack(outputs)

        return Graphed(exercise, run)


class EngineInGraph:
    """A call of a network, likewise."""

    name = "gpu in a graph"

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Graphed:
        return Graphed(exercise, Engine(ENGINE).prepare(exercise, what).run)


LOOP: Contestant = Eager()
OTHER: Contestant = StepInGraph()
OURS_IN_GRAPH: Contestant = EngineInGraph()
ENGINE = "gpu"


def measure(case: Case, settings: Settings) -> Measurement:
    """Results beside a loop in float64 first; then time in turns."""
    with tf32_allowed():
        exercise, steps = case.build(), min(COMPARED_STEPS, case.size.length)
        exact = Eager().prepare(exercise.begin(steps).exact(), case.what)
        contestants = (
            {"gpu": Engine(ENGINE)}
            if case == HEADS
            else {"eager": LOOP, "graph": OTHER, "gpu": Engine(ENGINE), OURS_IN_GRAPH.name: OURS_IN_GRAPH}
        )
        tasks: dict[str, Task] = {name: one.prepare(exercise, case.what) for name, one in contestants.items()}
        _refuse_wrong(tasks, exact, TOLERANCES[case.dtype], steps)
        if case != HEADS:
            for name, arguments in ARGUMENTS.items():
                tasks[f"with {name}"] = Engine(ENGINE, arguments=arguments).prepare(exercise, case.what)
                tasks[f"with {name}"]()  # what is built once is built now
        found = times(tasks, settings, device_seconds_of)
    pairs = (("eager", "gpu"), ("graph", "gpu"), ("graph", "gpu in a graph"))
    ratios = {f"{one} over {other}": ratio(found[one], found[other]) for one, other in pairs if one in found}
    ratios |= {one: ratio(found[one.removesuffix(" over without")], found["gpu"]) for one in WITH if case != HEADS}
    figures = {"microseconds per step": medians(found, 1e6 / case.size.length)}
    return Measurement(case, figures=figures, ratios=ratios, rounds=len(found["gpu"]))


def _refuse_wrong(tasks: Mapping[str, Task], exact: Task, tolerance: float, steps: int) -> None:
    """Raise `Disagreement` unless all tasks are as close to the loop in float64 as the tolerance says, or as the eager
    loop in their own dtype is.

    Where that one is further away, the step itself is sensitive to rounding. What is neither ours nor the eager loop
    may be further away still, as it may round where it likes.
    """
    loop, expected = "the loop in float64", exact.results(steps)

    def errors(name: str) -> dict[str, float]:
        return agreement.errors(name, tasks[name].results(steps), loop, expected, agreement.norm_of_difference)

    rounded = errors("eager") if "eager" in tasks else dict.fromkeys(expected, 0.0)
    for name in tasks:
        for what, error in errors(name).items():
            allowed = max(tolerance, rounded[what]) * (1 if name.startswith("gpu") else OTHERS)
            agreement.refuse(name, what, error, min(allowed, MOST), loop)


def _is_own(case: Case) -> bool:
    return case != HEADS


SUITE = Suite(
    name="gpu-own",
    says="cells of one's own on the engine gpu, beside an eager loop, and both in a CUDA graph; bfloat16",
    cases=(*(Case(cell, size, TRAINING, torch.bfloat16, DEVICE) for cell in CELLS for size in SIZES), HEADS),
    measure=measure,
    promises=(
        Promise("beside the eager loop", "ratio", "eager over gpu", "geometric mean", least=60, of=_is_own),
        Promise(
            "beside the compiled step", "ratio", "graph over gpu in a graph", "geometric mean", least=4, of=_is_own
        ),
        Promise("beside the compiled step", "ratio", "graph over gpu", "geometric mean", of=_is_own),
        *(Promise("its arguments", "ratio", one, "largest", most=1.1, of=_is_own) for one in WITH),
        Promise(
            "twelve heads of 64", "microseconds per step", "gpu", "largest", most=1.55, of=lambda case: case == HEADS
        ),
    ),
    lacks=lacks,
)
