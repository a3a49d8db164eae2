"""A sweep as one Python function, written out for a program: straight lines, and a loop over windows of steps.

What a call costs beside its stages is what this function does, so nothing is looked up in it that is known before.
Values of a window are flat: one axis holds steps times batch. Here is the whole, from its arguments to its results.
Knows the order of a program; knows nothing of cells or gradients, or of how a stage is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from leporello.engine.homes import homes
from leporello.engine.lines import plain
from leporello.engine.program import Program, row_axis
from leporello.engine.stage_lines import StageLines
from leporello.loop.graph import placeholders

Windows = Callable[[int, int], list[tuple[int, int]]]


def sweep_of(program: Program, befores: Mapping[str, fx.Node], windows: Windows) -> Callable[..., Any]:
    """A function (length, batch, *inputs) -> outputs, and the sequences of the states asked for.

    befores   for states whose sequence before each step is wanted: the result that is their sequence after each step
    windows   from length and batch to the stretches of steps, in the order of the sweep
    """
    return Writer(program, befores).function(windows)


class Writer(StageLines):
    """Lines of a whole sweep while they are written."""

    def __init__(self, program: Program, befores: Mapping[str, fx.Node]) -> None:
        super().__init__(program, homes(program, befores))
        self.befores = befores

    def function(self, windows: Windows) -> Callable[..., Any]:
        self.known["windows"] = windows
        inputs = [self.value(node) for node in self.program.inputs]
        self.say(f"def sweep({', '.join(['length', 'batch', *inputs])}):", 0)
        self.begin()
        self.say("stretches = windows(length, batch)")
        self.say("one = len(stretches) == 1")
        for timed in self.program.timed:
            self.prepare(timed)
        self.rooms()
        self.say("for start, end in stretches:")
        self.say("steps, rows, first, last = end - start, (end - start) * batch, start * batch, end * batch", 2)
        for timed in self.program.timed:
            self.stage(timed)
        self._between_windows()
        self._results()
        scope: dict[str, Any] = self.known
        exec(compile("\n".join(self.lines), f"<sweep of {self.program.split.loop.name}>", "exec"), scope)
        return scope["sweep"]

    def begin(self) -> None:
        """States before the first step, what is computed once, and totals that are still empty."""
        program = self.program
        self.known["device"] = self.device
        for name, (_, out) in program.delays.items():
            value, state = self.value(out), plain(name)
            if name in self.homes.by_address:
                self.say(f"s_{state} = {value} if {value} is None else {value}.contiguous()")
                continue
            self.say(f"if {value} is None: {value} = {self.empty(out, 'batch', leaves=True)}.zero_()")
            self.say(f"s_{state} = i_{state} = {value}.contiguous()")
        if program.once is not None:
            stage, function = program.once
            made = "".join(f"{self.value(node)}, " for node in stage.writes)
            given = {node for _, _, node in program.outputs}
            if stage.reads or placeholders(stage.graph)[0].users or given & set(stage.writes):
                name, reads = self.know("once", function), [self.value(node) for node in stage.reads]
                self.say(f"{made}= {name}({', '.join(['batch', *reads])})")
            else:  # the same for every call
                with torch.inference_mode(False), torch.no_grad():
                    self.say(f"{made}= {self.know('constants', function(1))}")
        for node in (*self.homes.totals, *program.summed):
            self.say(f"t_{node.name} = None")

    def _between_windows(self) -> None:
        """What is summed over time, and states that are what entered their delay at the end of the window."""
        for node in self.program.summed:
            axis, name = row_axis(node), f"t_{node.name}"
            whole = f"{self.in_window(node)}.unflatten({axis}, (steps, batch)).sum({axis})"
            self.say(f"{name} = {whole} if {name} is None else {name}.add_({whole})", self.inner)
        for state, into in self.program.shifts:
            place = "[:batch]" if self.program.reverse else "[rows - batch :]"
            there = into in self.program.sequences or (into in self.homes.made and self.varies(into))
            value = f"{self.in_window(into)}{place}" if there else self.value(into)
            self.say(f"s_{plain(state)} = {value}", self.inner)

    # ---- results

    def _results(self) -> None:
        if self.program.finish is not None:
            stage, function = self.program.finish
            name = self.know("finish", function)
            made = "".join(f"t_{node.name}, " for node in stage.writes)
            reads = [self._timeless(node) for node in stage.reads]
            self.say(f"{made}= {name}({', '.join(['batch', *reads])})")
        outputs = [self.result(*output) for output in self.program.outputs]
        found = [self._before(name, node) for name, node in self.befores.items()]
        self.say(f"return [{', '.join(outputs)}], [{', '.join(found)}]")

    def _timeless(self, node: fx.Node) -> str:
        return f"t_{node.name}" if node in self.homes.totals or node in self.program.summed else self.value(node)

    def result(self, kind: str, name: str, node: fx.Node) -> str:
        """An output of the program, when all windows are done."""
        if kind == "state":
            return f"s_{plain(name)}"
        return f"t_{node.name}" if kind == "total" else self._sequence(node)

    def _sequence(self, node: fx.Node) -> str:
        """A result in the form of a sequence: (length, batch, ...)."""
        if node in self.program.sequences:
            return self.value(node)
        if node not in self.homes.made:
            return f"{self.value(node)}.expand(length, *{self.value(node)}.shape)"
        if node in self.homes.places or node in self.homes.owners:
            return f"w_{node.name}"
        axis = row_axis(node)
        if axis == 0:
            sizes = ["length", "batch", *(str(size) for size in node.meta["val"].shape[1:])]
            return f"w_{node.name}.view({', '.join(sizes)})"
        return f"w_{node.name}.unflatten({axis}, (length, batch)).movedim({axis}, 0)"

    def _before(self, name: str, node: fx.Node) -> str:
        """The same memory as the sequence after each step, one step earlier; a new one if that is not its own."""
        if name == self.homes.owners[node] and node in self.homes.made:
            return f"b_{node.name}[{'1:' if self.program.reverse else ':length'}]"
        after, first = self._sequence(node), f"i_{plain(name)}.unsqueeze(0)"
        return f"torch.cat([{after}[1:], {first}])" if self.program.reverse else f"torch.cat([{first}, {after}[:-1]])"
