"""Who runs: each contestant turns a cell into a function from a sequence to its outputs.

Adding one is a class with a name and `prepare`, and a line in CONTESTANTS. The first one is the measure of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

import leporello as lp

Run = Callable[[Tensor], Tensor]  # inputs [length, batch, features] -> outputs [length, batch, features]


class Contestant(Protocol):
    name: str

    def prepare(self, cell: nn.Module) -> Run:
        """A function that runs this cell, with these very parameters, over a sequence."""


class Eager:
    """The loop one writes by hand, differentiated by autograd; it skips the checks that calling a `Cell` makes."""

    name = "eager"

    def prepare(self, cell: nn.Module) -> Run:
        def run(inputs: Tensor) -> Tensor:
            state = cell.initial_state(inputs.shape[1])
            outputs = []
            for x in inputs:
                output, state = cell.forward(x, state)
                outputs.append(output)
            return torch.stack(outputs)

        return run


class Engine:
    """`lp.Recurrent` on one named engine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, cell: nn.Module) -> Run:
        net = lp.Recurrent(cell, engine=self.name)

        def run(inputs: Tensor) -> Tensor:
            outputs, _ = net(inputs)
            return outputs

        return run


CONTESTANTS: tuple[Contestant, ...] = (Eager(), Engine("stepwise"))
