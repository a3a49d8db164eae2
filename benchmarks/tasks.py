"""`Task`: what a contestant does in its turn, made ready. Knows nothing of clocks or of who does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmarks.cases import FORWARD, TRAINING, Exercise

Run = Callable[[Tensor], Tensor]  # inputs (length, batch, features) -> outputs (length, batch, features)


class Task(Protocol):
    """Calling it does what is measured."""

    def __call__(self) -> object: ...

    def clear(self) -> None:
        """Take away what a call left behind."""

    def results(self, steps: int) -> dict[str, Tensor | None]:
        """What a call computes, of the first steps: outputs, and gradients of their weighted sum by parameter number.

        The call has its full length, so that whatever is built for it is built; the weighting is zero from there on.
        """


@dataclass(frozen=True)
class Sweep:
    """A run of PyTorch: the forward sweep, and for `TRAINING` the backward one into the parameters' gradients."""

    run: Run
    parameters: tuple[nn.Parameter, ...]
    exercise: Exercise
    what: str = TRAINING

    def __call__(self) -> Tensor:
        with torch.set_grad_enabled(self.what != FORWARD):
            outputs = self.run(self.exercise.inputs)
        if self.what == TRAINING:
            outputs.backward(self.exercise.weighting)
        return outputs

    def begin(self, steps: int) -> Sweep:
        """The same over the first steps."""
        return replace(self, exercise=self.exercise.begin(steps))

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def results(self, steps: int) -> dict[str, Tensor | None]:
        self.clear()
        begin = replace(self, exercise=self.exercise.weighting_only(steps))
        found: dict[str, Tensor | None] = {"outputs": begin().detach()[:steps]}
        if self.what == TRAINING:
            found |= {f"gradient {index}": parameter.grad for index, parameter in enumerate(self.parameters)}
        self.clear()
        return found
