"""A Picture as SVG: one self-contained file, with words for screen readers.

Knows shapes and strokes; where things stand is the layout's business.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

from leporello.draw.labels import Anchor, Box, Label, extent, labels
from leporello.draw.layout import Layout, Placed, Routed, layout
from leporello.draw.measure import SIZE, text_width
from leporello.draw.picture import Name, Picture
from leporello.draw.sizes import SQUARE
from leporello.draw.strokes import HEAD, bars, head, number, passes, path, towards
from leporello.draw.style import STYLE


class Svg(str):
    """SVG as a string; notebooks show it, `save` writes it."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file and give back the file's path."""
        file = Path(path)
        file.write_text(self, encoding="utf-8")
        return file


def svg(picture: Picture) -> Svg:
    """The picture, laid out and drawn."""
    found = layout(picture)
    parts = [_border(found, x) for x in found.borders]
    parts += [line(routed, found) for routed in found.routed]
    parts += branches(found.routed)
    parts += [spot(placed, picture) for placed in found.placed.values()]
    named = labels(found)
    parts += [label(one) for one in named]
    page = extent(found, named)
    below, page = notes(found, page)
    return framed(picture, [*parts, *below], page)


def framed(picture: Picture, parts: list[str], page: Box, style: str = STYLE) -> Svg:
    """A whole file around what is drawn."""
    left, top, width, height = map(number, (page[0], page[1], page[2] - page[0], page[3] - page[1]))
    title, description = clean(picture.title), clean(picture.description)
    own = _own_name([title, description, *parts])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{own}" viewBox="{left} {top} {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="{own}-title {own}-description">'
    )
    words = [f'<title id="{own}-title">{title}</title>', f'<desc id="{own}-description">{description}</desc>']
    paper = f'<rect class="paper" x="{left}" y="{top}" width="{width}" height="{height}"/>'
    rules = f"<style>{style.replace('&', own)}</style>"
    return Svg("\n".join([head, *words, rules, paper, *parts, "</svg>"]) + "\n")


def _own_name(parts: list[str]) -> str:
    """What no other picture on a page is called; the same for the same picture."""
    return f"p{zlib.crc32(''.join(parts).encode()):08x}"


def clean(text: str) -> str:
    """Text for XML: escaped, and without characters that XML cannot hold."""
    return escape("".join(letter if _is_allowed(letter) else "\ufffd" for letter in text))


def _is_allowed(letter: str) -> bool:
    code = ord(letter)
    return letter in "\t\n\r" or (code >= 0x20 and not 0xD800 <= code <= 0xDFFF and code not in (0xFFFE, 0xFFFF))


def told(tooltip: str, element: str) -> str:
    """An element with words that appear when one points at it."""
    return f"<g><title>{clean(tooltip)}</title>{element}</g>" if tooltip else element


def spot(placed: Placed, picture: Picture) -> str:
    """A circle, a box or a point, with its name."""
    own, half = placed.spot, placed.half
    if own.shape == "point":
        return told(own.tooltip, f'<circle class="point" cx="{number(placed.x)}" cy="{number(placed.y)}" r="2.5"/>')
    kind = "spot" + (" dashed" if own.dashed else "") + (" parameter" if own.shape == "parameter" else "")
    kind += " stepwise" if own.tint == "stepwise" and own.tint in picture.legend else ""
    round_ = half.along if own.shape in ("circle", "operator") else 2
    box = (
        f'<rect class="{kind}" x="{number(placed.x - half.across)}" y="{number(placed.y - half.along)}" '
        f'width="{number(2 * half.across)}" height="{number(2 * half.along)}" rx="{number(round_)}"/>'
    )
    size = 13.0 if own.shape == "operator" else SIZE
    return told(own.tooltip, box + name_text((own.name,), placed.x, placed.y, size))


