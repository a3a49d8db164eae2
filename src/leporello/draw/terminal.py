"""A Picture as text, with box characters: circles as round boxes, delays as black squares.

Knows characters; which cells things take is the business of `cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from leporello.draw.cells import Cell, Cells, shown, tall
from leporello.draw.layout import Placed, Routed, layout
from leporello.draw.measure import columns_of
from leporello.draw.picture import Picture

NORTH, EAST, SOUTH, WEST = 1, 2, 4, 8
LINES = {
    NORTH: "│",
    SOUTH: "│",
    EAST: "─",
    WEST: "─",
    NORTH | SOUTH: "│",
    EAST | WEST: "─",
    NORTH | EAST: "╰",
    NORTH | WEST: "╯",
    SOUTH | EAST: "╭",
    SOUTH | WEST: "╮",
    NORTH | SOUTH | EAST: "├",
    NORTH | SOUTH | WEST: "┤",
    EAST | WEST | NORTH: "┴",
    EAST | WEST | SOUTH: "┬",
    NORTH | EAST | SOUTH | WEST: "┼",
}
BACK = {"│": "┆", "─": "┄"}  # a gradient's lines
HEADS = {NORTH: "▲", SOUTH: "▼", EAST: "▶", WEST: "◀"}
BACK_HEADS = {NORTH: "△", SOUTH: "▽", EAST: "▷", WEST: "◁"}
WAYS = {(0, -1): NORTH, (1, 0): EAST, (0, 1): SOUTH, (-1, 0): WEST}
OPPOSITE = {NORTH: SOUTH, SOUTH: NORTH, EAST: WEST, WEST: EAST}
BORDERS = {"operator": "()", "box": "[]", "parameter": "{}"}


def terminal(picture: Picture) -> str:
    """The picture as lines of text."""
    found = layout(picture)
    if not found.placed:
        return ""
    page = _Page(Cells(found))
    page.draw_lines()
    page.draw_spots()
    page.draw_labels()
    return page.text()


class _Page:
    """Letters by cell, while they are drawn."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.found = cells.found
        self.letters: dict[Cell, str] = {}
        self.passing: dict[Cell, dict[str, int]] = {}  # for each source that passes a cell the ways it takes there
        self.lines: dict[Cell, set[int]] = {}  # which lines pass it

    def draw_lines(self) -> None:
        for index, routed in enumerate(self.found.routed):
            way = self.cells.ways[index]
            net = routed.line.source if routed.line.kind == "forward" else f"back {routed.line.source}"
            for here, after in pairwise(way):
                turn = WAYS[after[0] - here[0], after[1] - here[1]]
                for cell, mark in ((here, turn), (after, OPPOSITE[turn])):
                    known = self.passing.setdefault(cell, {})
                    known[net] = known.get(net, 0) | mark
            for cell in way:
                self.lines.setdefault(cell, set()).add(index)
        self.letters |= {cell: _crossing(known) for cell, known in self.passing.items()}
        for index, routed in enumerate(self.found.routed):
            self._draw_ends(routed, self.cells.ways[index])

    def _draw_ends(self, routed: Routed, way: Sequence[Cell]) -> None:
        """The arrowhead, in front of the target; squares; and a cross on what is cut."""
        outside = [place for place, cell in enumerate(way) if cell not in self.cells.inside]
        heads = HEADS if routed.line.kind == "forward" else BACK_HEADS
        if outside and self.found.placed[routed.line.target].spot.shape != "point":
            last = outside[-1]
            before, after = (way[last], way[last + 1]) if last + 1 < len(way) else (way[last - 1], way[last])
            self.letters[way[last]] = heads[WAYS[after[0] - before[0], after[1] - before[1]]]
        for square in routed.squares:
            self.letters[self.cells.at(square)] = "■"
        if routed.line.kind == "cut" and len(outside) > 2:
            self.letters[way[outside[len(outside) // 2]]] = "╳"

    def draw_spots(self) -> None:
        for id, placed in self.found.placed.items():
            self._draw_spot(placed, self.cells.middles[id], self.cells.half[id])

    def _draw_spot(self, placed: Placed, middle: Cell, half: int) -> None:
        x, y = middle
        if placed.spot.shape == "point":
            self.letters[x, y] = "•"
            return
        left, right = x - half - 1, x + half + 1
        text = shown(placed)
        for column in range(left, right + 1):
            self.letters[column, y] = " "
        self._write(x - (columns_of(text) - 1) // 2, y, text)
        if tall(placed):
            flat, steep = ("┄", "┆") if placed.spot.dashed else ("─", "│")
            for column in range(left + 1, right):
                self.letters[column, y - 1] = self.letters[column, y + 1] = flat
            corners = {(left, y - 1): "╭", (right, y - 1): "╮", (left, y + 1): "╰", (right, y + 1): "╯"}
            self.letters |= {**corners, (left, y): steep, (right, y): steep}
        else:
            ends = BORDERS[placed.spot.shape]
            self.letters |= {(left, y): ends[0], (right, y): ends[1]}

    def _write(self, x: int, y: int, text: str) -> None:
        for letter in text:
            width = columns_of(letter)
            if width:
                self.letters[x, y] = letter
            if width == 2:
                self.letters[x + 1, y] = ""  # the second half of a wide letter
            x += width

    def draw_labels(self) -> None:
        for index, routed in enumerate(self.found.routed):
            if routed.line.names and routed.line.kind == "forward":
                self._draw_label(" ".join(routed.line.label.split()), index)

    def _draw_label(self, text: str, index: int) -> None:
        """Into the line where it runs level and is alone, else beside it."""
        width = columns_of(text)
        *own, tip = [cell for cell in self.cells.ways[index] if cell not in self.cells.inside]
        alone = [cell for cell in own if self.lines[cell] == {index} and self.letters[cell] != "■"]
        for run in _level([cell for cell in alone if self.letters[cell] == "─"]):
            if len(run) > width:
                self._write(min(run)[0] + (len(run) - width) // 2, run[0][1], text)
                return
        for x, y in [*sorted(alone or own, key=lambda cell: abs(own.index(cell) - len(own) * 0.6)), tip]:
            for start in (x - width, x + 1):
                if all(self.letters.get((column, y), " ") == " " for column in range(start, start + width)):
                    self._write(start, y, text)
                    return
        if own:
            self._write(*own[len(own) // 2], text)

    def text(self) -> str:
        left = min(x for x, _ in self.letters)
        rows: dict[int, dict[int, str]] = {}
        for (x, y), letter in self.letters.items():
            rows.setdefault(y, {})[x] = letter
        lines = []
        for y in range(min(rows), max(rows) + 1):
            row = rows.get(y, {})
            lines.append("".join(row.get(x, " ") for x in range(left, max(row, default=left) + 1)).rstrip())
        return "\n".join([*lines, *self._captions(left)]) + "\n"

    def _captions(self, left: int) -> list[str]:
        lines = []
        for column, caption in self.found.picture.captions.items():
            x = self.cells.across.cell(self.found.columns[column]) - left
            lines.append(" " * max(0, x - columns_of(caption) // 2) + caption)
        return lines


def _crossing(known: dict[str, int]) -> str:
    """One source's lines join; lines of two sources cross, the steep one in front."""
    if len(known) > 1:
        ways = list(known.values())
        steep = next((way for way in ways if way in (NORTH | SOUTH, NORTH, SOUTH)), ways[0])
        return LINES[steep]
    ((net, way),) = known.items()
    return BACK.get(LINES[way], LINES[way]) if net.startswith("back ") else LINES[way]


def _level(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Runs of cells side by side, those near the end first."""
    runs: list[list[Cell]] = []
    for cell in cells:
        if runs and runs[-1][-1][1] == cell[1] and abs(runs[-1][-1][0] - cell[0]) == 1:
            runs[-1].append(cell)
        else:
            runs.append([cell])
    return runs[::-1]
