"""Lines of stages: what runs a stage in a window, what it is given, and where its results go.

Knows stages that are ready to run, by a kernel or by torch's operators; knows nothing of the order in which they come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import fx

from leporello.engine.homes import Homes
from leporello.engine.lines import Lines, plain, row_bytes
from leporello.engine.program import Program, Timed, row_axis
from leporello.kernel.description import Matrix


class StageLines(Lines):
    """Lines of stages while they are written.

    borrowed   names for what a stage reads, to be let go behind it
    lying      sequences whose rows lie one behind the other, to be read by their address
    """

    def __init__(self, program: Program, homes: Homes) -> None:
        super().__init__(program, homes)
        self.borrowed: list[str] = []
        self.lying: set[fx.Node] = set()

    def stage(self, timed: Timed) -> None:
        """A stage in a window; what nobody reads after it is let go."""
        if timed.kernel is not None:
            self.by_kernel(timed)
        elif timed.inside:
            self._inside(timed)
        else:
            self._at_once(timed)
        free = [self.flat(node) for node in dict.fromkeys(timed.done) if node in self.homes.loose]
        free += dict.fromkeys(self.borrowed)
        self.borrowed.clear()
        if free:
            self.say(f"{' = '.join(free)} = None", self.inner)

    # ---- kernels

    def prepare(self, timed: Timed) -> None:
        """What a kernel reads that no window changes."""
        if timed.sums is not None:  # gradients that arrive may be the same number at every step, without memory for it
            self._lay([(node, 0) for node in timed.sums[1] if not self._arrives(node)])
        if timed.kernel is None:
            return
        inside = timed.kernel
        name = self.know(f"kernel_{len([key for key in self.known if key.startswith('kernel_')])}", inside.built)
        self._lay(inside.reads)
        rows = [f"{self.value(node)}{_turned(axis)}.contiguous()" for node, axis in inside.rows]
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
            now, new = f"s_{plain(state)}", self.empty(out, "batch", leaves=True)
            self.say(f"n_{plain(state)} = {new} if {now} is None else torch.empty_like({now})")

    def _lay(self, reads: Iterable[tuple[fx.Node, int]]) -> None:
        """Sequences that are read by their address lie one row behind the other."""
        for node, axis in reads:
            if axis == 0 and node in self.program.sequences and node not in self.lying:
                self.lying.add(node)
                self.say(f"{self.value(node)} = {self.value(node)}.contiguous()")

    def _arrives(self, node: fx.Node) -> bool:
        ports = zip(self.program.inputs, self.program.split.loop.inputs, strict=True)
        return any(own is node and port.name.startswith("grad.") for own, port in ports)

    def by_kernel(self, timed: Timed) -> None:
        """An inside, its whole window in one call."""
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
            if node not in self.homes.places:
                if axis:
                    self.say(f"{self.flat(node)} = {self.flat(node)}.movedim(0, {axis})", self.inner)
                self.keep(node, axis)

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
        if state in self.homes.by_address:
            return f"0 if {name} is None else {name}.data_ptr()"
        return f"{name}.data_ptr()"

    def _read(self, node: fx.Node, axis: int) -> str:
        """The address of what a kernel reads in a window."""
        if axis == 0 and node in self.lying:
            return f"{self.value(node)}.data_ptr() + first * {row_bytes(node)}"
        if node in self.homes.places:
            return f"w_{node.name}.data_ptr() + first * {row_bytes(node)}"
        whole = self.in_window(node).removesuffix(".contiguous()")
        name = f"r_{node.name}"
        self.borrowed.append(name)
        self.say(f"{name} = {whole}{_turned(axis)}.contiguous()", self.inner)
        return f"{name}.data_ptr()"

    def _written(self, node: fx.Node, axis: int) -> str:
        """The address of what a kernel writes in a window; rows come first there."""
        if node in self.homes.places:
            return f"w_{node.name}.data_ptr() + first * {row_bytes(node)}"
        sizes = [str(size) for size in node.meta["val"].shape]
        sizes = ["rows", *sizes[:axis], *sizes[axis + 1 :]]
        self.say(f"{self.flat(node)} = {self.memory(node, sizes)}", self.inner)
        return f"{self.flat(node)}.data_ptr()"

    # ---- torch's operators

    def _inside(self, timed: Timed) -> None:
        """Step by step."""
        states = "".join(f"s_{plain(name)}, " for name in timed.states)
        columns = "".join(f"({self.in_window(node)}, {axis}), " for node, axis in timed.varying)
        fixed = "".join(f"{self.value(node)}, " for node in timed.fixed)
        rooms = self._placing(timed)
        loose = "".join(f"{self.flat(node)}, " for _, node in timed.loose)
        of = self.know(f"inside_{len(self.known)}", timed)
        places = "".join(f"{room}, " for room in rooms)
        given = f"{of}, steps, batch, {self.program.reverse}, ({states}), ({columns}), ({fixed}), ({places})"
        self.say(f"({states}), ({loose}) = by_operators({given})", self.inner)
        for _, node in timed.loose:
            self.keep(node, row_axis(node))

    def _at_once(self, timed: Timed) -> None:
        """All steps of a window in one call."""
        if timed.sums is not None:
            totals, values = timed.sums
            function = self.know(f"totals_{len(self.known)}", totals.run)
            given = f"rows, [{', '.join(self._read(node, 0) for node in values)}]"
        else:
            function, given = self.know(f"at_once_{len(self.known)}", timed.function), self._given(timed)
        made = "".join("_, " if node in self.homes.places else f"{self.flat(node)}, " for node, _ in timed.writes)
        self.say(f"{made or '_'}= {function}({given})", self.inner)
        for node, rows in timed.writes:
            if node in self.homes.places:
                continue
            if rows is None:
                total, value = f"t_{node.name}", self.flat(node)
                self.say(f"{total} = {value} if {total} is None else {total}.add_({value})", self.inner)
                self.say(f"{value} = None", self.inner)
            else:
                self.keep(node, rows)

    def _given(self, timed: Timed) -> str:
        """What the function of an at-once stage is given."""
        reads = [f"s_{plain(name)}" for name in timed.states]
        reads += [self.in_window(node) for node, _ in timed.varying]
        reads += [self.value(node) for node in timed.fixed]
        return ", ".join(["rows", *reads, *self._placing(timed)])

    def _placing(self, timed: Timed) -> list[str]:
        """Memory for the results that a stage puts where it is told."""
        rooms = []
        for node in timed.placed:
            if node in self.homes.places:
                rooms.append(self.placed(node))
            else:
                self.say(f"{self.flat(node)} = {self.empty(node, 'rows')}", self.inner)
                rooms.append(self.flat(node))
        return rooms


def _turned(axis: int) -> str:
    """What brings an axis to the front."""
    return f".movedim({axis}, 0)" if axis else ""
