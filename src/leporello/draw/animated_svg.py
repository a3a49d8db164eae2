"""One animated SVG without scripts: the loop unfolds, values run from left to right, gradients from right to left.

A stylesheet moves what `svg` draws. Where animation is turned off or not supported, the unfolded strip is shown.
"""

from __future__ import annotations

from dataclasses import replace

from leporello.draw.image_files import Svg
from leporello.draw.label_placement import Label, marks_of, page_box, place_labels
from leporello.draw.picture import Picture
from leporello.draw.picture_layout import PictureLayout, RoutedLine, layout_picture
from leporello.draw.sizes import SMALL_FONT_SIZE, text_width
from leporello.draw.svg import draw_branches, draw_label, draw_line, draw_notes, draw_spot, number, svg_file
from leporello.draw.svg_style import STYLE

# Times in seconds from the beginning of a round.
ROUND = 14.0  # length of a round
UNFOLD_START, UNFOLD_END = 1.5, 3.5
VALUES_START, GRADIENTS_START = 4.0, 7.6
RUN_LENGTH = 3.0  # of the values, and of the gradients
FOLD_START, FOLD_END = 12.3, 13.6


def animated(closed: Picture, opened: Picture) -> Svg:
    """The folded picture turning into the unfolded one and back, repeated without end.

    closed   the folded picture: one step with its delays
    opened   the unfolded one, with the lines of gradients
    """
    strip = layout_picture(opened)
    middle = _middle_column(opened)
    labels = place_labels(strip)
    loop, marks = _draw_loop(closed, strip, middle, marks_of(labels))
    rules = [_fade_loop(), *(_slide(strip, column, middle) for column in range(opened.columns))]
    rules += [_fade_between(), _glow(), _appear()]
    parts = [f'<g class="loop">{"".join(loop)}</g>']
    parts += _draw_between(strip, labels)
    parts += [_draw_column(strip, column, labels) for column in range(opened.columns)]
    parts += _draw_gradients(strip)
    style = STYLE + "\n".join(["", *rules, _reduced_motion()])
    notes, page = draw_notes(strip, page_box(strip, labels), marks)
    return svg_file(opened, [*parts, *notes], page, style)


