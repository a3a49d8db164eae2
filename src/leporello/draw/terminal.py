"""A picture as text with box-drawing characters: circles as round boxes, delays as black squares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from leporello.draw.picture import Picture
from leporello.draw.picture_layout import PlacedSpot, RoutedLine, layout_picture
from leporello.draw.terminal_grid import GridPoint, TerminalGrid, half_height, one_line_name
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
        text = one_line_name(placed)
        for column in range(left, right + 1):
            self.characters[column, y] = " "
        self._write(x - (display_width(text) - 1) // 2, y, text)
        if half_height(placed):
            horizontal, vertical = ("┄", "┆") if placed.spot.dashed else ("─", "│")
            for column in range(left + 1, right):
                self.characters[column, y - 1] = self.characters[column, y + 1] = horizontal
            corners = {(left, y - 1): "╭", (right, y - 1): "╮", (left, y + 1): "╰", (right, y + 1): "╯"}
            self.characters |= {**corners, (left, y): vertical, (right, y): vertical}
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
        """Write a label into a horizontal part of its line that no other line shares, else beside the line."""
        width = display_width(text)
        *path, tip = [point for point in self.grid.paths[index] if point not in self.grid.occupied]
        alone = [point for point in path if self.lines[point] == {index} and self.characters[point] != "■"]
        for run in _horizontal_runs([point for point in alone if self.characters[point] == "─"]):
            if len(run) > width:
                self._write(min(run)[0] + (len(run) - width) // 2, run[0][1], text)
                return
        for x, y in [*sorted(alone or path, key=lambda point: abs(path.index(point) - len(path) * 0.6)), tip]:
            for start in (x - width, x + 1):
                if all(self.characters.get((column, y), " ") == " " for column in range(start, start + width)):
                    self._write(start, y, text)
                    return
        if path:
            self._write(*path[len(path) // 2], text)

    def text(self) -> str:
        """All rows as lines of text, with the captions of columns below."""
        left = min(x for x, _ in self.characters)
        rows: dict[int, dict[int, str]] = {}
        for (x, y), letter in self.characters.items():
            rows.setdefault(y, {})[x] = letter
        lines = []
        for y in range(min(rows), max(rows) + 1):
            row = rows.get(y, {})
            lines.append("".join(row.get(x, " ") for x in range(left, max(row, default=left) + 1)).rstrip())
        return "\n".join([*lines, *self._captions(left)]) + "\n"

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
