"""A picture as SVG: one self-contained file without scripts, with a title and a description for screen readers.

`svg_style.py` says how its parts look. Nothing is shown by colour alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from xml.sax.saxutils import escape

from leporello.draw.caption_placement import Caption, place_captions
from leporello.draw.image_files import Svg
from leporello.draw.label_placement import Anchor, Box, Label, marks_of, page_box, place_labels
from leporello.draw.picture import LEVELS, Name, Picture
from leporello.draw.picture_layout import PictureLayout, PlacedSpot, RoutedLine, layout_picture
from leporello.draw.polylines import Point, direction, distance, passes_through, point_towards
from leporello.draw.sizes import (
    CAPTION_FONT_SIZE,
    CELL_HEIGHT,
    FONT_SIZE,
    HEAD_FONT_SIZE,
    SQUARE,
    card_numbers,
    text_width,
)
from leporello.draw.svg_style import NUMBER_STYLE, STYLE

CORNER_RADIUS = 10.0
ARROWHEAD = 7.0


def svg(picture: Picture) -> Svg:
    """Lay out a picture and draw it."""
    layout = layout_picture(picture)
    parts = [_window_border(layout, x) for x in layout.borders]
    parts += [draw_line(routed, layout) for routed in layout.routed]
    parts += draw_branches(layout.routed)
    parts += [draw_spot(placed, picture) for placed in layout.placed.values()]
    labels = place_labels(layout)
    parts += [draw_label(label) for label in labels]
    captions = place_captions(layout, labels)
    parts += [_caption(caption) for caption in captions]
    notes, page = draw_notes(layout, page_box(layout, [*labels, *captions]), marks_of(labels))
    return svg_file(picture, [*parts, *notes], page, STYLE + NUMBER_STYLE if picture.scales else STYLE)


def svg_file(picture: Picture, parts: list[str], page: Box, style: str = STYLE) -> Svg:
    """The complete file around the drawn parts."""
    left, top, width, height = map(number, (page[0], page[1], page[2] - page[0], page[3] - page[1]))
    title, description = escaped(picture.title), escaped(picture.description)
    id = _picture_id([title, description, *parts])
    root = (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{id}" viewBox="{left} {top} {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="{id}-title {id}-description">'
    )
    words = [f'<title id="{id}-title">{title}</title>', f'<desc id="{id}-description">{description}</desc>']
    paper = f'<rect class="paper" x="{left}" y="{top}" width="{width}" height="{height}"/>'
    rules = f"<style>{style.replace('&', id)}</style>"
    return Svg("\n".join([root, *words, rules, paper, *parts, "</svg>"]) + "\n")


def _picture_id(parts: list[str]) -> str:
    """An id that no other picture on a page has: a checksum of its contents."""
    return f"p{zlib.crc32(''.join(parts).encode()):08x}"


def escaped(text: str) -> str:
    """Text for XML: escaped; characters that XML does not allow are replaced."""
    return escape("".join(letter if _is_allowed(letter) else "\ufffd" for letter in text))


def _is_allowed(letter: str) -> bool:
    code = ord(letter)
    return letter in "\t\n\r" or (code >= 0x20 and not 0xD800 <= code <= 0xDFFF and code not in (0xFFFE, 0xFFFF))


def with_tooltip(tooltip: str, element: str) -> str:
    """An element with a tooltip, if there is one."""
    return f"<g><title>{escaped(tooltip)}</title>{element}</g>" if tooltip else element


def draw_spot(placed: PlacedSpot, picture: Picture) -> str:
    """A circle, a box or a point, with its name."""
    spot, half = placed.spot, placed.half
    if spot.shape == "point":
        return with_tooltip(
            spot.tooltip, f'<circle class="point" cx="{number(placed.x)}" cy="{number(placed.y)}" r="2.5"/>'
        )
    kind = "spot" + (" dashed" if spot.dashed else "") + (" parameter" if spot.shape == "parameter" else "")
    kind += " stepwise" if spot.tint == "stepwise" and spot.tint in picture.legend else ""
    radius = {"circle": half.y, "operator": half.y, "card": 8.0}.get(spot.shape, 2.0)
    box = (
        f'<rect class="{kind}" x="{number(placed.x - half.x)}" y="{number(placed.y - half.y)}" '
        f'width="{number(2 * half.x)}" height="{number(2 * half.y)}" rx="{number(radius)}"/>'
    )
    if spot.numbers:
        return with_tooltip(spot.tooltip, box + "".join(_card_parts(placed)))
    size = 13.0 if spot.shape == "operator" else FONT_SIZE
    return with_tooltip(spot.tooltip, box + draw_names((spot.name,), placed.x, placed.y, size))


def _card_parts(placed: PlacedSpot) -> list[str]:
    """The name and the numbers of a card, each number on a cell in its colour."""
    parts = []
    for block in card_numbers(placed.spot)[1]:
        head, size = block.numbers.head, HEAD_FONT_SIZE
        if head is None:
            head, size = placed.spot.name, FONT_SIZE
        parts.append(draw_names((head,), placed.x + block.head[0], placed.y + block.head[1], size))
        for row, (texts, levels) in enumerate(zip(block.numbers.texts, block.numbers.levels, strict=True)):
            for column, (text, level) in enumerate(zip(texts, levels, strict=True)):
                x, y = placed.x + block.left + column * block.cell, placed.y + block.top + row * CELL_HEIGHT
                parts += [_cell(x, y, block.cell, level)] if level else []
                parts.append(
                    f'<text class="number" x="{number(x + block.cell - 3)}" y="{number(y + 11)}">{escaped(text)}</text>'
                )
    return parts


def _cell(x: float, y: float, width: float, level: int, height: float = CELL_HEIGHT) -> str:
    """The coloured ground of a number."""
    colour = f"{'p' if level > 0 else 'n'}{abs(level)}" if level else ""
    return (
        f'<rect class="cell {colour}" x="{number(x)}" y="{number(y)}" width="{number(width)}" '
        f'height="{number(height)}"/>'
    )


def draw_names(names: tuple[Name, ...], x: float, y: float, size: float = FONT_SIZE, anchor: Anchor = "middle") -> str:
    """Names at a point: italic, each followed by its index, lowered, and its time."""
    inner, is_lowered = [], False
    for index, name in enumerate(name.set for name in names):
        parts = [("", ", " if index else ""), ("", name.base), ("below", name.below)]
        parts.append(("small", f"({name.time})" if name.time else ""))
        for kind, text in parts:
            if text:
                inner.append(_name_part(kind, text, is_lowered))
                is_lowered = kind == "below"
    rules = [] if size == FONT_SIZE else [f"font-size: {number(size)}px"]
    rules += [] if anchor == "middle" else [f"text-anchor: {anchor}"]
    style = f' style="{"; ".join(rules)}"' if rules else ""
    return f'<text class="name" x="{number(x)}" y="{number(y + size * 0.32)}"{style}>{"".join(inner)}</text>'


def _name_part(kind: str, text: str, is_lowered: bool) -> str:
    """A part of a name: an index is lowered, the part after it raised again."""
    shift = 3 * ((kind == "below") - is_lowered)
    options = (' class="small"' if kind else "") + (f' dy="{shift}"' if shift else "")
    return f"<tspan{options}>{escaped(text)}</tspan>" if options else escaped(text)


def draw_line(routed: RoutedLine, layout: PictureLayout) -> str:
    """An arrow with the squares of its delays."""
    line = routed.line
    inside = " inside" if line.tint == "stepwise" and line.tint in layout.picture.legend else ""
    kind = ("" if line.kind == "forward" else f" {line.kind}") + inside
    has_arrowhead = layout.placed[line.target].spot.shape != "point"
    points = list(routed.path)
    tip = points[-1]
    if has_arrowhead:
        points[-1] = point_towards(tip, points[-2], ARROWHEAD - 1)
    parts = [f'<path class="line{kind}" d="{_path_data(points)}"/>']
    if has_arrowhead:
        parts.append(_arrowhead(routed.path, kind))
    parts += [
        f'<rect class="square" x="{number(x - SQUARE / 2)}" y="{number(y - SQUARE / 2)}" '
        f'width="{number(SQUARE)}" height="{number(SQUARE)}"/>'
        for x, y in routed.squares
    ]
    if line.kind == "cut":
        parts.append(_cut_bars(routed.path))
    return with_tooltip(line.tooltip, "".join(parts))


def draw_branches(routes: Iterable[RoutedLine]) -> list[str]:
    """Dots where lines of one source branch."""
    lines_of: dict[str, list[RoutedLine]] = {}
    for routed in routes:
        if routed.line.kind == "forward":
            lines_of.setdefault(routed.line.source, []).append(routed)
    dots: dict[tuple[str, str], str] = {}
    for lines in lines_of.values():
        for routed in lines:
            for corner in routed.path[1:-1]:
                if any(passes_through(other.path, corner) for other in lines if other is not routed):
                    key = (number(corner[0]), number(corner[1]))
                    dots[key] = f'<circle class="point" cx="{key[0]}" cy="{key[1]}" r="2.2"/>'
    return list(dots.values())


def draw_label(label: Label) -> str:
    """The names of a line, beside it."""
    y = label.y + (3 if label.mark else 0)  # raised digits are in the upper half of a line of text
    names = draw_names(label.names, label.anchor_x, y, anchor=label.anchor)
    return with_tooltip(label.routed.line.tooltip, names)


def _caption(caption: Caption) -> str:
    """A word beside a spot, upright."""
    y = number(caption.y + CAPTION_FONT_SIZE * 0.34)
    return f'<text style="font-size: 14px" x="{number(caption.x)}" y="{y}">{escaped(caption.words)}</text>'


def _window_border(layout: PictureLayout, x: float) -> str:
    """A dotted line where a window begins."""
    return f'<path class="line border" d="M{number(x)} 4V{number(layout.height - 4)}"/>'


def draw_notes(layout: PictureLayout, page: Box, marks: Mapping[str, str]) -> tuple[list[str], Box]:
    """Captions of columns, what marks stand for, and the legend, below the picture; and the page's box with them."""
    parts = []
    left, top, right, bottom = page
    if layout.picture.captions:
        bottom += 16
    for column, caption in layout.picture.captions.items():
        half = text_width(caption, 12) / 2
        x = min(max(layout.columns[column], left + half), right - half)
        parts.append(f'<text class="note" x="{number(x)}" y="{number(bottom - 6)}">{escaped(caption)}</text>')
    for words, mark in marks.items():
        bottom += 18
        right = max(right, left + 16 + text_width(f"{mark} {words}", 12))
        parts.append(_note(left + 8, bottom - 6, f"{mark} {words}"))
    bottom += 6 if marks else 0
    for tint, words in layout.picture.legend.items():
        bottom += 20
        right = max(right, left + 40 + text_width(words, 12))
        kind = "spot" + (" stepwise" if tint == "stepwise" else "")
        parts.append(
            f'<rect class="{kind}" x="{number(left + 8)}" y="{number(bottom - 17)}" width="16" height="11" rx="5"/>'
            + _note(left + 30, bottom - 7, words)
        )
    widest = max((text_width(f"−{largest}", 12) for _, largest in layout.picture.scales), default=0.0)
    for words, largest in layout.picture.scales:
        bottom += 20
        right = max(right, left + widest + 130 + text_width(f"{largest}   {words}", 12))
        parts += _scale(left + 12 + widest, bottom - 17, words, largest)
    return parts, (left, top, right, bottom + (6 if layout.picture.legend or layout.picture.scales else 0))


