"""Pointwise blocks and reductions as loops of C over the features of one row."""

from __future__ import annotations

from leporello.engine.cpu.c_expressions import Layout, LoopBody
from leporello.engine.cpu.c_operators import GNU, REDUCTION_SPELLING, TYPES, Dialect, extremes
from leporello.engine.cpu.c_reductions import MOST_SIDE_BY_SIDE, side_by_side
from leporello.errors import EngineRefusal
from leporello.kernel.description import Pointwise, Reduction
from leporello.kernel.operators import SELECTIONS
from leporello.loop.sizes import AnySize, Size


class BlockWriter:
    """Writes the loops of pointwise blocks and reductions, for one row, as lines of C.

    layout    where the elements of buffers are
    dialect   how operators are spelt
    depth     of indentation
    pragmas   whether loops are marked for compilers that vectorise them
    lines     written by now
    """

    def __init__(self, layout: Layout, dialect: Dialect = GNU, depth: int = 5, *, pragmas: bool = True) -> None:
        self.layout, self.dialect = layout, dialect
        self.depth, self.pragmas = depth, pragmas
        self.lines: list[str] = []

    def emit(self, line: str, depth: int = 0) -> None:
        self.lines.append("    " * depth + line)

    def pointwise(self, block: Pointwise) -> None:
        body = LoopBody(self.layout, self.dialect)
        for store in block.stores:
            name = body.named(body.value(store.value), TYPES[store.buffer.dtype])
            if store.buffer not in self.layout.registers:
                sign = "+=" if store.buffer.place == "total" else "="
                body.lines.append(f"{self.layout.element(store.buffer, str(store.index))} {sign} {name};")
            body.stored[store.buffer, store.index] = name
        for text in body.hoisted:
            self.emit(text, self.depth)
        depth = self.loops(block.sizes, "i", self.depth)
        for text in body.lines:
            self.emit(text, depth)
        self.close(depth, self.depth)

    def reduction(self, block: Reduction) -> None:
        kind = TYPES[block.buffer.dtype]
        body = LoopBody(self.layout, self.dialect)
        value = body.value(block.value)
        for text in body.hoisted:
            self.emit(text, self.depth)
        if block.operator in SELECTIONS:
            self._selection(block, body, value)
            return
        axis = side_by_side(block)
        if axis is not None:
            self._reductions_side_by_side(block, axis, body, value)
            return
        depth = self.loops(block.sizes, "i", self.depth)
        if block.operator in REDUCTION_SPELLING:
            begin, update = REDUCTION_SPELLING[block.operator]
            self.emit(f"{kind} sum = {begin.format(**extremes(block.buffer.dtype, self.dialect))};", depth)
            inner = self.loops(block.over, "k", depth, simd="sum" if block.operator == "sum" else "")
            for text in body.lines:
                self.emit(text, inner)
            value = f"{value} != 0" if block.operator in ("any", "all") else value
            self.emit(f"const {kind} value = {value};", inner)
            self.emit(f"sum = {update};", inner)
        else:  # the first position of the largest or smallest; a NaN counts as such
            if len(block.over) != 1:
                raise EngineRefusal(f"the operator {block.operator} over several axes is not covered by kernels.")
            sign, of_value = ">" if block.operator == "argmax" else "<", TYPES[block.accumulation]
            self.emit(f"{of_value} best = 0; int64_t sum = -1;", depth)
            inner = self.loops(block.over, "k", depth)
            for text in body.lines:
                self.emit(text, inner)
            k = "k0" if block.over[0] != 1 else "0"
            self.emit(f"const {of_value} value = {value};", inner)
            better = f"value {sign} best || value != value"
            self.emit(f"if (sum < 0 || (best == best && ({better}))) {{ best = value; sum = {k}; }}", inner)
        self.close(inner, depth)
        self.emit(f"{self.layout.element(block.buffer, str(block.index))} = sum;", depth)
        self.close(depth, self.depth)

    def _selection(self, block: Reduction, body: LoopBody, value: str) -> None:
        """Write the positions of the first elements in order, all of one row of elements at once."""
        *outer, few = block.sizes
        depth = self.loops((*outer, 1), "i", self.depth, pragmas=False)
        (count,) = block.over
        self.emit(f"ranked all[{count}];", depth)
        inner = self.loops(block.over, "k", depth, pragmas=False)
        for text in body.lines:
            self.emit(text, inner)
        k = "k0" if count != 1 else "0"
        self.emit(f"all[{k}] = (ranked){{{value}, {k}}};", inner)
        self.close(inner, depth)
        descending = int(block.operator in ("largest", "descending"))
        if block.operator in ("ascending", "descending"):
            self.emit(f"sort_all(all, {count}, {descending});", depth)
        else:
            self.emit(f"select_first(all, {count}, {few}, {descending});", depth)
        last = self.loops((*[1] * len(outer), few), "i", depth, pragmas=False)
        place = f"i{len(outer)}" if few != 1 else "0"
        self.emit(f"{self.layout.element(block.buffer, str(block.index))} = all[{place}].place;", last)
        self.close(last, self.depth)

    def _reductions_side_by_side(self, block: Reduction, axis: int, body: LoopBody, value: str) -> None:
        """Write a reduction whose results along one axis are vectors: the loops over what is reduced go round them."""
        kind, size, i = TYPES[block.buffer.dtype], block.sizes[axis], f"i{axis}"
        begin, update = REDUCTION_SPELLING[block.operator]
        begin, update = (
            begin.format(**extremes(block.buffer.dtype, self.dialect)),
            update.replace("sum", f"sums[{i} - first]"),
        )
        outer = tuple(1 if place == axis else other for place, other in enumerate(block.sizes))
        depth = self.loops(outer, "i", self.depth, pragmas=False)
        wide = MOST_SIDE_BY_SIDE if isinstance(size, Size) else min(size, MOST_SIDE_BY_SIDE)
        last = f"first + {wide}" if size % wide == 0 else f"(first + {wide} < {size} ? first + {wide} : {size})"
        self.emit(f"for (long first = 0; first < {size}; first += {wide}) {{", depth)
        self.emit(f"const long last = {last};", depth + 1)
        self.emit(f"{kind} sums[{wide}];", depth + 1)
        self.emit(f"for (long {i} = first; {i} < last; {i}++) sums[{i} - first] = {begin};", depth + 1)
        inner = self.loops(block.over, "k", depth + 1, pragmas=False)
        if self.pragmas:
            self.emit("#pragma GCC ivdep", inner)
        self.emit(f"for (long {i} = first; {i} < last; {i}++) {{", inner)
        for text in body.lines:
            self.emit(text, inner + 1)
        value = f"{value} != 0" if block.operator in ("any", "all") else value
        self.emit(f"const {kind} value = {value};", inner + 1)
        self.emit(f"sums[{i} - first] = {update};", inner + 1)
        self.close(inner + 1, depth + 1)
        stored = f"{self.layout.element(block.buffer, str(block.index))} = sums[{i} - first];"
        self.emit(f"for (long {i} = first; {i} < last; {i}++) {stored}", depth + 1)
        self.close(depth + 1, self.depth)

    def loops(
        self, sizes: tuple[AnySize, ...], letter: str, depth: int, simd: str = "", *, pragmas: bool = True
    ) -> int:
        """Open a loop for each axis of more than one element; returns the depth of the lines inside.

        letter   that the loop variables' names begin with
        simd     the variable that the innermost loop adds to, for a vectorised sum; "" if there is none
        pragmas  whether the innermost loop is said to be one that can be vectorised
        """
        loops = [(axis, size) for axis, size in enumerate(sizes) if size != 1]
        for number, (axis, size) in enumerate(loops):
            if number == len(loops) - 1:
                pragma = f"#pragma omp simd reduction(+:{simd})" if simd else "#pragma GCC ivdep"
                if self.pragmas and pragmas and (simd or letter == "i"):
                    self.emit(pragma, depth)
            self.emit(f"for (long {letter}{axis} = 0; {letter}{axis} < {size}; {letter}{axis}++) {{", depth)
            depth += 1
        return depth

    def close(self, depth: int, to: int) -> None:
        while depth > to:
            depth -= 1
            self.emit("}", depth)
