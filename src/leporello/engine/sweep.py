"""A sweep as one Python function, written out for a program: straight lines, and a loop over windows of steps.

What a call costs beside its stages is what this function does, so nothing is looked up in it that is known before.
Values of a window are flat: one axis holds steps times batch. Knows programs; knows nothing of cells or gradients.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.inside import by_operators, spread
from leporello.engine.kernel.description import Matrix
from leporello.engine.memory import room
from leporello.engine.program import Program, Timed, row_axis
from leporello.loop.classes import Class
from leporello.rewrite.save import SAVED

Windows = Callable[[int, int], list[tuple[int, int]]]


def sweep_of(program: Program, befores: Mapping[str, fx.Node], windows: Windows) -> Callable[..., Any]:
    """A function (length, batch, *inputs) -> outputs, and the sequences of the states asked for.

    befores   for states whose sequence before each step is wanted: the result that is their sequence after each step
    windows   from length and batch to the stretches of steps, in the order of the sweep
    """
    return Writer(program, befores).function(windows)


def shared(program: Program) -> tuple[int, ...]:
    """The outputs that may lie in the memory of an input or of another output."""
    own: set[Any] = set()
    for timed in program.timed:
        if timed.kernel is not None:
            own.update(node for node, axis in timed.kernel.writes if axis == 0)
            own.update(timed.kernel.states)
        else:
            own.update(timed.placed)
    found = []
    for index, (kind, name, node) in enumerate(program.outputs):
        key = name if kind == "state" else node
        if kind == "total" or key not in own:
            found.append(index)
        own.discard(key)  # the same once more is no longer its own
    return tuple(found)


def device_of(program: Program) -> torch.device:
    """Where the inputs lie, and all else."""
    inputs = program.split.loop.inputs
    return inputs[0].device if inputs else torch.device("cpu")


class Writer:
    """Lines while they are written.

    A value `name` of the graph is called v_name; s_name is a state, i_name its first value, w_name a sequence of the
    full length that is given out, b_name the same with the state before the first step, t_name a total. Sequences have
    an axis of steps and one of rows where memory is made for them before they are computed, else they are flat.

    inner   how deep the lines of a window stand
    """

    inner = 2

    def __init__(self, program: Program, befores: Mapping[str, fx.Node]) -> None:
        self.program, self.befores = program, dict(befores)
        self.classes = program.split.classes
        self.owners = {node: name for name, node in reversed(self.befores.items())}  # the first state of each
        self.known: dict[str, Any] = {"torch": torch, "spread": spread, "put": _put, "by_operators": by_operators}
        self.known |= {"room": room, "copy": ctypes.memmove}
        self.leaving = {
            node for kind, name, node in program.outputs if kind == "sequence" and not name.startswith(SAVED)
        }
        self.lines: list[str] = []
        self.places: set[fx.Node] = set()  # kept sequences that are written where they stay
        self.loose: set[fx.Node] = set()  # other values that a stage writes
        self.totals = dict.fromkeys(
            node for timed in program.timed for node, rows in timed.writes if rows is None and not timed.inside
        )
        for timed in program.timed:
            self._sort(timed)
        self.on_cpu = device_of(program).type == "cpu"
        self.by_address = {
            name
            for timed in program.timed
            if timed.kernel is not None
            for name in timed.kernel.states
            if not self._is_read(name, timed)
        }

    def _is_read(self, state: str, inside: Timed) -> bool:
        """Whether others than its inside read what a state begins with."""
        program, out = self.program, self.program.delays[state][1]
        read = {node for _, _, node in program.outputs} | {node for _, node in program.shifts}
        for alone in (program.once, program.finish):
            read |= set(alone[0].reads) if alone else set()
        for timed in program.timed:
            read |= set() if timed is inside else {*timed.fixed, *(node for node, _ in timed.varying)}
        return state in self.befores or out in read

    def _sort(self, timed: Timed) -> None:
        if timed.kernel is not None:
            placed = [node for node, axis in timed.kernel.writes if axis == 0]
        else:
            placed = list(timed.placed)
        self.places.update(node for node in placed if node in self.program.kept)
        made = [node for node, rows in timed.writes if node not in self.totals]
        self.loose.update(node for node in made if node not in self.places)

    # ---- the whole

    def function(self, windows: Windows) -> Callable[..., Any]:
        self.known["windows"] = windows
        inputs = [self.value(node) for node in self.program.inputs]
        self.say(f"def sweep({', '.join(['length', 'batch', *inputs])}):", 0)
        self._begin()
        self.say("stretches = windows(length, batch)")
        self.say("one = len(stretches) == 1")
        for timed in self.program.timed:
            self._prepare(timed)
        self._rooms()
        self.say("for start, end in stretches:")
        self.say("steps, rows, first, last = end - start, (end - start) * batch, start * batch, end * batch", 2)
        for timed in self.program.timed:
            if timed.kernel is not None:
                self._by_kernel(timed)
            elif timed.inside:
                self._inside(timed)
            else:
                self._at_once(timed)
            free = [self.flat(node) for node in dict.fromkeys(timed.done) if node in self.loose]
            if free:
                self.say(f"{' = '.join(free)} = None", 2)
        self._between_windows()
        self._results()
        scope: dict[str, Any] = self.known
        exec(compile("\n".join(self.lines), f"<sweep of {self.program.split.loop.name}>", "exec"), scope)
        return scope["sweep"]

    def say(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    def value(self, node: fx.Node) -> str:
        return f"v_{node.name}"

    def flat(self, node: fx.Node) -> str:
        """What a stage makes in a window; of what is the same at every step a name of its own, beside the value's."""
        return self.value(node) if self._varies(node) else f"f_{node.name}"

    def _varies(self, node: fx.Node) -> bool:
        return self.classes[node] is Class.VARYING

    def know(self, wish: str, value: Any) -> str:
        """A name for what is known before any call."""
        name, count = wish, 0
        while name in self.known and self.known[name] is not value:
            name, count = f"{wish}_{count}", count + 1
        self.known[name] = value
        return name

    def _begin(self) -> None:
        program = self.program
        self.known["device"] = device_of(program)
        for name, (_, out) in program.delays.items():
            value, state = self.value(out), plain(name)
            if name in self.by_address:
                self.say(f"s_{state} = {value} if {value} is None else {value}.contiguous()")
                continue
            self.say(f"if {value} is None: {value} = {self._empty(out, 'batch', leaves=True)}.zero_()")
            self.say(f"s_{state} = i_{state} = {value}.contiguous()")
        if program.once is not None:
            stage, function = program.once
            self._called(stage.writes, self.know("once", function), "batch", stage.reads)
        for node in self.totals:
            self.say(f"t_{node.name} = None")
        for node in program.summed:
            self.say(f"t_{node.name} = None")

    def _called(self, writes: Any, function: str, rows: str, reads: Any) -> None:
        made = "".join(f"{self.value(node)}, " for node in writes)
        self.say(f"{made}= {function}({', '.join([rows, *(self.value(node) for node in reads)])})")

    # ---- memory

    def _empty(self, node: fx.Node, rows: str, axis: int = 0, *, leaves: bool | None = None) -> str:
        """Memory for so many rows of a value; for one that leaves the engine, memory like any tensor's.

        axis   of the rows
        """
        sizes = [str(size) for size in node.meta["val"].shape]
        sizes[axis] = rows
        return self._memory(node, sizes, node in self.leaving if leaves is None else leaves)

    def _memory(self, node: fx.Node, sizes: list[str], leaves: bool) -> str:
        kind = self.know(str(node.meta["val"].dtype).replace("torch.", "k_"), node.meta["val"].dtype)
        return f"{'torch.empty' if leaves else 'room'}(({', '.join(sizes)},), dtype={kind}, device=device)"

    def _rooms(self) -> None:
        """Memory for the sequences that are given out, where it is known before a stage runs that it is needed."""
        for node in sorted(self.program.kept, key=lambda node: node.name):
            name = node.name
            if node in self.owners and (node in self.places or node in self.loose):
                self.say(f"b_{name} = {self._long(node, 'length + 1')}")
                self._first(node, self.owners[node])
                self.say(f"w_{name} = b_{name}[{':length' if self.program.reverse else '1:'}]")
            elif node in self.places:
                self.say(f"w_{name} = {self._long(node, 'length')}")
            elif node in self.loose:
                self.say(f"w_{name} = None")

    def _long(self, node: fx.Node, length: str) -> str:
        """Memory for a sequence of so many steps."""
        sizes = [length, "batch", *(str(size) for size in node.meta["val"].shape[1:])]
        return self._memory(node, sizes, node in self.leaving)

    def _first(self, node: fx.Node, name: str) -> None:
        """The state before the first step goes in front of those after each."""
        state, place = plain(name), "length" if self.program.reverse else "0"
        if self.on_cpu and node.meta["val"].dtype == self.program.delays[name][1].meta["val"].dtype:
            offset = f" + length * batch * {_row_bytes(node)}" if self.program.reverse else ""
            to = f"b_{node.name}.data_ptr(){offset}"
            self.say(f"copy({to}, i_{state}.data_ptr(), batch * {_row_bytes(node)})")
        else:
            self.say(f"b_{node.name}[{place}] = i_{state}")

    def _in_window(self, node: fx.Node) -> str:
        """The flat values of a window."""
        if node in self.program.sequences:
            name, axis = self.value(node), row_axis(node)
            turned = f".movedim(0, {axis})" if axis else ""
            return f"({name} if one else {name}[start:end]){turned}.flatten({axis}, {axis + 1}).contiguous()"
        if node in self.places and self._varies(node):
            return self._room(node)
        if node in self.loose and self._varies(node):
            return f"{self.value(node)}.contiguous()"
        return f"spread({self.value(node)}, {row_axis(node)}, steps)"

    def _room(self, node: fx.Node) -> str:
        """The part of a window in memory made before, flat."""
        return f"(w_{node.name} if one else w_{node.name}[start:end]).flatten(0, 1)"

    def _keep(self, node: fx.Node, axis: int) -> None:
        """A loose value goes to its place in the whole, if the loop gives it out."""
        if node not in self.program.kept:
            return
        name, value = f"w_{node.name}", self.flat(node)
        if node in self.owners:
            self.say(f"{name}[start:end] = {value}.unflatten(0, (steps, batch))", self.inner)
            return
        self.say(f"if one: {name} = {value}", self.inner)
        self.say("else:", self.inner)
        self.say(f"if {name} is None: {name} = {self._empty(node, 'length * batch', axis)}", self.inner + 1)
        self.say(f"put({name}, {value}, {axis}, first, rows)", self.inner + 1)

    # ---- stages

    def _prepare(self, timed: Timed) -> None:
        """What a kernel reads that no window changes."""
        if timed.kernel is None:
            return
        inside = timed.kernel
        name = self.know(f"kernel_{len([key for key in self.known if key.startswith('kernel_')])}", inside.built)
        for node, axis in inside.reads:
            if axis == 0 and node in self.program.sequences:
                self.say(f"{self.value(node)} = {self.value(node)}.contiguous()")
        rows = [f"{self.value(node)}.movedim({axis}, 0).contiguous()" for node, axis in inside.rows]
        for node, read in zip(inside.fixed, inside.loaded, strict=True):
            if read or node in self.program.inputs:
                self.say(f"{self.value(node)} = {self.value(node)}.contiguous()")
        fixed = [self.value(node) for node in inside.fixed]
        self.say(f"{name}_same = [{', '.join([*rows, *fixed])}]")
        self.say(f"{name}_pointers = [value.data_ptr() for value in {name}_same]")
        self.say(
            f"{name}_words = [{', '.join(self._words(matrix, inside) for matrix in inside.built.kernel.matrices)}]"
        )
        self.say(f"{name}_panels = {name}.pack({name}_words, length * batch)")
        for state in inside.states:
            out = self.program.delays[state][1]
            now, new = f"s_{plain(state)}", self._empty(out, "batch", leaves=True)
            self.say(f"n_{plain(state)} = {new} if {now} is None else torch.empty_like({now})")

    def _by_kernel(self, timed: Timed) -> None:
        inside = timed.kernel
        name = next(key for key, value in self.known.items() if value is inside.built)
        states = [self._address(state) for state in inside.states]
        following = [f"n_{plain(state)}.data_ptr()" for state in inside.states]
        reads, writes = [], []
        for node, axis in inside.reads:
            reads.append(self._read(node, axis))
        for node, axis in inside.writes:
            writes.append(self._written(node, axis))
        pointers = ", ".join([*states, *reads, f"*{name}_pointers", *following, *writes, f"*{name}_words"])
        self.say(f"{name}.run([{pointers}], steps, batch)", self.inner)
        if self.inner == 2:
            self.say(f"if one: {name}_panels = None", 2)
        for state in inside.states:
            self.say(f"s_{plain(state)} = n_{plain(state)}", self.inner)
        for node, axis in inside.writes:
            if node not in self.places:
                if axis:
                    self.say(f"{self.flat(node)} = {self.flat(node)}.movedim(0, {axis})", self.inner)
                self._keep(node, axis)

    def _words(self, matrix: Matrix, inside: Any) -> str:
        """A matrix as a kernel is given it: its panels, not yet made, its address and its strides."""
        node, (head, inner, outer) = inside.fixed[matrix.fixed], matrix.axes
        name, sizes = self.value(node), node.meta["val"].shape
        if node in self.program.inputs:
            along = [str(0 if axis is None else math.prod(sizes[axis + 1 :])) for axis in (head, inner, outer)]
        else:
            along = ["0" if axis is None else f"{name}.stride({axis})" for axis in (head, inner, outer)]
        return f"0, {name}.data_ptr(), {', '.join(along)}"

    def _address(self, state: str) -> str:
        """Of what a state is before a window; 0 for zeros."""
        name = f"s_{plain(state)}"
        return f"0 if {name} is None else {name}.data_ptr()" if state in self.by_address else f"{name}.data_ptr()"

    def _read(self, node: fx.Node, axis: int) -> str:
        """The address of what a kernel reads in a window."""
        if axis == 0 and node in self.program.sequences:
            return f"{self.value(node)}.data_ptr() + first * {_row_bytes(node)}"
        if node in self.places:
            return f"w_{node.name}.data_ptr() + first * {_row_bytes(node)}"
        whole = self._in_window(node).removesuffix(".contiguous()")
        name = f"r_{node.name}"
        self.say(f"{name} = {whole}{f'.movedim({axis}, 0)' if axis else ''}.contiguous()", self.inner)
        return f"{name}.data_ptr()"

    def _written(self, node: fx.Node, axis: int) -> str:
        if node in self.places:
            return f"w_{node.name}.data_ptr() + first * {_row_bytes(node)}"
        sizes = [str(size) for size in node.meta["val"].shape]
        sizes = ["rows", *sizes[:axis], *sizes[axis + 1 :]]
        self.say(f"{self.flat(node)} = {self._memory(node, sizes, node in self.leaving)}", self.inner)
        return f"{self.flat(node)}.data_ptr()"

    def _inside(self, timed: Timed) -> None:
        """Step by step with torch's operators."""
        states = "".join(f"s_{plain(name)}, " for name in timed.states)
        columns = "".join(f"({self._in_window(node)}, {axis}), " for node, axis in timed.varying)
        fixed = "".join(f"{self.value(node)}, " for node in timed.fixed)
        rooms = self._placing(timed)
        loose = "".join(f"{self.flat(node)}, " for _, node in timed.loose)
        of = self.know(f"inside_{len(self.known)}", timed)
        places = "".join(f"{room}, " for room in rooms)
        given = f"{of}, steps, batch, {self.program.reverse}, ({states}), ({columns}), ({fixed}), ({places})"
        self.say(f"({states}), ({loose}) = by_operators({given})", self.inner)
        for _, node in timed.loose:
            self._keep(node, row_axis(node))

    def _placing(self, timed: Timed) -> list[str]:
        """Memory for the results that a stage puts where it is told."""
        rooms = []
        for node in timed.placed:
            if node in self.places:
                rooms.append(self._room(node))
            else:
                self.say(f"{self.flat(node)} = {self._empty(node, 'rows')}", self.inner)
                rooms.append(self.flat(node))
        return rooms

    def _at_once(self, timed: Timed) -> None:
        reads = [f"s_{plain(name)}" for name in timed.states]
        reads += [self._in_window(node) for node, _ in timed.varying]
        reads += [self.value(node) for node in timed.fixed]
        function = self.know(f"at_once_{len(self.known)}", timed.function)
        reads += self._placing(timed)
        made = "".join("_, " if node in self.places else f"{self.flat(node)}, " for node, _ in timed.writes)
        self.say(f"{made or '_'}= {function}({', '.join(['rows', *reads])})", self.inner)
        for node, rows in timed.writes:
            if node in self.places:
                continue
            if rows is None:
                total, value = f"t_{node.name}", self.flat(node)
                self.say(f"{total} = {value} if {total} is None else {total}.add_({value})", self.inner)
                self.say(f"{value} = None", self.inner)
            else:
                self._keep(node, rows)

    def _between_windows(self) -> None:
        for node in self.program.summed:
            axis, name = row_axis(node), f"t_{node.name}"
            whole = f"{self._in_window(node)}.unflatten({axis}, (steps, batch)).sum({axis})"
            self.say(f"{name} = {whole} if {name} is None else {name}.add_({whole})", self.inner)
        for state, into in self.program.shifts:
            place = "[:batch]" if self.program.reverse else "[rows - batch :]"
            there = into in self.program.sequences or (into in self.places | self.loose and self._varies(into))
            self.say(
                f"s_{plain(state)} = {f'{self._in_window(into)}{place}' if there else self.value(into)}", self.inner
            )

    # ---- results

    def _results(self) -> None:
        if self.program.finish is not None:
            stage, function = self.program.finish
            name = self.know("finish", function)
            made = "".join(f"t_{node.name}, " for node in stage.writes)
            reads = [self._timeless(node) for node in stage.reads]
            self.say(f"{made}= {name}({', '.join(['batch', *reads])})")
        outputs = [self._result(*output) for output in self.program.outputs]
        found = [self._before(name, node) for name, node in self.befores.items()]
        self.say(f"return [{', '.join(outputs)}], [{', '.join(found)}]")

    def _timeless(self, node: fx.Node) -> str:
        return f"t_{node.name}" if node in self.totals or node in self.program.summed else self.value(node)

    def _result(self, kind: str, name: str, node: fx.Node) -> str:
        if kind == "state":
            return f"s_{plain(name)}"
        return f"t_{node.name}" if kind == "total" else self._sequence(node)

    def _sequence(self, node: fx.Node) -> str:
        """A result in the form of a sequence: (length, batch, ...)."""
        if node in self.program.sequences:
            return self.value(node)
        if node not in self.places and node not in self.loose:
            return f"{self.value(node)}.expand(length, *{self.value(node)}.shape)"
        if node in self.places or node in self.owners:
            return f"w_{node.name}"
        axis = row_axis(node)
        if axis == 0:
            return f"w_{node.name}.view({self._timed(node)})"
        return f"w_{node.name}.unflatten({axis}, (length, batch)).movedim({axis}, 0)"

    def _timed(self, node: fx.Node) -> str:
        return ", ".join(["length", "batch", *(str(size) for size in node.meta["val"].shape[1:])])

    def _before(self, name: str, node: fx.Node) -> str:
        """The same memory as the sequence after each step, one step earlier; a new one if that is not its own."""
        if name == self.owners[node] and (node in self.places or node in self.loose):
            return f"b_{node.name}[{'1:' if self.program.reverse else ':length'}]"
        after, first = self._sequence(node), f"i_{plain(name)}.unsqueeze(0)"
        return f"torch.cat([{after}[1:], {first}])" if self.program.reverse else f"torch.cat([{first}, {after}[:-1]])"


def plain(name: str) -> str:
    """A state's name as part of a Python name."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def _row_bytes(node: fx.Node) -> int:
    value: Tensor = node.meta["val"]
    count = value.dtype.itemsize
    for size in value.shape[1:]:
        count *= size
    return count


def _put(whole: Tensor, value: Tensor, axis: int, first: int, rows: int) -> None:
    """A window's values into their place."""
    whole.narrow(axis, first, rows).copy_(value)
