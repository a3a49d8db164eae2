"""Who runs: each contestant makes a task of an exercise.

Adding one is a class with a name and `prepare`; a suite says who is measured beside whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

import leporello as lp
from benchmarks.cases import TRAINING, Exercise
from benchmarks.tasks import Sweep, Task


class Contestant(Protocol):
    name: str

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Task:
        """A task with the cell's equations and numbers."""


class Eager:
    """The loop one writes by hand, differentiated by autograd; it skips the checks that calling a `Cell` makes."""

    name = "eager"

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Sweep:
        cell = exercise.cell

        def run(inputs: Tensor) -> Tensor:
            state = cell.initial_state(inputs.shape[1])
            outputs = []
            for x in inputs:
                output, state = cell.forward(x, state)
                outputs.append(output)
            return torch.stack(outputs)

        return Sweep(run, tuple(cell.parameters()), exercise, what)


class Engine:
    """`lp.Recurrent` on one named engine.

    arguments   what a call is given beside its inputs, from the exercise
    """

    def __init__(
        self,
        engine: str,
        name: str = "",
        arguments: Callable[[Exercise], Mapping[str, Any]] = lambda exercise: {},
    ) -> None:
        self.engine, self.name, self.arguments = engine, name or engine, arguments

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Sweep:
        net = lp.Recurrent(exercise.cell, engine=self.engine)
        arguments = self.arguments(exercise)

        def run(inputs: Tensor) -> Tensor:
            outputs, _ = net(inputs, **arguments)
            return outputs

        return Sweep(run, tuple(exercise.cell.parameters()), exercise, what)


class TorchNN:
    """`torch.nn`'s network of the same name, with copies of the numbers; on a GPU that is cuDNN."""

    def __init__(self, name: str = "torch.nn") -> None:
        self.name = name

    def prepare(self, exercise: Exercise, what: str = TRAINING) -> Sweep:
        net = lp.to_torch(lp.Recurrent(exercise.cell))
        net.flatten_parameters()  # cuDNN wants them in one piece of memory; elsewhere nothing happens

        def run(inputs: Tensor) -> Tensor:
            outputs, _ = net(inputs)
            return outputs

        return Sweep(run, tuple(net.parameters()), exercise, what)