def _scale(start: float, y: float, words: str, largest: str) -> list[str]:
    """The colours of numbers in order, from the most negative to the largest."""
    low = f'<text class="note" style="text-anchor: end" x="{number(start - 4)}" y="{number(y + 10)}">−{largest}</text>'
    cells = [_cell(start + 14 * (level + LEVELS), y, 14, level, 11) for level in range(-LEVELS, LEVELS + 1) if level]
    end = start + 14 * (2 * LEVELS + 1)
    return [low, *cells, _note(end + 4, y + 10, f"{largest}   {words}")]


def _note(x: float, y: float, words: str) -> str:
    """Small text that begins at a point."""
    return f'<text class="note" style="text-anchor: start" x="{number(x)}" y="{number(y)}">{escaped(words)}</text>'


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _path_data(points: list[Point]) -> str:
    """The data of an SVG path along a polyline, with rounded corners."""
    start = points[0]
    parts = [f"M{number(start[0])} {number(start[1])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        radius = min(CORNER_RADIUS, distance(before, here) / 2, distance(here, after) / 2)
        a, b = point_towards(here, before, radius), point_towards(here, after, radius)
        parts.append(
            f"L{number(a[0])} {number(a[1])}Q{number(here[0])} {number(here[1])} {number(b[0])} {number(b[1])}"
        )
    end = points[-1]
    return "".join(parts) + f"L{number(end[0])} {number(end[1])}"


def _arrowhead(points: list[Point], kind: str) -> str:
    """The tip of an arrow, as a triangle."""
    (x, y), before = points[-1], points[-2]
    dx, dy = direction(before, points[-1])
    back = (x - dx * ARROWHEAD, y - dy * ARROWHEAD)
    wing = ARROWHEAD * 0.45
    corners = [(x, y), (back[0] - dy * wing, back[1] + dx * wing), (back[0] + dy * wing, back[1] - dx * wing)]
    return f'<path class="head{kind}" d="M{"L".join(f"{number(a)} {number(b)}" for a, b in corners)}Z"/>'


def _cut_bars(points: list[Point]) -> str:
    """Two bars across a line on which no gradient flows, in the middle of its longest segment."""
    a, b = max(pairwise(points), key=lambda segment: distance(*segment))
    x, y = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
    dx, dy = direction(a, b)
    bars = []
    for shift in (-2, 2):
        cx, cy = x + dx * shift, y + dy * shift
        bars.append(f"M{number(cx - dy * 5)} {number(cy + dx * 5)}L{number(cx + dy * 5)} {number(cy - dx * 5)}")
    return f'<path class="bars" d="{"".join(bars)}"/>'
