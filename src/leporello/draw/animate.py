"""One animated SVG, without scripts: the loop folds open, values run from left to right, gradients from right to left.

A stylesheet moves what `svg` draws. Where nothing may move, or nothing can, the open strip stands still.
"""

from __future__ import annotations

from dataclasses import replace

from leporello.draw.labels import extent, labels
from leporello.draw.layout import Layout, Routed, layout
from leporello.draw.measure import SMALL, text_width
from leporello.draw.picture import Picture
from leporello.draw.strokes import number
from leporello.draw.style import STYLE
from leporello.draw.svg import Svg, branches, framed, label, line, notes, spot

SECONDS = 14.0  # one round
CLOSED, OPEN = 1.5, 3.5  # until when the loop stands closed, and from when the strip stands open
VALUES, GRADIENTS = 4.0, 7.6  # when values and gradients begin to run
RUN = 3.0  # how long they run
FOLDING, FOLDED = 12.3, 13.6  # when the strip folds up again


def animated(closed: Picture, opened: Picture) -> Svg:
    """The closed picture turning into the open one and back, again and again.

    closed   one step with its delays
    opened   its columns, with the gradient's lines
    """
    strip = layout(opened)
    middle = _middle(opened)
    loop = _loop_within(closed, strip, middle)
    rules = [_fade("closed", visible=False), *(_slide(strip, column, middle) for column in range(opened.columns))]
    rules += [_fade("between", visible=True), _glow(), _appear()]
    parts = [f'<g class="loop">{"".join(loop)}</g>']
    parts += _between(strip)
    parts += [_column(strip, column) for column in range(opened.columns)]
    parts += _gradients(strip)
    style = STYLE + "\n".join(["", *rules, _still()])
    below, page = notes(strip, extent(strip, labels(strip)))
    return framed(opened, [*parts, *below], page, style)


