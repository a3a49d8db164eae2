"""A single step as one Python function, for programs that are kernels and nothing else: no windows, no axis of steps.

An agent or an instrument asks for one step at a time, and what a call costs beside its kernel is then most of it. Knows
programs, as `sweep` does; the lines are the same but for time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from leporello.engine.homes import shared
from leporello.engine.lines import plain
from leporello.engine.program import Program
from leporello.engine.sweep import Writer


def step_of(program: Program) -> Callable[..., list[Any]] | None:
    """A function (batch, *inputs) -> outputs, sequences without their axis of steps; None for other programs."""
    written = {node for timed in program.timed if timed.kernel for node, axis in timed.kernel.writes if axis == 0}
    sequences = {node for kind, _, node in program.outputs if kind == "sequence"}
    kernels = bool(program.timed) and all(timed.kernel is not None for timed in program.timed)
    if not kernels or shared(program) or program.finish or program.shifts or not sequences <= written:
        return None
    return _OneStep(program, {}).alone()


class _OneStep(Writer):
    """Lines of a sweep over one step."""

    inner = 1

    def alone(self) -> Callable[..., list[Any]]:
        self.say(f"def step({', '.join(['batch', *map(self.value, self.program.inputs)])}):", 0)
        self.say("length, steps, rows, first = 1, 1, batch, 0")
        self.begin()
        for timed in self.program.timed:
            self.prepare(timed)
        self.rooms()
        for timed in self.program.timed:
            self.by_kernel(timed)
        outputs = [self.result(*output) for output in self.program.outputs]
        self.say(f"return [{', '.join(outputs)}]")
        exec(compile("\n".join(self.lines), f"<step of {self.program.split.loop.name}>", "exec"), self.known)
        found: Callable[..., list[Any]] = self.known["step"]
        return found

    def long(self, node: fx.Node, length: str) -> str:
        value = node.meta["val"]
        for name, (_, out) in self.program.delays.items():
            state = out.meta["val"]
            if (state.shape[1:], state.dtype) == (value.shape[1:], value.dtype):
                return f"torch.empty_like(n_{plain(name)})"
        return self.empty(node, "batch")
