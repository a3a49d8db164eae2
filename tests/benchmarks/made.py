"""Tasks that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import leporello as lp
from benchmarks.cases import Exercise
from benchmarks.tasks import Run, Sweep


@dataclass
class Calling:
    """A task that calls a function."""

    function: Callable[[], object]

    def __call__(self) -> object:
        return self.function()

    def clear(self) -> None: ...

    def results(self, steps: int) -> dict[str, Tensor | None]:
        return {}


class Halves(lp.Cell):
    """Two ways to compute the same, and some that are wrong."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.weight = nn.Parameter(torch.randn(3))

    def together(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight

    def apart(self, inputs: Tensor) -> Tensor:
        return torch.stack([x * self.weight for x in inputs])

    def half_detached(self, inputs: Tensor) -> Tensor:
        return inputs * (self.weight / 2 + self.weight.detach() / 2)

    def detached(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight.detach() + 0 * inputs.new_zeros(1, requires_grad=True)

    def not_a_number(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight * float("nan")

    def tasks(self, *names: str) -> dict[str, Sweep]:
        inputs = torch.randn(5, 2, 3)
        exercise = Exercise(self, inputs, torch.randn_like(inputs))
        runs: dict[str, Run] = {name: getattr(self, name) for name in names}
        return {name: Sweep(run, tuple(self.parameters()), exercise) for name, run in runs.items()}