def name_text(names: tuple[Name, ...], x: float, y: float, size: float = SIZE, anchor: Anchor = "middle") -> str:
    """Names around a point: italic, with indices below and times behind."""
    inner, low = [], False
    for index, name in enumerate(names):
        pieces = [("", ", " if index else ""), ("", name.base), ("below", name.below)]
        pieces.append(("small", f"({name.time})" if name.time else ""))
        for kind, text in pieces:
            if text:
                inner.append(_raised(kind, text, low))
                low = kind == "below"
    own = [] if size == SIZE else [f"font-size: {number(size)}px"]
    own += [] if anchor == "middle" else [f"text-anchor: {anchor}"]
    style = f' style="{"; ".join(own)}"' if own else ""
    return f'<text class="name" x="{number(x)}" y="{number(y + size * 0.32)}"{style}>{"".join(inner)}</text>'


def _raised(kind: str, text: str, low: bool) -> str:
    """A piece of a name: an index goes down, what follows it comes up again."""
    shift = 3 * ((kind == "below") - low)
    options = (' class="small"' if kind else "") + (f' dy="{shift}"' if shift else "")
    return f"<tspan{options}>{clean(text)}</tspan>" if options else clean(text)


def line(routed: Routed, found: Layout) -> str:
    """An arrow with the squares of its delays."""
    own = routed.line
    inside = " inside" if own.tint == "stepwise" and own.tint in found.picture.legend else ""
    kind = ("" if own.kind == "forward" else f" {own.kind}") + inside
    arrow = found.placed[own.target].spot.shape != "point"
    points = list(routed.way)
    tip = points[-1]
    if arrow:
        points[-1] = towards(tip, points[-2], HEAD - 1)
    parts = [f'<path class="line{kind}" d="{path(points)}"/>']
    if arrow:
        parts.append(head(routed.way, kind))
    parts += [
        f'<rect class="square" x="{number(x - SQUARE / 2)}" y="{number(y - SQUARE / 2)}" '
        f'width="{number(SQUARE)}" height="{number(SQUARE)}"/>'
        for x, y in routed.squares
    ]
    if own.kind == "cut":
        parts.append(bars(routed.way))
    return told(own.tooltip, "".join(parts))


def branches(routes: Iterable[Routed]) -> list[str]:
    """Dots where lines of one source part."""
    ways: dict[str, list[Routed]] = {}
    for routed in routes:
        if routed.line.kind == "forward":
            ways.setdefault(routed.line.source, []).append(routed)
    dots: dict[tuple[str, str], str] = {}
    for own in ways.values():
        for routed in own:
            for corner in routed.way[1:-1]:
                if any(passes(other.way, corner) for other in own if other is not routed):
                    key = (number(corner[0]), number(corner[1]))
                    dots[key] = f'<circle class="point" cx="{key[0]}" cy="{key[1]}" r="2.2"/>'
    return list(dots.values())


def label(one: Label) -> str:
    return told(one.routed.line.tooltip, name_text(one.routed.line.names, one.held, one.y, anchor=one.anchor))


def _border(found: Layout, x: float) -> str:
    """A dotted line where a window begins."""
    return f'<path class="line border" d="M{number(x)} 4V{number(found.height - 4)}"/>'


def notes(found: Layout, page: Box) -> tuple[list[str], Box]:
    """Captions of columns and the legend, below; and the page with room for them."""
    parts = []
    left, top, right, bottom = page
    if found.picture.captions:
        bottom += 16
    for column, caption in found.picture.captions.items():
        half = text_width(caption, 12) / 2
        x = min(max(found.columns[column], left + half), right - half)
        parts.append(f'<text class="note" x="{number(x)}" y="{number(bottom - 6)}">{clean(caption)}</text>')
    for tint, words in found.picture.legend.items():
        bottom += 20
        right = max(right, left + 40 + text_width(words, 12))
        kind = "spot" + (" stepwise" if tint == "stepwise" else "")
        parts.append(
            f'<rect class="{kind}" x="{number(left + 8)}" y="{number(bottom - 17)}" width="16" height="11" rx="5"/>'
            f'<text class="note" style="text-anchor: start" x="{number(left + 30)}" y="{number(bottom - 7)}">'
            f"{clean(words)}</text>"
        )
    return parts, (left, top, right, bottom + (6 if found.picture.legend else 0))
