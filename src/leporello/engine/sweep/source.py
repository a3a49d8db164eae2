"""Generated Python text, and the names and memory of the values in it.

`SourceText` collects lines and the objects they refer to, and compiles them. `ValueNames` has the names of the graph's
values in the text, and the expressions that allocate memory for them. The writers in `stage_writer.py` and
`function.py` use both.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.buffer_pool import empty_from_pool
from leporello.engine.lagged import Lagged
from leporello.engine.sweep.inside_loop import repeated, run_inside
from leporello.engine.sweep.placement import Placement
from leporello.engine.sweep.program import Program, own_row_axis
from leporello.engine.target import put_step
from leporello.loop.fake_tensors import row_axes, size_of
from leporello.loop.sizes import AnySize, Size
from leporello.loop.value_classes import ValueClass


class SourceText:
    """Lines of one Python function, and the objects its text refers to by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "torch": torch,
            "repeated": repeated,
            "run_inside": run_inside,
            "put_window": _put_window,
            "put_converted": put_step,
            "empty_from_pool": empty_from_pool,
            "Lagged": Lagged,
        }

    def line(self, text: str, depth: int = 1) -> None:
        self.lines.append("    " * depth + text)

    def name(self, preferred: str, value: Any) -> str:
        """A name by which the text refers to an object: the preferred one, numbered where another object has it."""
        name, count = preferred, 0
        while name in self.names and self.names[name] is not value:
            name, count = f"{preferred}_{count}", count + 1
        self.names[name] = value
        return name

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile the text and return the function of that name, with the text as its attribute `text`.

        title   for tracebacks, which show the lines
        """
        text = "\n".join(self.lines) + "\n"
        file = f"<{title}, {id(self):x}>"
        exec(compile(text, file, "exec"), self.names)
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        function: Callable[..., Any] = self.names[name]
        function.text = text  # type: ignore[attr-defined]
        return function


class ValueNames:
    """How the text names and allocates the values of a program.

    A value `name` of the graph is v_name; s_name is a state, i_name its initial value, n_name its next value; w_name is
    an output sequence of full length, b_name the same with the initial state in front (in reverse: behind); t_name is a
    total; f_name and r_name live in one window. Sequences have an axis of steps and one of rows where their memory is
    allocated before they are computed, else one axis for both (flat).

    one_step   whether the text runs a single step: there are no windows, and sequences have no axis of steps
    """

    def __init__(self, text: SourceText, program: Program, placement: Placement, *, one_step: bool = False) -> None:
        self.text, self.program, self.placement, self.one_step = text, program, placement, one_step
        self.depth = 1 if one_step else 2  # of the lines of a window
        self.pooled = torch.empty(0, device=program.device).is_cpu
        self.likes: dict[torch.dtype, Tensor] = {}
        text.name("device", program.device)
        text.name("put_step", program.put_step)
        text.name("put_shifted", program.put_shifted)
        text.name("in_place", program.in_place)

    # ---- names

    def value(self, node: fx.Node) -> str:
        return f"v_{node.name}"

    def flat(self, node: fx.Node) -> str:
        """The name of what a stage computes in a window: another one for a value that does not vary with the step."""
        return self.value(node) if self.varies(node) else f"f_{node.name}"

    def shifted(self, node: fx.Node) -> str:
        """The name of the sequence, or `Lagged`, of a state that is a shifted input (`Placement.shifted`)."""
        return f"shifted_{node.name}"

    def varies(self, node: fx.Node) -> bool:
        return self.program.split.classes[node] is ValueClass.VARYING

    # ---- memory

    def empty(self, node: fx.Node, rows: str, axis: int = 0, *, leaves: bool | None = None) -> str:
        """An expression that allocates memory for `rows` rows of a value.

        rows     their number, as an expression
        axis     of the rows
        leaves   whether the value is returned to the caller: then the memory is not from the buffer pool. By default as
                 the placement has it
        """
        sizes = size_texts(node.meta["val"])
        sizes[axis] = rows
        return self.empty_of(node, sizes, leaves=leaves)

    def empty_of(self, node: fx.Node, sizes: list[str], *, leaves: bool | None = None) -> str:
        """An expression that allocates memory of these sizes (expressions), in a value's dtype; `leaves` as above."""
        leaves = node in self.placement.leaving if leaves is None else leaves
        dtype: torch.dtype = node.meta["val"].dtype
        name = str(dtype).replace("torch.", "")
        if self.pooled and not leaves:
            return f"empty_from_pool(({', '.join(sizes)},), dtype={self.text.name(name, dtype)}, device=device)"
        # a method of a tensor of that dtype: half the cost of torch.empty with a dtype and a device
        self.likes.setdefault(dtype, torch.empty(0, dtype=dtype, device=self.program.device))
        return f"{self.text.name(f'{name}_like', self.likes[dtype])}.new_empty({', '.join(sizes)})"

    def allocate_sequences(self) -> None:
        """Write the allocation of output sequences that are written in place or have the initial state in front.

        A loose one is None until its first window is stored.
        """
        for node in sorted(self.program.kept, key=lambda node: node.name):
            name = node.name
            if node in self.placement.owners and node in self.placement.written:
                state, reverse = python_name(self.placement.owners[node]), self.program.reverse
                self.text.line(f"b_{name} = {self._sequence_memory(node, 'length + 1')}")
                same = node.meta["val"].dtype == self.program.delays[self.placement.owners[node]][1].meta["val"].dtype
                put = "put_step" if same else "put_converted"
                self.text.line(f"{put}(b_{name}, {'length' if reverse else '0'}, i_{state})")
                self.text.line(f"w_{name} = b_{name}[{':length' if reverse else '1:'}]")
            elif node in self.placement.in_place:
                self.text.line(f"w_{name} = {self._sequence_memory(node, 'length')}")
            elif node in self.placement.loose:
                self.text.line(f"w_{name} = None")

    def _sequence_memory(self, node: fx.Node, length: str) -> str:
        if self.one_step:
            return self._step_memory(node)
        return self.empty_of(node, [length, "batch", *size_texts(node.meta["val"])[1:]])

    def _step_memory(self, node: fx.Node) -> str:
        """An expression that allocates one step of a sequence: `empty_like` of a next state of that form is faster."""
        value = node.meta["val"]
        for name, (_, out) in self.program.delays.items():
            state = out.meta["val"]
            if (size_texts(state)[1:], state.dtype) == (size_texts(value)[1:], value.dtype):
                return f"torch.empty_like(n_{python_name(name)})"
        return self.empty(node, "batch")

    # ---- windows

    def window(self, name: str) -> str:
        """The expression of the current window's steps of a whole sequence; all of it if there is one window only."""
        return name if self.one_step else f"({name} if one else {name}[start:end])"

    def in_window(self, node: fx.Node) -> str:
        """The expression of a value in the current window, flat; what is the same at every step is repeated."""
        if node in self.placement.shifted:
            return f"{self.window(self.shifted(node))}.flatten(0, 1)"
        if node in self.program.sequences:
            axis = own_row_axis(node)
            moved = f".movedim(0, {axis})" if axis else ""
            return f"{self.window(self.value(node))}{moved}.flatten({axis}, {axis + 1}).contiguous()"
        if node in self.placement.in_place and self.varies(node):
            return self.placed(node)
        if node in self.placement.loose and self.varies(node):
            return f"{self.value(node)}.contiguous()"
        return f"repeated({self.value(node)}, {own_row_axis(node)}, steps)"

    def placed(self, node: fx.Node) -> str:
        """The expression of the current window of memory that was allocated before, flat."""
        return f"{self.window(f'w_{node.name}')}.flatten(0, 1)"

    def keep(self, node: fx.Node, axis: int) -> None:
        """Write the copy of a loose value to its place in the whole sequence, if it is an output.

        axis   of its rows
        """
        if node not in self.program.kept:
            return
        name, value = f"w_{node.name}", self.flat(node)
        if node in self.placement.owners:
            self.text.line(f"{name}[start:end] = {value}.unflatten(0, (steps, batch))", self.depth)
            return
        self.text.line(f"if one: {name} = {value}", self.depth)
        self.text.line("else:", self.depth)
        self.text.line(f"if {name} is None: {name} = {self.empty(node, 'length * batch', axis)}", self.depth + 1)
        self.text.line(f"put_window({name}, {value}, {axis}, start * batch, rows)", self.depth + 1)


def size_texts(value: Tensor) -> list[str]:
    """The sizes of a fake tensor as expressions; those of the rows are of no use."""
    axes = row_axes(value)
    return ["rows" if axis in axes else _size_text(size_of(size)) for axis, size in enumerate(value.shape)]


def _size_text(size: AnySize) -> str:
    return size.text("batch.lengths[{}]") if isinstance(size, Size) else str(size)


def python_name(name: str) -> str:
    """A state's name as part of a Python identifier."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def _put_window(whole: Tensor, value: Tensor, axis: int, first: int, rows: int) -> None:
    """Copy a window's values into a whole sequence, both flat: `rows` rows from index `first` on."""
    whole.narrow(axis, first, rows).copy_(value)
