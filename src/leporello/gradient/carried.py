"""`Carried`: a Loop that carries derivatives forward in time, ready to run, on any engine.

It is run in short stretches, and within each of them step by step: what is carried is large, so no two steps of it lie
in memory together. Knows Loops and sweeps; knows nothing of what is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leporello.engine import bridge, reference
from leporello.engine.plan import Sweep
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.rewrite.linearize import Key, Linear, key

STEPS = 64  # of a stretch: the draws of so many are there together


@dataclass(frozen=True, eq=False)
class Carried:
    """A Loop made ready.

    linear   what it was made of
    sweep    what runs it; None for the engine `reference`, which runs `step`
    """

    linear: Linear
    loop: Loop
    sweep: Sweep | None

    @staticmethod
    def of(linear: Linear, loop: Loop, engine: str) -> Carried:
        return Carried(linear, loop, None if engine == "reference" else Sweep.of(loop, engine).step_by_step())

    @cached_property
    def step(self) -> Callable[..., Any]:
        return function_of(self.loop.graph)

    @cached_property
    def states(self) -> list[Port]:
        """What is carried beside the loop's own state."""
        own = {port.name for port in self.linear.loop.inputs if port.kind == "state"}
        return [port for port in self.loop.inputs if port.kind == "state" and port.name not in own]

    @torch.no_grad()
    def run(self, values: Mapping[Key, Tensor], length: int, batch: int) -> dict[Key, Tensor]:
        """Final states and totals, by kind and name; draws are made here."""
        steps = 1 if self.sweep is None else STEPS
        states = {one: value for one, value in values.items() if one[0] == "state"}
        totals: dict[Key, Tensor] = {}
        for start in range(0, length, steps):
            stretch = slice(start, min(start + steps, length))
            for one, value in self._stretch({**values, **states}, stretch, batch).items():
                if one[0] == "state":
                    states[one] = value
                else:
                    totals[one] = totals[one] + value if one in totals else value
        return states | totals

    def _stretch(self, values: Mapping[Key, Tensor], stretch: slice, batch: int) -> dict[Key, Tensor]:
        length = stretch.stop - stretch.start
        given = [self._value(port, values, stretch, batch) for port in self.loop.inputs]
        if self.sweep is None:
            found = reference.run(self.loop, self.step, given, length, batch)
        else:
            by_key = dict(zip(map(key, self.loop.inputs), given, strict=True))
            found, _ = bridge.run_sweep(self.sweep, length, batch, [by_key[one] for one in self.sweep.inputs])
        return dict(zip(map(key, self.loop.outputs), found, strict=True))

    def _value(self, port: Port, values: Mapping[Key, Tensor], stretch: slice, batch: int) -> Tensor:
        if key(port) in values:
            value = values[key(port)]
            return value[stretch] if port.kind in ("sequence", "draw") else value
        if port.kind == "draw":
            size = (stretch.stop - stretch.start, batch, *port.shape)
            return torch.rand(size, dtype=port.dtype, device=port.device)
        return self.loop.constants[port.name]
