"""Lines of a Python function while they are written: the names of values, and the memory they lie in.

What `sweep` and `one_step` have in common below their stages. Knows where values lie; knows nothing of what computes
them, or in which order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.homes import Homes, device_of
from leporello.engine.inside import by_operators, spread
from leporello.engine.memory import room
from leporello.engine.program import Program, row_axis
from leporello.loop.value_classes import ValueClass


class Lines:
    """Lines while they are written.

    A value `name` of the graph is called v_name; s_name is a state, i_name its first value, w_name a sequence of the
    full length that is given out, b_name the same with the state before the first step, t_name a total. Sequences have
    an axis of steps and one of rows where memory is made for them before they are computed, else they are flat.

    inner   how deep the lines of a window stand
    known   what the lines read that is known before any call, by name
    """

    inner = 2

    def __init__(self, program: Program, homes: Homes) -> None:
        self.program, self.homes = program, homes
        self.device = device_of(program)
        self.known: dict[str, Any] = {"torch": torch, "spread": spread, "put": _put, "by_operators": by_operators}
        self.known |= {"room": room, "copy": ctypes.memmove}
        self.lines: list[str] = []

    def say(self, line: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + line)

    # ---- names

    def value(self, node: fx.Node) -> str:
        return f"v_{node.name}"

    def flat(self, node: fx.Node) -> str:
        """What a stage makes in a window; of what is the same at every step a name of its own, beside the value's."""
        return self.value(node) if self.varies(node) else f"f_{node.name}"

    def varies(self, node: fx.Node) -> bool:
        return self.program.split.classes[node] is ValueClass.VARYING

    def know(self, wish: str, value: Any) -> str:
        """A name for what is known before any call."""
        name, count = wish, 0
        while name in self.known and self.known[name] is not value:
            name, count = f"{wish}_{count}", count + 1
        self.known[name] = value
        return name

    # ---- memory

    def empty(self, node: fx.Node, rows: str, axis: int = 0, *, leaves: bool | None = None) -> str:
        """Memory for so many rows of a value; for one that leaves the engine, memory like any tensor's.

        axis   of the rows
        """
        sizes = [str(size) for size in node.meta["val"].shape]
        sizes[axis] = rows
        return self.memory(node, sizes, leaves=leaves)

    def memory(self, node: fx.Node, sizes: list[str], *, leaves: bool | None = None) -> str:
        """Memory of these sizes, for a value's kind of numbers."""
        leaves = node in self.homes.leaving if leaves is None else leaves
        kind = self.know(str(node.meta["val"].dtype).replace("torch.", "k_"), node.meta["val"].dtype)
        return f"{'torch.empty' if leaves else 'room'}(({', '.join(sizes)},), dtype={kind}, device=device)"

    def long(self, node: fx.Node, length: str) -> str:
        """Memory for a sequence of so many steps."""
        return self.memory(node, [length, "batch", *(str(size) for size in node.meta["val"].shape[1:])])

    def rooms(self) -> None:
        """Memory for the sequences that are given out, where it is known before a stage runs that it is needed."""
        for node in sorted(self.program.kept, key=lambda node: node.name):
            name = node.name
            if node in self.homes.owners and node in self.homes.made:
                self.say(f"b_{name} = {self.long(node, 'length + 1')}")
                self._first(node, self.homes.owners[node])
                self.say(f"w_{name} = b_{name}[{':length' if self.program.reverse else '1:'}]")
            elif node in self.homes.places:
                self.say(f"w_{name} = {self.long(node, 'length')}")
            elif node in self.homes.loose:
                self.say(f"w_{name} = None")

    def _first(self, node: fx.Node, name: str) -> None:
        """The state before the first step goes in front of those after each."""
        state, place = plain(name), "length" if self.program.reverse else "0"
        same = node.meta["val"].dtype == self.program.delays[name][1].meta["val"].dtype
        if self.device.type == "cpu" and same:
            offset = f" + length * batch * {row_bytes(node)}" if self.program.reverse else ""
            to = f"b_{node.name}.data_ptr(){offset}"
            self.say(f"copy({to}, i_{state}.data_ptr(), batch * {row_bytes(node)})")
        else:
            self.say(f"b_{node.name}[{place}] = i_{state}")

    # ---- windows

    def in_window(self, node: fx.Node) -> str:
        """The flat values of a window."""
        if node in self.program.sequences:
            name, axis = self.value(node), row_axis(node)
            turned = f".movedim(0, {axis})" if axis else ""
            return f"({name} if one else {name}[start:end]){turned}.flatten({axis}, {axis + 1}).contiguous()"
        if node in self.homes.places and self.varies(node):
            return self.placed(node)
        if node in self.homes.loose and self.varies(node):
            return f"{self.value(node)}.contiguous()"
        return f"spread({self.value(node)}, {row_axis(node)}, steps)"

    def placed(self, node: fx.Node) -> str:
        """The part of a window in memory made before, flat."""
        return f"(w_{node.name} if one else w_{node.name}[start:end]).flatten(0, 1)"

    def keep(self, node: fx.Node, axis: int) -> None:
        """A loose value goes to its place in the whole, if the loop gives it out."""
        if node not in self.program.kept:
            return
        name, value = f"w_{node.name}", self.flat(node)
        if node in self.homes.owners:
            self.say(f"{name}[start:end] = {value}.unflatten(0, (steps, batch))", self.inner)
            return
        self.say(f"if one: {name} = {value}", self.inner)
        self.say("else:", self.inner)
        self.say(f"if {name} is None: {name} = {self.empty(node, 'length * batch', axis)}", self.inner + 1)
        self.say(f"put({name}, {value}, {axis}, first, rows)", self.inner + 1)


def plain(name: str) -> str:
    """A state's name as part of a Python name."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def row_bytes(node: fx.Node) -> int:
    """Bytes of one row of a value."""
    value: Tensor = node.meta["val"]
    count = value.dtype.itemsize
    for size in value.shape[1:]:
        count *= size
    return count


def _put(whole: Tensor, value: Tensor, axis: int, first: int, rows: int) -> None:
    """A window's values into their place."""
    whole.narrow(axis, first, rows).copy_(value)