def _middle(opened: Picture) -> int:
    """The column out of which the others come."""
    whole = sorted({spot.column for spot in opened.spots if not spot.dashed})
    return whole[len(whole) // 2] if len(whole) % 2 else whole[len(whole) // 2 - 1]


def _loop_within(closed: Picture, strip: Layout, middle: int) -> list[str]:
    """The closed picture, drawn where the middle column of the open one stands."""
    time = max((spot.name.time for spot in strip.picture.spots), key=lambda time: text_width(time, SMALL))
    sized = tuple(replace(own, name=replace(own.name, time=time)) for own in closed.spots)  # as large as they will be
    found = layout(replace(closed, spots=sized))
    dx, dy = strip.columns[middle] - found.columns[0], strip.rows[0] - found.rows[0]
    names = {own.id: own.name for own in closed.spots}
    bare = {id: replace(placed, spot=replace(placed.spot, name=names[id])) for id, placed in found.placed.items()}
    shown = replace(found, placed=bare)
    inner = [line(routed, shown) for routed in found.routed] + branches(found.routed)
    inner += [spot(placed, closed) for placed in bare.values()] + [label(one) for one in labels(found)]
    return [f'<g transform="translate({number(dx)} {number(dy)})">', *inner, "</g>"]


def _column(strip: Layout, column: int) -> str:
    """A step with its own lines and labels; its values glow when their turn comes."""
    own = [routed for routed in strip.routed if _columns(strip, routed) == (column, column)]
    inner = [line(routed, strip) for routed in own if routed.line.kind == "forward"] + branches(own)
    named = {id(routed) for routed in own}
    inner += [label(one) for one in labels(strip) if id(one.routed) in named]
    for placed in strip.placed.values():
        if placed.spot.column == column:
            delay = VALUES + RUN * _turn(strip, placed.spot.id)
            drawn = spot(placed, strip.picture)
            inner.append(drawn.replace('class="spot', f'style="animation-delay: {delay:.2f}s" class="glow spot', 1))
    return f'<g class="column c{column}">{"".join(inner)}</g>'


def _turn(strip: Layout, id: str) -> float:
    """When in the run a value's turn comes, from 0 to 1: column by column, from the bottom up."""
    placed = strip.placed[id]
    row = min(range(len(strip.rows)), key=lambda index: abs(strip.rows[index] - placed.y))
    return (placed.spot.column * len(strip.rows) + row) / (strip.picture.columns * len(strip.rows))


def _columns(strip: Layout, routed: Routed) -> tuple[int, int]:
    source, target = strip.placed[routed.line.source], strip.placed[routed.line.target]
    return source.spot.column, target.spot.column


def _between(strip: Layout) -> list[str]:
    """Lines from column to column, with their labels, once the columns stand apart."""
    own = [
        routed for routed in strip.routed if routed.line.kind == "forward" and len(set(_columns(strip, routed))) == 2
    ]
    named = {id(routed) for routed in own}
    inner = [line(routed, strip) for routed in own] + branches(own)
    inner += [label(one) for one in labels(strip) if id(one.routed) in named]
    return [f'<g class="between">{"".join(inner)}</g>']


def _gradients(strip: Layout) -> list[str]:
    """The gradient's lines, each when the run back comes to it."""
    parts = []
    for routed in strip.routed:
        if routed.line.kind != "forward":
            delay = GRADIENTS + RUN * (1 - _turn(strip, routed.line.source))
            parts.append(f'<g class="back" style="animation-delay: {delay:.2f}s">{line(routed, strip)}</g>')
    return parts


def _share(seconds: float) -> str:
    return f"{100 * seconds / SECONDS:.1f}%"


def _slide(strip: Layout, column: int, middle: int) -> str:
    """A column comes out of the middle one, and goes back."""
    away = f"transform: translateX({number(strip.columns[middle] - strip.columns[column])}px)"
    return (
        f"  @keyframes &slide{column} {{ 0%, {_share(CLOSED)} {{ {away}; opacity: 0 }} "
        f"{_share(CLOSED + 0.5)}, {_share(FOLDED - 0.4)} {{ opacity: 1 }} "
        f"{_share(OPEN)}, {_share(FOLDING)} {{ transform: none }} {_share(FOLDED)}, 100% {{ {away}; opacity: 0 }} }}\n"
        f"  #& .c{column} {{ animation: &slide{column} {number(SECONDS)}s ease-in-out infinite; }}"
    )


def _fade(name: str, *, visible: bool) -> str:
    """The closed loop goes when the strip comes; lines between columns come when these stand."""
    if not visible:
        frames = (
            f"0%, {_share(CLOSED)} {{ opacity: 1 }} {_share(CLOSED + 0.7)}, {_share(FOLDED - 0.5)} {{ opacity: 0 }} "
            f"{_share(FOLDED)}, 100% {{ opacity: 1 }}"
        )
        return (
            f"  #& .loop {{ opacity: 0; animation: &{name} {number(SECONDS)}s infinite; }}\n"
            f"  @keyframes &{name} {{ {frames} }}"
        )
    frames = (
        f"0%, {_share(OPEN - 0.3)} {{ opacity: 0 }} {_share(OPEN + 0.3)}, {_share(FOLDING - 0.3)} {{ opacity: 1 }} "
        f"{_share(FOLDING)}, 100% {{ opacity: 0 }}"
    )
    return f"  #& .between {{ animation: &{name} {number(SECONDS)}s infinite; }}\n  @keyframes &{name} {{ {frames} }}"


def _glow() -> str:
    """A value lights up when it is computed; it also grows thick, for those who see no colours."""
    return (
        "  @keyframes &glow { 0%, 5%, 100% { fill-opacity: 1; stroke-width: 1.3 } "
        "1.5%, 3% { fill: #f5b942; stroke-width: 4 } }\n"
        f"  #& .glow {{ animation: &glow {number(SECONDS)}s infinite; }}"
    )


def _appear() -> str:
    return (
        "  @keyframes &back { 0% { opacity: 0 } 1.5%, 8% { opacity: 1 } 11%, 100% { opacity: 0 } }\n"
        f"  #& .back {{ animation: &back {number(SECONDS)}s infinite backwards; }}"
    )


def _still() -> str:
    return "  @media (prefers-reduced-motion: reduce) { #& * { animation: none !important; } }\n"