def _middle_column(opened: Picture) -> int:
    """The column from which the others slide out: the middle one of those with solid spots, the left one of two."""
    columns = sorted({spot.column for spot in opened.spots if not spot.dashed})
    return columns[len(columns) // 2] if len(columns) % 2 else columns[len(columns) // 2 - 1]


def _draw_loop(
    closed: Picture, strip: PictureLayout, middle: int, marks: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The folded picture, drawn at the place of the middle column of the strip; and the marks of both pictures.

    marks   those of the strip
    """
    time = max((spot.name.time for spot in strip.picture.spots), key=lambda time: text_width(time, SMALL_FONT_SIZE))
    # Laid out with times in the names, so that circles are as large as in the strip; drawn without them.
    timed = tuple(replace(spot, name=replace(spot.name, time=time)) for spot in closed.spots)
    layout = layout_picture(replace(closed, spots=timed))
    dx, dy = strip.columns[middle] - layout.columns[0], strip.rows[0] - layout.rows[0]
    names = {spot.id: spot.name for spot in closed.spots}
    placed = {id: replace(one, spot=replace(one.spot, name=names[id])) for id, one in layout.placed.items()}
    untimed = replace(layout, placed=placed)
    inner = [draw_line(routed, untimed) for routed in layout.routed] + draw_branches(layout.routed)
    inner += [draw_spot(one, closed) for one in placed.values()]
    labels = place_labels(layout, marks)
    inner += [draw_label(label) for label in labels]
    drawn = [f'<g transform="translate({number(dx)} {number(dy)})">', *inner, "</g>"]
    return drawn, marks | marks_of(labels)


def _draw_column(strip: PictureLayout, column: int, labels: list[Label]) -> str:
    """A column with its lines and labels; each value glows when it is computed."""
    lines = [routed for routed in strip.routed if _end_columns(strip, routed) == (column, column)]
    inner = [draw_line(routed, strip) for routed in lines if routed.line.kind == "forward"] + draw_branches(lines)
    inner += _draw_labels(labels, lines)
    for placed in strip.placed.values():
        if placed.spot.column == column:
            delay = VALUES_START + RUN_LENGTH * _time_share(strip, placed.spot.id)
            element = draw_spot(placed, strip.picture)
            inner.append(element.replace('class="spot', f'style="animation-delay: {delay:.2f}s" class="glow spot', 1))
    return f'<g class="column c{column}">{"".join(inner)}</g>'


def _time_share(strip: PictureLayout, id: str) -> float:
    """When a value is computed, from 0 to 1 of the run: column by column, from the bottom up."""
    placed = strip.placed[id]
    row = min(range(len(strip.rows)), key=lambda index: abs(strip.rows[index] - placed.y))
    return (placed.spot.column * len(strip.rows) + row) / (strip.picture.columns * len(strip.rows))


def _end_columns(strip: PictureLayout, routed: RoutedLine) -> tuple[int, int]:
    """The columns of a line's source and target."""
    source, target = strip.placed[routed.line.source], strip.placed[routed.line.target]
    return source.spot.column, target.spot.column


def _draw_between(strip: PictureLayout, labels: list[Label]) -> list[str]:
    """Lines between columns with their labels; they appear when the columns have moved apart."""
    lines = [
        routed
        for routed in strip.routed
        if routed.line.kind == "forward" and len(set(_end_columns(strip, routed))) == 2
    ]
    inner = [draw_line(routed, strip) for routed in lines] + draw_branches(lines) + _draw_labels(labels, lines)
    return [f'<g class="between">{"".join(inner)}</g>']


def _draw_labels(labels: list[Label], lines: list[RoutedLine]) -> list[str]:
    """Draw those of the labels that belong to the given lines."""
    ids = {id(routed) for routed in lines}
    return [draw_label(label) for label in labels if id(label.routed) in ids]


def _draw_gradients(strip: PictureLayout) -> list[str]:
    """The lines of gradients, each shown when the backward run reaches it."""
    parts = []
    for routed in strip.routed:
        if routed.line.kind != "forward":
            delay = GRADIENTS_START + RUN_LENGTH * (1 - _time_share(strip, routed.line.source))
            parts.append(f'<g class="back" style="animation-delay: {delay:.2f}s">{draw_line(routed, strip)}</g>')
    return parts


def _share(seconds: float) -> str:
    """A time as a share of the round, as keyframes need it."""
    return f"{100 * seconds / ROUND:.1f}%"


def _slide(strip: PictureLayout, column: int, middle: int) -> str:
    """Keyframes: a column slides out of the middle one and back."""
    away = f"transform: translateX({number(strip.columns[middle] - strip.columns[column])}px)"
    return (
        f"  @keyframes &slide{column} {{ 0%, {_share(UNFOLD_START)} {{ {away}; opacity: 0 }} "
        f"{_share(UNFOLD_START + 0.5)}, {_share(FOLD_END - 0.4)} {{ opacity: 1 }} "
        f"{_share(UNFOLD_END)}, {_share(FOLD_START)} {{ transform: none }} "
        f"{_share(FOLD_END)}, 100% {{ {away}; opacity: 0 }} }}\n"
        f"  #& .c{column} {{ animation: &slide{column} {number(ROUND)}s ease-in-out infinite; }}"
    )


def _fade_loop() -> str:
    """Keyframes: the folded loop disappears while the strip unfolds."""
    frames = (
        f"0%, {_share(UNFOLD_START)} {{ opacity: 1 }} "
        f"{_share(UNFOLD_START + 0.7)}, {_share(FOLD_END - 0.5)} {{ opacity: 0 }} "
        f"{_share(FOLD_END)}, 100% {{ opacity: 1 }}"
    )
    return (
        f"  #& .loop {{ opacity: 0; animation: &closed {number(ROUND)}s infinite; }}\n"
        f"  @keyframes &closed {{ {frames} }}"
    )


def _fade_between() -> str:
    """Keyframes: lines between columns appear when the columns have moved apart."""
    frames = (
        f"0%, {_share(UNFOLD_END - 0.3)} {{ opacity: 0 }} "
        f"{_share(UNFOLD_END + 0.3)}, {_share(FOLD_START - 0.3)} {{ opacity: 1 }} "
        f"{_share(FOLD_START)}, 100% {{ opacity: 0 }}"
    )
    return f"  #& .between {{ animation: &between {number(ROUND)}s infinite; }}\n  @keyframes &between {{ {frames} }}"


def _glow() -> str:
    """Keyframes: a value lights up when it is computed, and its border grows thick, for readers who see no colours."""
    return (
        "  @keyframes &glow { 0%, 5%, 100% { fill-opacity: 1; stroke-width: 1.3 } "
        "1.5%, 3% { fill: #f5b942; stroke-width: 4 } }\n"
        f"  #& .glow {{ animation: &glow {number(ROUND)}s infinite; }}"
    )


def _appear() -> str:
    """Keyframes: the line of a gradient appears for a moment."""
    return (
        "  @keyframes &back { 0% { opacity: 0 } 1.5%, 8% { opacity: 1 } 11%, 100% { opacity: 0 } }\n"
        f"  #& .back {{ animation: &back {number(ROUND)}s infinite backwards; }}"
    )


def _reduced_motion() -> str:
    """The rule that stops all animation for readers who turned it off."""
    return "  @media (prefers-reduced-motion: reduce) { #& * { animation: none !important; } }\n"
