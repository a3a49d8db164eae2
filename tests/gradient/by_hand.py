"""The slow twin of lp.Truncated: each row alone; for each stretch of losses run to where its window begins, detach the
state, run the window's steps, go backward from those losses."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.call.plan_cache import PlanCache
from leporello.loop.state import leaves_of
from leporello.nets.plain_loop import plain_loop
from tests.nets.twins import crossed, normal, shaken, state_like

TOLERANCE = 1e-12  # float64, sums of some hundred products of numbers near 1: the order of summation alone differs


class Own(lp.Cell):
    """A user's cell: two states of different shapes, one of them a matrix, that read each other."""

    def __init__(self) -> None:
        super().__init__(h=4, m=(2, 4))
        self.inputs = 3
        self.U, self.W = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, m = state
        h = torch.tanh(x @ self.U + h @ self.W + m.sum(1))
        return h * m[:, 0], (h, 0.5 * m.flip(1) + h.unsqueeze(1))


CELLS = {
    "LSTM": lambda: lp.LSTM(3, 4),
    "Jordan": lambda: lp.Jordan(3, 4, 2),
    "Own": Own,
    "Stack": lambda: lp.Stack(lp.LSTM(3, 4), lp.GRU(4, 2)),
    "TimeDelay": lambda: lp.TimeDelay(3, 2, 4),
}


PAIRS = crossed(CELLS, cpu=("LSTM", "Jordan", "Own"), stepwise=("TimeDelay", "Stack"))  # of cell and engine
FEW_PAIRS = crossed(CELLS, cpu=("LSTM", "Jordan"), stepwise=["TimeDelay"])


class Nets(dict[tuple[Any, str], lp.Recurrent]):
    """The nets of one cell by gradient method and engine, each made once; they share what was traced and planned."""

    def __init__(self, cell: lp.Cell) -> None:
        super().__init__()
        self.cell = cell
        self.planner = PlanCache()

    @staticmethod
    @functools.cache
    def of(name: str) -> Nets:
        cell = shaken(CELLS[name]())
        assert isinstance(cell, lp.Cell)
        return Nets(cell)

    def __missing__(self, key: tuple[Any, str]) -> lp.Recurrent:
        self[key] = lp.Recurrent(self.cell, gradient=key[0], engine=key[1])
        own = self[key]._plan_cache
        own.loops, own.plans = self.planner.loops, self.planner.plans
        return self[key]


@dataclass
class Case:
    """A call, and the gradients that arrive at its outputs and at the leaves of its final state."""

    nets: Nets
    inputs: Tensor
    state: Any
    arguments: dict[str, Any]
    at_outputs: Tensor
    at_final: list[Tensor]

    @staticmethod
    def of(nets: Nets, length: int, batch: int, *, handed: bool = False, **arguments: Any) -> Case:
        """handed   the state before the first step is an argument, and requires a gradient"""
        inputs, state = normal(length, batch, 3, grad=True), state_like(nets.cell, batch) if handed else None
        output, final = nets.cell(inputs[0])
        at_final = [normal(*leaf.shape, seed=21 + index) for index, leaf in enumerate(leaves_of(final))]
        return Case(nets, inputs, state, arguments, normal(length, *output.shape, seed=20), at_final)

    @property
    def cell(self) -> lp.Cell:
        return self.nets.cell

    @property
    def sources(self) -> list[Tensor]:
        """All that gets a gradient: inputs, targets, the state handed in, parameters."""
        given = leaves_of((self.inputs, self.arguments.get("targets"), self.state))
        return [*(leaf for leaf in given if isinstance(leaf, Tensor)), *self.cell.parameters()]

    def loss(self, outputs: Tensor, final: Any) -> Tensor:
        heard = zip((outputs, *leaves_of(final)), (self.at_outputs, *self.at_final), strict=True)
        return sum(((value * gradient).sum() for value, gradient in heard), torch.zeros(()).double())

    def by_net(self, gradient: Any, engine: str) -> list[Tensor | None]:
        loss = self.loss(*self.nets[gradient, engine](self.inputs, self.state, **self.arguments))
        return list(torch.autograd.grad(loss, self.sources, allow_unused=True))

    def exact(self) -> list[Tensor | None]:
        """By the plain loop."""
        call = checked_call(self.cell, self.inputs, self.state, **self.arguments)
        return list(torch.autograd.grad(self.loss(*plain_loop(self.cell, call)), self.sources, allow_unused=True))

    def by_hand(self, steps: int, every: int | None = None) -> list[Tensor | None]:
        for source in self.sources:
            source.grad = None
        for row in range(self.inputs.shape[1]):
            self._row(row, steps, steps if every is None else every)
        return [source.grad for source in self.sources]

    def _row(self, row: int, steps: int, every: int) -> None:
        lengths = self.arguments.get("lengths")
        length = len(self.inputs) if lengths is None else lengths[row]
        for first in range(0, length, every):
            begin = max(0, first + every - steps)
            with torch.no_grad():
                state = self.cell.initial_state(1) if self.state is None else lp.rows(self.state, [row])
                for time in range(begin):
                    _, state = self._step(row, time, state)
            state, loss = lp.detach(state), torch.zeros(()).double()
            for time in range(begin, min(first + every, length)):
                output, state = self._step(row, time, state)
                if time >= first:
                    loss = loss + (output * self.at_outputs[time, row : row + 1]).sum()
            if first + every >= length:
                for leaf, gradient in zip(leaves_of(state), self.at_final, strict=True):
                    loss = loss + (leaf * gradient[row : row + 1]).sum()
            if loss.requires_grad:
                loss.backward()

    def _step(self, row: int, time: int, state: Any) -> tuple[Tensor, Any]:
        resets = self.arguments.get("resets")
        if resets is not None and resets[time, row]:
            state = self.cell.initial_state(1)
        output, state = self.cell(self.inputs[time, row : row + 1], state)
        return output, self._handed_on(time, row, state)

    def _handed_on(self, time: int, row: int, state: Any) -> Any:
        """The target, where the cell (Jordan, whose state is one leaf) is forced."""
        targets, forcing = self.arguments.get("targets"), self.arguments.get("forcing")
        forced = targets is not None and (forcing is None or forcing[time, row])
        return targets[time, row : row + 1] if forced else state


def filled(gradients: list[Tensor | None], sources: list[Tensor]) -> list[Tensor]:
    """Zeros where there is no gradient."""
    pairs = zip(gradients, sources, strict=True)
    return [torch.zeros_like(source) if gradient is None else gradient for gradient, source in pairs]
