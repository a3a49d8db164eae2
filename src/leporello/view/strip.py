"""From the diagram of a step to a picture of it: folded, with squares on its delays, or unfolded into a strip.

A strip has a column per step, perhaps with a gap for steps that are not drawn and dashed spots for what comes before
and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leporello.draw.picture import Line, Name, Picture, Spot
from leporello.errors import ArgumentError
from leporello.view.diagram import Diagram, Edge, Vertex, keys_of_name

Times = Literal["around", "end", "numbers"]
MAX_STEPS_AROUND_T = 3  # longer strips are numbered
MAX_STEPS_DRAWN = 7  # longer strips have a gap
STEPS_BESIDE_GAP = 3  # drawn before and after the gap
LOSS, TOTAL = "output.L", "total.L"  # keys of the loss of a step, and of the sum of all


@dataclass(frozen=True)
class Column:
    """One time step of a strip.

    time   as it is written
    step   which step it is, from 1; None for a column that stands for steps before, after or between
    """

    time: str
    step: int | None = None


@dataclass(frozen=True)
class Strip:
    """How a strip is shown.

    times   "around": t-1, t, t+1; "end": the last is t; "numbers": from 1
    ends    whether dashed spots hint at what comes before and after
    shown   how many first and last steps are drawn; None for all
    shared  whether each parameter is drawn once, for all steps, and the sum of their losses too
    """

    steps: int
    times: Times
    ends: bool
    shown: tuple[int, int] | None
    shared: bool = False

    @staticmethod
    def of(
        steps: int,
        has_last_step_only: bool,
        times: Times | None = None,
        ends: bool | None = None,
        shown: tuple[int, int] | None = None,
        *,
        whole: bool = False,
        shared: bool = False,
    ) -> Strip:
        """The strip with defaults for what is None: short strips around t, long ones numbered and with a gap.

        has_last_step_only   whether some vertices exist at the last step only: a short strip then calls that step t
        whole                no gap by default
        """
        if times is None:
            times = "numbers" if steps > MAX_STEPS_AROUND_T else "end" if has_last_step_only else "around"
        if shown is None and steps > MAX_STEPS_DRAWN and not whole:
            shown = (STEPS_BESIDE_GAP, STEPS_BESIDE_GAP)
        if shown is not None and sum(shown) >= steps:
            shown = None
        return Strip(steps, times, (times != "numbers") if ends is None else ends, shown, shared)

    def columns(self) -> list[Column]:
        """The steps that are drawn, with a gap for the others."""
        all_steps = [Column(self._time(step), step) for step in range(1, self.steps + 1)]
        if self.shown is None:
            return all_steps
        first, last = self.shown
        return [*all_steps[:first], Column("..."), *all_steps[self.steps - last :]]

    def _time(self, step: int) -> str:
        if self.times == "numbers":
            return str(step)
        offset = step - 1 - (self.steps // 2 if self.times == "around" else self.steps - 1)
        return f"t{offset:+d}" if offset else "t"

    @property
    def hidden(self) -> int:
        return 0 if self.shown is None else self.steps - sum(self.shown)


def folded(diagram: Diagram, title: str, description: str) -> Picture:
    """The folded picture: one spot per vertex, and a square on an edge for each step of its delay."""
    spots = [_spot(vertex, vertex.key, 0) for vertex in diagram.vertices]
    lines = [
        Line(edge.source, edge.target, edge.names, edge.delay, tint=_tint(edge.stepwise), tooltip=edge.tooltip)
        for edge in diagram.edges
    ]
    return Picture(title, description, tuple(spots), tuple(lines))


def _spot(vertex: Vertex, id: str, column: int, time: str = "") -> Spot:
    name = replace(vertex.name, time=time) if vertex.shape in ("circle", "box") else vertex.name
    return Spot(
        id,
        name,
        vertex.key,
        column,
        vertex.shape,
        above=vertex.role == "target",
        tint=_tint(vertex.stepwise),
        tooltip=vertex.tooltip,
    )


def _tint(stepwise: bool) -> str:
    return "stepwise" if stepwise else "at once"


def unfolded(diagram: Diagram, strip: Strip, title: str, description: str) -> Picture:
    """The unfolded picture: a column per step, with delays as lines from column to column."""
    writer = StripWriter(diagram, strip)
    writer.write_shared()
    for index, column in enumerate(writer.columns):
        writer.write(index, column)
    captions = dict.fromkeys(writer.gaps, f"… {strip.hidden} steps …")
    return Picture(title, description, tuple(writer.spots.values()), tuple(writer.lines.values()), captions)


class StripWriter:
    """Builds a strip from left to right; a loop whose time is reversed has its sources on the right.

    opens, closes   whether there is a column for what comes before the first step, and after the last
    first, last     the columns of the first and the last step
    gaps            columns that stand for steps that are not drawn
    shared          keys of the parameters that are drawn once, in the column before the first step
    sums            whether the losses of all steps are added up, in the column after the last step
    """

    def __init__(self, diagram: Diagram, strip: Strip) -> None:
        self.diagram, self.strip = diagram, strip
        steps = strip.columns()
        ways = {diagram.is_reverse(edge) for edge in diagram.edges if edge.delay}
        begins, hints = strip.ends or strip.times == "numbers", strip.ends and strip.times != "end"
        self.shared = {vertex.key for vertex in diagram.vertices if strip.shared and vertex.role == "parameter"}
        losses = {vertex.key for vertex in diagram.vertices} - diagram.last_step_only
        self.sums = strip.shared and LOSS in losses
        self.hints_before = (False in ways and begins) or (True in ways and hints)
        self.hints_after = (True in ways and begins) or (False in ways and hints)
        self.opens = self.hints_before or bool(self.shared)
        self.closes = self.hints_after or self.sums
        self.columns = [*[Column("...")] * self.opens, *steps, *[Column("...")] * self.closes]
        self.first, self.last = int(self.opens), int(self.opens) + len(steps) - 1
        self.gaps = [index for index in range(self.first, self.last + 1) if self.columns[index].step is None]
        self.spots: dict[str, Spot] = {}
        self.lines: dict[tuple[str, str, tuple[Name, ...]], Line] = {}

    def write_shared(self) -> None:
        """Add what all steps have in common: parameters, and the sum of their losses."""
        for vertex in self.diagram.vertices:
            if vertex.key in self.shared:
                self.spots[vertex.key] = replace(_spot(vertex, vertex.key, 0), rail=True)
        if self.sums:
            shape = self.diagram.vertex(LOSS).shape
            self.spots[TOTAL] = Spot(TOTAL, Name("ΣL"), TOTAL, len(self.columns) - 1, shape, rail=True)

    def write(self, index: int, column: Column) -> None:
        """Add the spots of a column, and the lines that lead into it."""
        if self.first <= index <= self.last:
            for vertex in self.diagram.vertices:
                if vertex.key in self.shared:
                    continue
                if vertex.key not in self.diagram.last_step_only or self._is_end(index):
                    self._place(vertex, index, column.time)
            if self.sums:
                self._line(Edge(LOSS, TOTAL), f"{LOSS}@{index}", TOTAL)
        for edge in self.diagram.edges:
            if edge.target in self.diagram.last_step_only and not self._is_end(index):
                continue
            self._connect(edge, index)

    def _is_end(self, index: int) -> bool:
        return index == (self.first if self.diagram.reverse else self.last)

    def _place(self, vertex: Vertex, index: int, time: str) -> None:
        id = f"{vertex.key}@{index}"
        if id not in self.spots:
            spot = _spot(vertex, id, index, time)
            self.spots[id] = replace(spot, dashed=self.columns[index].step is None)

    def _connect(self, edge: Edge, index: int) -> None:
        """Add the line of an edge into the step of a column, from the same or an earlier one."""
        inside = self.first <= index <= self.last
        if not edge.delay:
            if inside:
                start = edge.source if edge.source in self.shared else f"{edge.source}@{index}"
                self._line(edge, start, f"{edge.target}@{index}")
            return
        if not inside and (edge.delay > 1 or index == self._beginning(edge) or not self.strip.ends):
            return  # no edge into what comes before; one arrow hints at what comes after
        source = self._source(index, edge)
        if source is None or not (self._is_hinted(index) and self._is_hinted(source)):
            return
        if not inside:
            self._hint(edge.target, index, edge)
        if not self.first <= source <= self.last:
            self._hint(edge.source, source, edge)
        self._line(edge, f"{edge.source}@{source}", f"{edge.target}@{index}")

    def _is_hinted(self, index: int) -> bool:
        """Whether a column may have spots of steps: it is one, or what comes before or after is hinted at in it."""
        return self.hints_before if index < self.first else self.hints_after if index > self.last else True

    def _beginning(self, edge: Edge) -> int:
        """The column before all steps, in the direction of an edge."""
        return len(self.columns) - 1 if self.diagram.is_reverse(edge) else 0

    def _source(self, index: int, edge: Edge) -> int | None:
        """The column from which a delayed edge into a column comes; None where it is not on the strip.

        Columns of gaps and ends stand for all steps that they hide.
        """
        way = 1 if self.diagram.is_reverse(edge) else -1
        for _ in range(edge.delay):
            following = index + way
            if not 0 <= following < len(self.columns):
                return index if self.columns[index].step is None else None
            index = following
            if index in self.gaps:
                return index
        return index

    def _hint(self, key: str, index: int, edge: Edge) -> None:
        """Add a dashed spot for a vertex of a step that is not drawn.

        Where steps are numbered and no delay is longer than 1, the spot before the first step is solid and numbered.
        """
        id = f"{key}@{index}"
        if id in self.spots:
            return
        vertex = self.diagram.vertex(key)
        numbered = self.strip.times == "numbers" and all(edge.delay <= 1 for edge in self.diagram.edges)
        begins = numbered and index == self._beginning(edge)
        before = str(self.strip.steps + 1) if edge.reverse else "0"
        spot = _spot(vertex, id, index, before if begins else "...")
        if self.gaps and self.strip.times != "numbers":
            spot = replace(spot, name=Name("..."))
        self.spots[id] = replace(spot, dashed=not begins)

    def _line(self, edge: Edge, source: str, target: str) -> None:
        key = (source, target, edge.names)
        if key not in self.lines and source != target:
            self.lines[key] = Line(source, target, edge.names, tint=_tint(edge.stepwise), tooltip=edge.tooltip)


def with_captions(
    picture: Picture, diagram: Diagram, strip: Strip, captions: Mapping[str, Sequence[object]]
) -> Picture:
    """Write words beside the spots of some values: below inputs, above all else.

    captions   by name of a value, a word for each step; for what only the last step has, one word
    """
    columns = StripWriter(diagram, strip).columns
    roles = {vertex.key: vertex.role for vertex in diagram.vertices}
    words: dict[str, list[str]] = {}
    for name, said in captions.items():
        for key in keys_of_name(diagram, name, "captions"):
            count = 1 if key in diagram.last_step_only else strip.steps
            if not isinstance(said, Sequence) or len(said) != count:
                raise ArgumentError(
                    f"the captions of '{name}' are not as many as its steps.",
                    came=f"{len(said)} words" if isinstance(said, Sequence) else type(said).__name__,
                    expected=f"a list of {count}",
                    tries=f'captions={{"{name}": [...]}} with a word for each step of the strip',
                )
            words[key] = [_visible(str(word)) for word in said]
    spots = []
    for spot in picture.spots:
        step = columns[spot.column].step
        if spot.place in words and step is not None:
            word = words[spot.place][-1 if spot.place in diagram.last_step_only else step - 1]
            spot = replace(spot, caption=word, caption_below=roles[spot.place] == "input")
        spots.append(spot)
    return replace(picture, spots=tuple(spots))


def _visible(word: str) -> str:
    """A word with signs for what has no letters: spaces at its ends, line breaks and tabulators."""
    inner = word.strip(" ")
    left, right = len(word) - len(word.lstrip(" ")), len(word) - len(word.rstrip(" "))
    spaced = "␣" * left + inner + "␣" * right if inner else "␣" * len(word)
    return spaced.replace("\n", "↵").replace("\t", "⇥")
