"""A picture as text with box-drawing characters: circles as round boxes, delays as black squares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from leporello.draw.picture import Picture, raised
from leporello.draw.picture_layout import PlacedSpot, RoutedLine, layout_picture
from leporello.draw.terminal_grid import GridPoint, TerminalGrid, one_line_name
from leporello.text_table import display_width

NORTH, EAST, SOUTH, WEST = 1, 2, 4, 8
LINE_CHARACTERS = {
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
DASHED = {"│": "┆", "─": "┄"}  # for lines of gradients
ARROWHEADS = {NORTH: "▲", SOUTH: "▼", EAST: "▶", WEST: "◀"}
GRADIENT_ARROWHEADS = {NORTH: "△", SOUTH: "▽", EAST: "▷", WEST: "◁"}
DIRECTIONS = {(0, -1): NORTH, (1, 0): EAST, (0, 1): SOUTH, (-1, 0): WEST}
OPPOSITE = {NORTH: SOUTH, SOUTH: NORTH, EAST: WEST, WEST: EAST}
BRACKETS = {"operator": "()", "box": "[]", "parameter": "{}"}


def terminal(picture: Picture) -> str:
    """The picture as lines of text; an empty string for one without spots."""
    layout = layout_picture(picture)
    if not layout.placed:
        return ""
    page = _TextPage(TerminalGrid(layout))
    page.draw_lines()
    page.draw_spots()
    page.draw_labels()
    return page.text()


class _TextPage:
    """The characters of a text, by grid point, while it is drawn."""

    def __init__(self, grid: TerminalGrid) -> None:
        self.grid = grid
        self.layout = grid.layout
        self.characters: dict[GridPoint, str] = {}
        self.directions: dict[GridPoint, dict[str, int]] = {}  # at each point the directions of each source's lines
        self.lines: dict[GridPoint, set[int]] = {}  # the lines that pass each point
        self.texts: set[GridPoint] = set()  # points of labels
        self.marks: dict[str, str] = {}  # what stands for a label that has no room
        self.notes: list[str] = []  # labels of lines without room for a mark

    def draw_lines(self) -> None:
        """All lines, then their arrowheads and squares on top."""
        for index, routed in enumerate(self.layout.routed):
            path = self.grid.paths[index]
            net = routed.line.source if routed.line.kind == "forward" else f"back {routed.line.source}"
            for here, after in pairwise(path):
                direction = DIRECTIONS[after[0] - here[0], after[1] - here[1]]
                for point, bit in ((here, direction), (after, OPPOSITE[direction])):
                    directions = self.directions.setdefault(point, {})
                    directions[net] = directions.get(net, 0) | bit
            for point in path:
                self.lines.setdefault(point, set()).add(index)
        self.characters |= {point: _line_character(directions) for point, directions in self.directions.items()}
        for index, routed in enumerate(self.layout.routed):
            self._draw_ends(routed, self.grid.paths[index])

    def _draw_ends(self, routed: RoutedLine, path: Sequence[GridPoint]) -> None:
        """The arrowhead in front of the target, the squares, and a cross on a line that is cut."""
        outside = [number for number, point in enumerate(path) if point not in self.grid.occupied]
        heads = ARROWHEADS if routed.line.kind == "forward" else GRADIENT_ARROWHEADS
        if outside and self.layout.placed[routed.line.target].spot.shape != "point":
            last = outside[-1]
            before, after = (path[last], path[last + 1]) if last + 1 < len(path) else (path[last - 1], path[last])
            self.characters[path[last]] = heads[DIRECTIONS[after[0] - before[0], after[1] - before[1]]]
        for square in routed.squares:
            self.characters[self.grid.at(square)] = "■"
        if routed.line.kind == "cut" and len(outside) > 2:
            self.characters[path[outside[len(outside) // 2]]] = "╳"

    def draw_spots(self) -> None:
        for id, placed in self.layout.placed.items():
            self._draw_spot(placed, self.grid.centres[id], self.grid.half_width[id])

    def _draw_spot(self, placed: PlacedSpot, centre: GridPoint, half: int) -> None:
        """A spot with its border; half is the number of columns left and right of its centre."""
        x, y = centre
        if placed.spot.shape == "point":
            self.characters[x, y] = "•"
            return
        left, right = x - half - 1, x + half + 1
        texts = [one_line_name(placed), *placed.spot.lines[1:]]
        rows = self.grid.half_height[placed.spot.id]
        for column, row in product(range(left, right + 1), range(y - rows, y + rows + 1)):
            self.characters[column, row] = " "
        for number, text in enumerate(texts, start=y - (len(texts) - 1) // 2):
            self._write(x - (display_width(text) - 1) // 2, number, text)
        if rows:
            horizontal, vertical = ("┄", "┆") if placed.spot.dashed else ("─", "│")
            for column in range(left + 1, right):
                self.characters[column, y - rows] = self.characters[column, y + rows] = horizontal
            corners = {(left, y - rows): "╭", (right, y - rows): "╮", (left, y + rows): "╰", (right, y + rows): "╯"}
            sides = {(x, row): vertical for x in (left, right) for row in range(y - rows + 1, y + rows)}
            self.characters |= corners | sides
        else:
            ends = BRACKETS[placed.spot.shape]
            self.characters |= {(left, y): ends[0], (right, y): ends[1]}

    def _write(self, x: int, y: int, text: str) -> None:
        """Write text from a grid point to the right."""
        for letter in text:
            width = display_width(letter)
            if width:
                self.characters[x, y] = letter
            if width == 2:
                self.characters[x + 1, y] = ""  # the second half of a wide letter
            x += width

    def draw_labels(self) -> None:
        for index, routed in enumerate(self.layout.routed):
            if routed.line.names and routed.line.kind == "forward":
                self._draw_label(" ".join(routed.line.label.split()), index)

    def _draw_label(self, text: str, index: int) -> None:
        """Write a label where it covers nothing but its own line; else a mark, with the label in a note below."""
        if self._write_at_line(text, index):
            return
        mark = self.marks.get(text, raised(len(self.marks) + 1))
        if self._write_at_line(mark, index, on_branch=True):
            self.marks[text] = mark
        else:
            ends = (self.layout.routed[index].line.source, self.layout.routed[index].line.target)
            self.notes.append(" → ".join(one_line_name(self.layout.placed[id]) for id in ends) + f": {text}")

    def _write_at_line(self, text: str, index: int, *, on_branch: bool = False) -> bool:
        """Write into a horizontal part of a line that no other shares, beside the line, or across it; False if nowhere.

        on_branch   whether it may also be written on a part that other lines of the same source share
        """
        width = display_width(text)
        *path, tip = [point for point in self.grid.paths[index] if point not in self.grid.occupied]
        alone = [point for point in path if self.lines[point] == {index} and self.characters[point] != "■"]
        straight = [point for point in alone if self.characters[point] in "─│"]
        for run in _horizontal_runs([point for point in straight if self.characters[point] == "─"]):
            if len(run) > width:
                self._write_text(min(run)[0] + (len(run) - width) // 2, run[0][1], text)
                return True
        nearest = sorted(alone or path, key=lambda point: abs(path.index(point) - len(path) * 0.6))
        beside = [(start, y) for x, y in [*nearest, tip] for start in (x - width, x + 1)]
        across = [(x - shift, y) for x, y in nearest if (x, y) in straight for shift in _from_middle(width)]
        if on_branch:
            across += [point for point in path if self.characters[point] in "─│" and len(self.directions[point]) == 1]
            straight += path
        for touching, allowed in ((False, set()), (True, set()), (True, set(straight))):
            for start, y in [*beside, *across] if allowed else beside:
                if self._is_free(start, y, width, allowed, touching=touching):
                    self._write_text(start, y, text)
                    return True
        return False

    def _is_free(self, start: int, y: int, width: int, allowed: set[GridPoint], *, touching: bool) -> bool:
        """Whether a text would cover only blanks and allowed points, and read apart from the texts next to it.

        touching   whether other lines may touch both of its ends
        """
        cells = [(x, y) for x in range(start, start + width)]
        ends = [(start - 1, y), (start + width, y)]
        if any(end in self.texts for end in ends) or any(cell in self.texts for cell in cells):
            return False
        if not touching and all(self.characters.get(end, " ") != " " for end in ends):
            return False
        return all(
            (self.characters.get(cell, " ") == " " and cell not in self.grid.occupied) or cell in allowed
            for cell in cells
        )

    def _write_text(self, x: int, y: int, text: str) -> None:
        """Write a label, and keep its points from the labels after it."""
        self._write(x, y, text)
        self.texts |= {(column, y) for column in range(x, x + display_width(text))}

    def text(self) -> str:
        """All rows as lines of text, with the captions of columns and the notes below."""
        left = min(x for x, _ in self.characters)
        rows: dict[int, dict[int, str]] = {}
        for (x, y), letter in self.characters.items():
            rows.setdefault(y, {})[x] = letter
        lines = []
        for y in range(min(rows), max(rows) + 1):
            row = rows.get(y, {})
            lines.append("".join(row.get(x, " ") for x in range(left, max(row, default=left) + 1)).rstrip())
        notes = [*(f"{mark} {text}" for text, mark in self.marks.items()), *self.notes]
        return "\n".join([*lines, *self._captions(left), *([""] if notes else []), *notes]) + "\n"

    def _captions(self, left: int) -> list[str]:
        lines = []
        for column, caption in self.layout.picture.captions.items():
            x = self.grid.x.position(self.layout.columns[column]) - left
            lines.append(" " * max(0, x - display_width(caption) // 2) + caption)
        return lines


def _line_character(directions: dict[str, int]) -> str:
    """The character of a point: lines of one source join; of two sources the vertical line is in front."""
    if len(directions) > 1:
        bits = list(directions.values())
        return LINE_CHARACTERS[next((one for one in bits if one in (NORTH | SOUTH, NORTH, SOUTH)), bits[0])]
    ((net, bits_of_net),) = directions.items()
    character = LINE_CHARACTERS[bits_of_net]
    return DASHED.get(character, character) if net.startswith("back ") else character


def _horizontal_runs(points: Sequence[GridPoint]) -> list[list[GridPoint]]:
    """Groups of points side by side, those near the end of the line first."""
    runs: list[list[GridPoint]] = []
    for point in points:
        if runs and runs[-1][-1][1] == point[1] and abs(runs[-1][-1][0] - point[0]) == 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs[::-1]


def _from_middle(width: int) -> list[int]:
    """The columns of a text, the middle first."""
    return sorted(range(width), key=lambda column: abs(column - width // 2))
