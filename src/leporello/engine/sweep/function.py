"""A sweep as one generated Python function: straight-line code with a loop over windows of steps.

This function is the overhead of a call beyond its stages, so all that is known beforehand is resolved in its text.
Values of a window are flat: one axis holds steps times batch. `explain` prints the path of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.sweep.placement import placement_of, possible_aliases
from leporello.engine.sweep.program import Program, own_row_axis
from leporello.engine.sweep.source import SourceText, ValueNames, python_name, size_texts
from leporello.engine.sweep.stage_writer import StageWriter
from leporello.loop.graph import placeholders, reads_lengths
from leporello.loop.port import Port, Role

Windows = Callable[[int, int], list[tuple[int, int]]]


def sweep_function(program: Program, befores: Mapping[str, fx.Node], windows: Windows) -> Callable[..., Any]:
    """A function (length, batch, *inputs) -> (outputs, sequences of the wanted states before each step), two lists.

    Inputs and outputs have the order of the program's; None for a state is zeros. Its attribute `text` is its source.

    befores   states whose sequence before each step is wanted -> the value that is their sequence after each step
    windows   from length and batch to the windows of steps, in the order of the sweep
    """
    text = SourceText()
    text.name("windows", windows)
    writer = _SweepWriter(ValueNames(text, program, placement_of(program, befores)), befores)
    writer.sweep()
    return text.function("sweep", f"sweep of {program.split.loop.name}")


def step_function(program: Program) -> Callable[..., list[Tensor]] | None:
    """A function (batch, *inputs) -> outputs of one step, sequences without their axis of steps.

    Where a network is called one step at a time, the overhead of a call exceeds the time of its kernel, and this
    function has less of it. For programs that consist of kernels only; None for others.
    """
    written = {node for timed in program.timed if timed.kernel for node, axis in timed.kernel.writes if axis == 0}
    sequences = {node for port, node in program.outputs if port.kind == "sequence"}
    others = possible_aliases(program, {}) or program.finish or program.shifts
    if not program.timed or not program.only_kernels or others or not sequences <= written:
        return None
    text = SourceText()
    _SweepWriter(ValueNames(text, program, placement_of(program, {}), one_step=True), {}).step()
    return text.function("step", f"step of {program.split.loop.name}")


class _SweepWriter:
    """Writes the function of a sweep or of a step, from arguments to results; `StageWriter` writes the stages."""

    def __init__(self, values: ValueNames, befores: Mapping[str, fx.Node]) -> None:
        self.values, self.text, self.program = values, values.text, values.program
        self.placement, self.befores = values.placement, befores
        self.stages = StageWriter(values)

    def sweep(self) -> None:
        """Write the function of a sweep."""
        text = self.text
        text.line(f"def sweep({', '.join(['length', 'batch', *map(self.values.value, self.program.inputs)])}):", 0)
        self._begin()
        text.line("every_window = windows(length, batch)")
        text.line("one = len(every_window) == 1")
        self._prepare()
        text.line("for start, end in every_window:")
        free = self.program.split.loop.free_lengths
        text.line(f"steps, rows = end - start, {'batch.times(end - start)' if free else '(end - start) * batch'}", 2)
        for timed in self.program.timed:
            self.stages.stage(timed)
        self._between_windows()
        self._after_windows()
        outputs = [self._result(port, node) for port, node in self.program.outputs]
        befores = [self._before(name, node) for name, node in self.befores.items()]
        text.line(f"return [{', '.join(outputs)}], [{', '.join(befores)}]")

    def step(self) -> None:
        """Write the function of a single step."""
        text = self.text
        text.line(f"def step({', '.join(['batch', *map(self.values.value, self.program.inputs)])}):", 0)
        text.line("length = steps = 1; rows = batch")
        self._begin()
        self._prepare()
        for timed in self.program.timed:
            assert timed.kernel is not None
            self.stages.by_kernel(timed.kernel)
        text.line(f"return [{', '.join(self._result(port, node) for port, node in self.program.outputs)}]")

    def _begin(self) -> None:
        """Write the initial states, what is computed once, and empty totals."""
        program, text = self.program, self.text
        for name, (_, out) in program.delays.items():
            value, state = self.values.value(out), python_name(name)
            if out in self.placement.shifted:
                continue
            if name in self.placement.may_be_none:
                text.line(f"s_{state} = {value} if {value} is None else {value}.contiguous()")
                continue
            text.line(f"if {value} is None: {value} = {self.values.empty(out, 'batch', leaves=True)}.zero_()")
            text.line(f"s_{state} = i_{state} = {value}.contiguous()")
        if program.once is not None:
            stage, function = program.once
            targets = "".join(f"{self.values.value(node)}, " for node in stage.writes)
            results = {node for _, node in program.outputs}
            counts = placeholders(stage.graph)[0].users or reads_lengths(stage.graph)
            if stage.reads or counts or results & set(stage.writes):
                reads = ", ".join(["batch", *map(self.values.value, stage.reads)])
                text.line(f"{targets}= {text.name('once', function)}({reads})")
            else:  # the same for every call
                with torch.inference_mode(False), torch.no_grad():
                    text.line(f"{targets}= {text.name('constants', function(1))}")
        for node in (*self.placement.totals, *program.summed):
            text.line(f"t_{node.name} = None")

    def _prepare(self) -> None:
        """Write shifted inputs, what stages need before the first window, and memory for the outputs."""
        for state_name, into in self.program.shifts:
            state = self.program.delays[state_name][1]
            if state in self.placement.shifted:
                name, given = (
                    self.values.shifted(state),
                    f"{self.values.value(into)}.contiguous(), {self.values.value(state)}",
                )
                given += f", {self.program.reverse}"
                if state in self.placement.lagged:
                    lagged = f"Lagged({given}, put_shifted, in_place)"
                    self.text.line(f"{name} = in_place({given}) if one else {lagged}")
                else:
                    self.text.line(f"{name} = Lagged({given}, put_shifted)")
                    self.text.line(f"if one: {name} = {name}[:]")
        ports = zip(self.program.inputs, self.program.split.loop.inputs, strict=True)
        for name in [self.values.value(node) for node, port in ports if port.role is Role.STATE_BEFORE]:
            self.text.line(f"if one and {name}.__class__ is Lagged: {name} = {name}.whole()")
        for timed in self.program.timed:
            self.stages.prepare(timed)
        self.values.allocate_sequences()

    def _between_windows(self) -> None:
        """Write what follows the stages of a window: sums over time, and the new values of states on no cycle.

        The new value of such a state is the last step, in the order of the sweep, of what enters its delay.
        """
        depth = self.values.depth
        for node in self.program.summed:
            axis, name = own_row_axis(node), f"t_{node.name}"
            whole = f"{self.values.in_window(node)}.unflatten({axis}, (steps, batch)).sum({axis})"
            self.text.line(f"{name} = {whole} if {name} is None else {name}.add_({whole})", depth)
        for state, into in self.program.shifts:
            if self.program.delays[state][1] in self.placement.shifted:
                continue  # no window reads it
            last_step = "[:batch]" if self.program.reverse else "[rows - batch :]"
            is_sequence = into in self.program.sequences or (
                into in self.placement.written and self.values.varies(into)
            )
            value = f"{self.values.in_window(into)}{last_step}" if is_sequence else self.values.value(into)
            self.text.line(f"s_{python_name(state)} = {value}", depth)

    # ---- results

    def _after_windows(self) -> None:
        """Write the final values of shifted inputs, copied, and what is computed from totals."""
        for state, into in self.program.shifts:
            if self.program.delays[state][1] in self.placement.shifted:
                last = "0" if self.program.reverse else "length - 1"
                self.text.line(f"s_{python_name(state)} = torch.select_copy({self.values.value(into)}, 0, {last})")
        if self.program.finish is not None:
            stage, function = self.program.finish
            targets = "".join(f"t_{node.name}, " for node in stage.writes)
            reads = ", ".join(["batch", *map(self._timeless, stage.reads)])
            self.text.line(f"{targets}= {self.text.name('finish', function)}({reads})")

    def _timeless(self, node: fx.Node) -> str:
        """The name of a total, or of a value that is computed once."""
        is_total = node in self.placement.totals or node in self.program.summed
        return f"t_{node.name}" if is_total else self.values.value(node)

    def _result(self, port: Port, node: fx.Node) -> str:
        """The expression of an output of the program, after the last window."""
        if port.kind == "state":
            return f"s_{python_name(port.name)}"
        return f"t_{node.name}" if port.kind == "total" else self._sequence(node)

    def _sequence(self, node: fx.Node) -> str:
        """The expression of an output as a sequence, (length, batch, ...)."""
        if node in self.program.sequences:
            return self.values.value(node)
        if node not in self.placement.written:
            return f"{self.values.value(node)}.expand(length, *{self.values.value(node)}.shape)"
        if node in self.placement.in_place or node in self.placement.owners:
            return f"w_{node.name}"
        axis = own_row_axis(node)
        if axis == 0:
            sizes = ["length", "batch", *size_texts(node.meta["val"])[1:]]
            return f"w_{node.name}.view({', '.join(sizes)})"
        return f"w_{node.name}.unflatten({axis}, (length, batch)).movedim({axis}, 0)"

    def _before(self, name: str, node: fx.Node) -> str:
        """The expression of a state's sequence before each step.

        It is a view of the states after each step, shifted by one, if that sequence has the initial state in front of
        it (`Placement.owners`); None for a shifted input that was not copied, of which a `Lagged` can be made; else a
        copy.

        node   the state's sequence after each step
        """
        state = self.program.delays[name][1]
        if state in self.placement.shifted:
            return "None" if state in self.placement.lagged else f"({self.values.shifted(state)} if one else None)"
        if name == self.placement.owners[node] and node in self.placement.written:
            return f"b_{node.name}[{'1:' if self.program.reverse else ':length'}]"
        after, first = self._sequence(node), f"i_{python_name(name)}.unsqueeze(0)"
        return f"torch.cat([{after}[1:], {first}])" if self.program.reverse else f"torch.cat([{first}, {after}[:-1]])"
