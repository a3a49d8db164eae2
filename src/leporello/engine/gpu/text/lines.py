"""`Lines`: the text of a kernel while it is written, and the loop over the elements that a thread has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from leporello.engine.gpu.division.geometry import ROWS, Geometry
from leporello.engine.gpu.division.schedule import Part, Places, Schedule
from leporello.engine.gpu.text.cuda_expressions import index_text
from leporello.engine.gpu.text.registers import elements_of


@dataclass
class Lines:
    """Lines of C++, each with its indentation."""

    text: list[str] = field(default_factory=list)

    def emit(self, line: str, depth: int = 0) -> None:
        self.text.append("    " * depth + line)

    def each(self, depth: int, write: Callable[[int], None]) -> None:
        """Write a phase: what `write` writes runs on every thread."""
        self.emit("m.each([&](Thread &t, const Block &b, int thread) {", depth)
        write(depth + 1)
        self.emit("});", depth)

    def tiles(self, depth: int) -> None:
        """Open the loop over the tiles of a group."""
        self.emit("UNROLL", depth)
        self.emit("for (int tile = 0; tile < TILES; tile++) {", depth)

    def space_loop(
        self,
        geometry: Geometry,
        space: int,
        lines: Iterable[str],
        depth: int,
        *,
        before: Iterable[str] = (),
        after: Iterable[str] = (),
        unconditional: bool = False,
    ) -> None:
        """Write the loop over the elements (row, unit) of a thread; `lines` run for units that exist.

        before, after   run for all elements
        unconditional   `lines` run even for elements and units that do not exist
        """
        own, count = geometry.own(space), ROWS * geometry.own(space)
        self.emit("UNROLL", depth)
        self.emit(f"for (int j = 0; j < {elements_of(space, geometry)}; j++) {{", depth)
        element = f"const int e = thread + j * THREADS, row = e / {own}, own = e % {own}"
        mine = f"b.rank * {own} + own"
        before_head = f"b.head * {geometry.in_head(space)} + " if geometry.heads > 1 else ""
        self.emit(f"{element}, mine = {mine}, unit = {before_head}mine;", depth + 1)
        all_exist = unconditional or count % geometry.threads == 0
        if not all_exist:
            self.emit(f"if (e < {count}) {{", depth + 1)
        self.emit("const long n = b.first + tile * 8 + row;", depth + 1)
        self.emit("const bool live = n < batch;", depth + 1)
        self.emit("(void)live, (void)own, (void)unit;", depth + 1)
        for line in before:
            self.emit(line, depth + 1)
        whole = unconditional or own * geometry.blocks == geometry.in_head(space)
        if not whole:
            self.emit(f"if (mine < {geometry.in_head(space)}) {{", depth + 1)
        for line in lines:
            self.emit(line, depth + (1 if whole else 2))
        if not whole:
            self.emit("}", depth + 1)
        for line in after:
            self.emit(line, depth + 1)
        if not all_exist:
            self.emit("}", depth + 1)
        self.emit("}", depth)


def variables_of(part: Part) -> dict[str, str]:
    """The texts of the loop variables of a part, from the unit."""
    iteration = f"(unit + {part.number * part.space})" if part.number else "unit"
    axes = [axis for axis, size in enumerate(part.sizes) if size != 1]
    texts = {f"{part.letter}{axis}": "0" for axis in range(len(part.sizes))}
    behind = 1
    for position, axis in enumerate(reversed(axes)):
        text = iteration if behind == 1 else f"({iteration} / {behind})"
        texts[f"{part.letter}{axis}"] = text if position == len(axes) - 1 else f"({text} % {part.sizes[axis]})"
        behind *= part.sizes[axis]
    return texts


def place_text(schedule: Schedule, places: Places, space: int) -> str:
    """The position of a unit's element, from the unit."""
    factor = places[1] - places[0] if space > 1 else 0
    if all(place == places[0] + factor * unit for unit, place in enumerate(places)):
        return f"({places[0]} + unit * {factor})"
    part, index = schedule.places.origin[places]
    return f"({index_text(index, variables_of(part))})"
