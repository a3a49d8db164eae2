"""The text of one stage in one window: what it reads, what runs it, and where its results go."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from leporello.engine.sweep.program import InsideKernel, TimedStage, own_row_axis
from leporello.engine.sweep.source import ValueNames, python_name, size_texts
from leporello.loop.port import Role


class StageWriter:
    """Writes stages into a text. Methods that return text write, where needed, the lines that it refers to.

    contiguous    sequences that are made contiguous before the first window: kernels read them in place
    kernels       the name of each built kernel in the text
    temporaries   names of temporary values that a stage reads, released after it
    """

    def __init__(self, values: ValueNames) -> None:
        self.values, self.text, self.program = values, values.text, values.program
        self.placement, self.depth = values.placement, values.depth
        self.contiguous: set[fx.Node] = set()
        self.kernels: dict[InsideKernel, str] = {}
        self.temporaries: list[str] = []

    def prepare(self, timed: TimedStage) -> None:
        """Write what comes before the first window: a kernel bound to what no window changes, and its next states."""
        if timed.direct is not None:
            # an incoming gradient may be one number expanded over all steps: made contiguous window by window only
            self._make_contiguous((node, 0) for node in timed.direct[1] if not self._is_incoming_gradient(node))
        if timed.kernel is None:
            return
        inside, value = timed.kernel, self.values.value
        name = self.kernels[inside] = f"kernel_{len(self.kernels)}"
        runner = self.text.name(f"{name}_runner", inside.runner)
        self._make_contiguous(inside.reads)
        rows = ", ".join(f"{value(node)}{_rows_first(axis)}.contiguous()" for node, axis in inside.rows)
        fixed = ", ".join(value(node) for node in inside.fixed)
        count = "batch.times(length)" if self.program.split.loop.free_lengths else "length * batch"
        self.text.line(f"{name} = {runner}.begin([{rows}], [{fixed}], {count})")
        for state in inside.states:
            now, new = (f"{letter}_{python_name(state)}" for letter in "sn")
            memory = self.values.empty(self.program.delays[state][1], "batch", leaves=True)
            if state in self.placement.may_be_none:
                self.text.line(f"{new} = {memory} if {now} is None else torch.empty_like({now})")
            else:
                self.text.line(f"{new} = torch.empty_like({now})")

    def stage(self, timed: TimedStage) -> None:
        """Write a stage in a window; values that no later stage reads are released."""
        if timed.kernel is not None:
            self.by_kernel(timed.kernel)
        elif timed.inside:
            self._by_steps(timed)
        elif timed.direct is not None:
            self._directly(timed)
        else:
            self._at_once(timed)
        free = [self.values.flat(node) for node in dict.fromkeys(timed.done) if node in self.placement.loose]
        free += dict.fromkeys(self.temporaries)
        self.temporaries.clear()
        if free:
            self.text.line(f"{' = '.join(free)} = None", self.depth)

    # ---- kernels

    def by_kernel(self, inside: InsideKernel) -> None:
        """An inside as a kernel: all steps of the window in one call.

        Without a cycle a step is a row like any other: all rows of the window are then rows of one step, so that
        products are of many rows, and threads divide them however small the batch is.
        """
        name = self.kernels[inside]
        states = "".join(f"s_{python_name(state)}, " for state in inside.states)
        following = "".join(f"n_{python_name(state)}, " for state in inside.states)
        reads = "".join(f"{self._contiguous_window(node, axis)}, " for node, axis in inside.reads)
        writes = "".join(f"{self._memory_in_window(node, axis)}, " for node, axis in inside.writes)
        sizes = "1, rows" if inside.flat else "steps, batch"
        lagged = "".join(f"{index}, " for index, (node, _) in enumerate(inside.reads) if self._may_be_lagged(node))
        totals = "".join(f"{self.values.flat(node)}, " for node in inside.totals)
        call = f"{name}(({states}), ({reads}), ({following}), ({writes}), {sizes}{lagged and f', ({lagged})'})"
        self.text.line(f"{totals}= {call}" if totals else call, self.depth)
        for node in inside.totals:
            self._add_to_total(node)
        if not self.values.one_step:
            self.text.line(f"if one: {name} = None", self.depth)
        for state in inside.states:
            self.text.line(f"s_{python_name(state)} = n_{python_name(state)}", self.depth)
        for node, axis in inside.writes:
            if node not in self.placement.in_place:
                if axis:
                    flat = self.values.flat(node)
                    self.text.line(f"{flat} = {flat}.movedim(0, {axis})", self.depth)
                self.values.keep(node, axis)

    def _make_contiguous(self, reads: Iterable[tuple[fx.Node, int]]) -> None:
        """Write the lines that make sequences contiguous which are read in place: those with rows as first axis.

        reads   values with their row axis; only inputs of the program among them count
        """
        for node, axis in reads:
            if axis == 0 and node in self.program.sequences and node not in self.contiguous:
                self.contiguous.add(node)
                self.text.line(f"{self.values.value(node)} = {self.values.value(node)}.contiguous()")

    def _may_be_lagged(self, node: fx.Node) -> bool:
        """Whether a sequence may come as `Target.in_place` has it: a shifted input, here or in the forward sweep."""
        ports = dict(zip(self.program.inputs, self.program.split.loop.inputs, strict=True))
        before = node in ports and ports[node].role is Role.STATE_BEFORE
        return node in self.placement.lagged and (before or node in self.placement.shifted)

    def _is_incoming_gradient(self, node: fx.Node) -> bool:
        ports = zip(self.program.inputs, self.program.split.loop.inputs, strict=True)
        return any(read is node and port.role is Role.GRADIENT for read, port in ports)

    def _contiguous_window(self, node: fx.Node, axis: int) -> str:
        """The expression of a sequence as a kernel reads it in a window: rows first, contiguous."""
        if node in self.placement.shifted:
            return self.values.window(self.values.shifted(node))
        if axis == 0 and node in self.contiguous:
            return self.values.window(self.values.value(node))
        if node in self.placement.in_place:
            return self.values.window(f"w_{node.name}")
        value = self.values.in_window(node).removesuffix(".contiguous()")
        name = f"r_{node.name}"
        self.temporaries.append(name)
        self.text.line(f"{name} = {value}{_rows_first(axis)}.contiguous()", self.depth)
        return name

    def _memory_in_window(self, node: fx.Node, axis: int) -> str:
        """The expression of memory that a kernel writes in a window: rows first, contiguous."""
        if node in self.placement.in_place:
            return self.values.window(f"w_{node.name}")
        sizes = size_texts(node.meta["val"])
        memory = self.values.empty_of(node, ["rows", *sizes[:axis], *sizes[axis + 1 :]])
        self.text.line(f"{self.values.flat(node)} = {memory}", self.depth)
        return self.values.flat(node)

    # ---- torch's operators, and functions of the target

    def _by_steps(self, timed: TimedStage) -> None:
        """An inside, step by step with torch's operators."""
        states = "".join(f"s_{python_name(name)}, " for name in timed.states)
        columns = "".join(f"({self.values.in_window(node)}, {axis}), " for node, axis in timed.varying)
        fixed = "".join(f"{self.values.value(node)}, " for node in timed.fixed)
        memory = "".join(f"{place}, " for place in self._memory_for_results(timed))
        loose = "".join(f"{self.values.flat(node)}, " for _, node in timed.loose)
        stage = self.text.name("inside", timed)
        arguments = f"{stage}, steps, batch, {self.program.reverse}, ({states}), ({columns}), ({fixed}), ({memory})"
        self.text.line(f"({states}), ({loose}) = run_inside({arguments})", self.depth)
        for _, node in timed.loose:
            self.values.keep(node, own_row_axis(node))

    def _at_once(self, timed: TimedStage) -> None:
        """An at-once stage: all steps of the window in one call; none where all of it is shifted already."""
        if all(node in self.placement.shifted for node, _ in timed.writes):
            return
        arguments = ["rows", *(f"s_{python_name(name)}" for name in timed.states)]
        for node, _ in timed.varying:
            value = self.values.in_window(node)
            arguments.append(value.removesuffix(".contiguous()") if node in timed.scattered else value)
        arguments += [self.values.value(node) for node in timed.fixed]
        arguments += self._memory_for_results(timed)
        self._called(timed, f"{self.text.name('at_once', timed.function)}({', '.join(arguments)})")

    def _directly(self, timed: TimedStage) -> None:
        """A function of the target that reads sequences in place."""
        assert timed.direct is not None
        function, reads = timed.direct
        arguments = ", ".join(self._contiguous_window(node, 0) for node in reads)
        self._called(timed, f"{self.text.name('direct', function)}({arguments})")

    def _called(self, timed: TimedStage, call: str) -> None:
        """Write a call of a stage's function, and the lines that store its results or add them to totals.

        call   its expression
        """
        writes = [("_" if node in self.placement.in_place else self.values.flat(node)) for node, _ in timed.writes]
        self.text.line(f"{''.join(f'{name}, ' for name in writes) or '_'}= {call}", self.depth)
        for node, rows in timed.writes:
            if node in self.placement.in_place:
                continue
            if rows is None:
                self._add_to_total(node)
            else:
                self.values.keep(node, rows)

    def _add_to_total(self, node: fx.Node) -> None:
        """Write the lines that add a window's part of a total to what the windows before have added up."""
        total, value = f"t_{node.name}", self.values.flat(node)
        self.text.line(f"{total} = {value} if {total} is None else {total}.add_({value})", self.depth)
        self.text.line(f"{value} = None", self.depth)

    def _memory_for_results(self, timed: TimedStage) -> list[str]:
        """Expressions of memory for the `placed` results of a stage, flat."""
        places = []
        for node in timed.placed:
            if node in self.placement.in_place:
                places.append(self.values.placed(node))
            else:
                flat = self.values.flat(node)
                self.text.line(f"{flat} = {self.values.empty(node, 'rows')}", self.depth)
                places.append(flat)
        return places


def _rows_first(axis: int) -> str:
    """Text that moves the row axis to the front."""
    return f".movedim({axis}, 0)" if axis else ""
