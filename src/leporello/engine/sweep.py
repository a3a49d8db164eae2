"""A sweep as one Python function, written out for a program: straight lines, and a loop over windows of steps.

What a call costs beside its stages is what this function does, so nothing is looked up in it that is known before.
Values of a window are flat: one axis holds steps times batch. Knows programs; knows nothing of cells or gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.inside import by_operators, spread
from leporello.engine.program import Program, Timed, row_axis
from leporello.loop.classes import Class

Windows = Callable[[int, int], list[tuple[int, int]]]


def sweep_of(program: Program, befores: Mapping[str, fx.Node], windows: Windows) -> Callable[..., Any]:
    """A function (length, batch, *inputs) -> outputs, and the sequences of the states asked for.

    befores   for states whose sequence before each step is wanted: the result that is their sequence after each step
    windows   from length and batch to the stretches of steps, in the order of the sweep
    """
    return _Writer(program, befores).function(windows)


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


class _Writer:
    """Lines while they are written.

    A value `name` of the graph is called v_name; s_name is a state, i_name its first value, w_name a sequence of the
    full length that is given out, b_name the same with the state before the first step, t_name a total.
    """

    def __init__(self, program: Program, befores: Mapping[str, fx.Node]) -> None:
        self.program, self.befores = program, dict(befores)
        self.classes = program.split.classes
        self.owners = {node: name for name, node in reversed(self.befores.items())}  # the first state of each
        self.known: dict[str, Any] = {"torch": torch, "spread": spread, "put": _put, "by_operators": by_operators}
        self.lines: list[str] = []
        self.places: set[fx.Node] = set()  # kept sequences that are written where they stay
        self.loose: set[fx.Node] = set()  # other values that a stage writes
        self.totals = dict.fromkeys(
            node for timed in program.timed for node, rows in timed.writes if rows is None and not timed.inside
        )
        for timed in program.timed:
            self._sort(timed)

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
        where = self.value(program.inputs[0]) + ".device" if program.inputs else "torch.device('cpu')"
        self.say(f"device = {where}")
        for name, (_, out) in program.delays.items():
            self.say(f"s_{_plain(name)} = i_{_plain(name)} = {self.value(out)}.contiguous()")
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

    def _empty(self, node: fx.Node, rows: str, axis: int = 0) -> str:
        """Memory for so many rows of a value."""
        sizes = [str(size) for size in node.meta["val"].shape]
        sizes[axis] = rows
        kind = self.know(str(node.meta["val"].dtype).replace("torch.", "k_"), node.meta["val"].dtype)
        return f"torch.empty(({', '.join(sizes)},), dtype={kind}, device=device)"

    def _rooms(self) -> None:
        """Memory for the sequences that are given out, where it is known before a stage runs that it is needed."""
        for node in sorted(self.program.kept, key=lambda node: node.name):
            if node in self.owners and (node in self.places or node in self.loose):
                name, state = node.name, _plain(self.owners[node])
                self.say(f"b_{name} = {self._empty(node, '(length + 1) * batch')}")
                if self.program.reverse:
                    self.say(f"b_{name}[length * batch :] = i_{state}")
                    self.say(f"w_{name} = b_{name}[: length * batch]")
                else:
                    self.say(f"b_{name}[:batch] = i_{state}")
                    self.say(f"w_{name} = b_{name}[batch:]")
            elif node in self.places:
                self.say(f"w_{node.name} = {self._empty(node, 'length * batch')}")
            elif node in self.loose:
                self.say(f"w_{node.name} = None")

    def _in_window(self, node: fx.Node) -> str:
        """The flat values of a window."""
        if node in self.program.sequences:
            name, axis = self.value(node), row_axis(node)
            turned = f".movedim(0, {axis})" if axis else ""
            return f"({name} if one else {name}[start:end]){turned}.flatten({axis}, {axis + 1}).contiguous()"
        if node in self.places and self._varies(node):
            return f"(w_{node.name} if one else w_{node.name}[first:last])"
        if node in self.loose and self._varies(node):
            return f"{self.value(node)}.contiguous()"
        return f"spread({self.value(node)}, {row_axis(node)}, steps)"

    def _keep(self, node: fx.Node, axis: int) -> None:
        """A loose value goes to its place in the whole, if the loop gives it out."""
        if node not in self.program.kept:
            return
        name, value = f"w_{node.name}", self.flat(node)
        if node in self.owners:
            self.say(f"{name}[first:last] = {value}", 2)
            return
        self.say(f"if one: {name} = {value}", 2)
        self.say("else:", 2)
        self.say(f"if {name} is None: {name} = {self._empty(node, 'length * batch', axis)}", 3)
        self.say(f"put({name}, {value}, {axis}, first, rows)", 3)

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
        fixed = [
            f"{self.value(node)}{'.contiguous()' if read else ''}"
            for node, read in zip(inside.fixed, inside.loaded, strict=True)
        ]
        self.say(f"{name}_same = [{', '.join([*rows, *fixed])}]")
        self.say(f"{name}_matrices = {name}.pack({name}_same[{len(rows)}:], length * batch)")
        self.say(f"{name}_pointers = [value.data_ptr() for value in {name}_same]")
        for state in inside.states:
            out = self.program.delays[state][1]
            self.say(f"n_{_plain(state)} = {self._empty(out, 'batch')}")

    def _by_kernel(self, timed: Timed) -> None:
        inside = timed.kernel
        name = next(key for key, value in self.known.items() if value is inside.built)
        states = [f"s_{_plain(state)}.data_ptr()" for state in inside.states]
        following = [f"n_{_plain(state)}.data_ptr()" for state in inside.states]
        reads, writes = [], []
        for node, axis in inside.reads:
            reads.append(self._read(node, axis))
        for node, axis in inside.writes:
            writes.append(self._written(node, axis))
        pointers = ", ".join([*states, *reads, f"*{name}_pointers", *following, *writes])
        self.say(f"{name}.run([{pointers}], {name}_matrices, steps, batch)", 2)
        for state in inside.states:
            self.say(f"s_{_plain(state)} = n_{_plain(state)}", 2)
        for node, axis in inside.writes:
            if node not in self.places:
                if axis:
                    self.say(f"{self.flat(node)} = {self.flat(node)}.movedim(0, {axis})", 2)
                self._keep(node, axis)

    def _read(self, node: fx.Node, axis: int) -> str:
        """The address of what a kernel reads in a window."""
        if axis == 0 and node in self.program.sequences:
            return f"{self.value(node)}.data_ptr() + first * {_row_bytes(node)}"
        if node in self.places:
            return f"w_{node.name}.data_ptr() + first * {_row_bytes(node)}"
        whole = self._in_window(node).removesuffix(".contiguous()")
        name = f"r_{node.name}"
        self.say(f"{name} = {whole}{f'.movedim({axis}, 0)' if axis else ''}.contiguous()", 2)
        return f"{name}.data_ptr()"

    def _written(self, node: fx.Node, axis: int) -> str:
        if node in self.places:
            return f"w_{node.name}.data_ptr() + first * {_row_bytes(node)}"
        sizes = list(node.meta["val"].shape)
        rest = "".join(f"{size}, " for index, size in enumerate(sizes) if index != axis)
        kind = self.know(str(node.meta["val"].dtype).replace("torch.", "k_"), node.meta["val"].dtype)
        self.say(f"{self.flat(node)} = torch.empty((rows, {rest}), dtype={kind}, device=device)", 2)
        return f"{self.flat(node)}.data_ptr()"

    def _inside(self, timed: Timed) -> None:
        """Step by step with torch's operators."""
        states = "".join(f"s_{_plain(name)}, " for name in timed.states)
        columns = "".join(f"({self._in_window(node)}, {axis}), " for node, axis in timed.varying)
        fixed = "".join(f"{self.value(node)}, " for node in timed.fixed)
        rooms = []
        for node in timed.placed:
            if node not in self.places:
                self.say(f"{self.flat(node)} = {self._empty(node, 'rows')}", 2)
                rooms.append(self.flat(node))
            else:
                rooms.append(f"(w_{node.name} if one else w_{node.name}[first:last])")
        loose = "".join(f"{self.flat(node)}, " for _, node in timed.loose)
        of = self.know(f"inside_{len(self.known)}", timed)
        places = "".join(f"{room}, " for room in rooms)
        given = f"{of}, steps, batch, {self.program.reverse}, ({states}), ({columns}), ({fixed}), ({places})"
        self.say(f"({states}), ({loose}) = by_operators({given})", 2)
        for _, node in timed.loose:
            self._keep(node, row_axis(node))

    def _at_once(self, timed: Timed) -> None:
        reads = [f"s_{_plain(name)}" for name in timed.states]
        reads += [self._in_window(node) for node, _ in timed.varying]
        reads += [self.value(node) for node in timed.fixed]
        function = self.know(f"at_once_{len(self.known)}", timed.function)
        made = "".join(f"{self.flat(node)}, " for node, _ in timed.writes)
        self.say(f"{made or '_'}= {function}({', '.join(['rows', *reads])})", 2)
        for node, rows in timed.writes:
            if rows is None:
                total, value = f"t_{node.name}", self.flat(node)
                self.say(f"{total} = {value} if {total} is None else {total}.add_({value})", 2)
                self.say(f"{value} = None", 2)
            else:
                self._keep(node, rows)

    def _between_windows(self) -> None:
        for node in self.program.summed:
            axis, name = row_axis(node), f"t_{node.name}"
            whole = f"{self._in_window(node)}.unflatten({axis}, (steps, batch)).sum({axis})"
            self.say(f"{name} = {whole} if {name} is None else {name}.add_({whole})", 2)
        for state, into in self.program.shifts:
            place = "[:batch]" if self.program.reverse else "[rows - batch :]"
            there = into in self.program.sequences or (into in self.places | self.loose and self._varies(into))
            self.say(f"s_{_plain(state)} = {f'{self._in_window(into)}{place}' if there else self.value(into)}", 2)

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
            return f"s_{_plain(name)}"
        return f"t_{node.name}" if kind == "total" else self._sequence(node)

    def _sequence(self, node: fx.Node) -> str:
        """A result in the form of a sequence: (length, batch, ...)."""
        if node in self.program.sequences:
            return self.value(node)
        if node not in self.places and node not in self.loose:
            return f"{self.value(node)}.expand(length, *{self.value(node)}.shape)"
        axis = 0 if node in self.places else row_axis(node)
        if axis == 0:
            return f"w_{node.name}.view({self._timed(node)})"
        return f"w_{node.name}.unflatten({axis}, (length, batch)).movedim({axis}, 0)"

    def _timed(self, node: fx.Node) -> str:
        return ", ".join(["length", "batch", *(str(size) for size in node.meta["val"].shape[1:])])

    def _before(self, name: str, node: fx.Node) -> str:
        """The same memory as the sequence after each step, one step earlier; a new one if that is not its own."""
        owned = name == self.owners[node] and (node in self.places or node in self.loose)
        if owned:
            part = "batch:" if self.program.reverse else ": length * batch"
            return f"b_{node.name}[{part}].view({self._timed(node)})"
        after, first = self._sequence(node), f"i_{_plain(name)}.unsqueeze(0)"
        return f"torch.cat([{after}[1:], {first}])" if self.program.reverse else f"torch.cat([{first}, {after}[:-1]])"


def _plain(name: str) -> str:
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
