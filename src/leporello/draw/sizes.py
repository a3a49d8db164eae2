"""How large each spot is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from leporello.draw.measure import name_width
from leporello.draw.picture import Picture, Spot

ROUND = 29.0  # half the longest name in a circle; longer ones make it oblong
ROOM = 3.0  # between a name and its circle
SQUARE = 9.0  # the side of a delay's square


@dataclass(frozen=True)
class Half:
    """Half the width and half the height of a spot."""

    across: float
    along: float


def halves(picture: Picture) -> dict[str, Half]:
    """The size of every place, the same in all columns."""
    found: dict[str, Half] = {}
    radius = 22.0 if any(spot.name.time for spot in picture.spots) else 17.0
    texts = [name_width(spot.name) / 2 + ROOM for spot in picture.spots if spot.shape == "circle"]
    radius = max([radius, *(text for text in texts if text <= ROUND)])
    busy = any(line.kind != "forward" for line in picture.lines)
    for spot in picture.spots:
        own = _half(spot, radius, 20.0 if busy else 13.0)
        before = found.get(spot.place, own)
        found[spot.place] = Half(max(own.across, before.across), max(own.along, before.along))
    return found


def _half(spot: Spot, radius: float, operator: float) -> Half:
    if spot.shape == "point":
        return Half(2.5, 2.5)
    text = name_width(spot.name) / 2
    if spot.shape == "operator":
        return Half(max(operator, text + 5), operator)
    if spot.shape == "circle":
        return Half(radius if text + ROOM <= radius else text + 8, radius)
    return Half(max(16.0, text + 7), 14.0)
