"""Tracks: parallel lines in a channel, so that no two lie on each other.

Knows intervals only, across or along.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Span = tuple[float, float]
ROOM = 8.0  # between two lines on one track


def tracks(spans: Mapping[Key, Span], below: Sequence[tuple[Key, Key]] = ()) -> dict[Key, int]:
    """The track of each span, from 0: short ones first, each on the lowest where it meets no other.

    below   pairs of which the first must lie on a lower track than the second
    """
    found: dict[Key, int] = {}
    waiting = sorted(spans, key=lambda key: (spans[key][1] - spans[key][0], str(key)))
    while waiting:
        ready = [key for key in waiting if not any(over == key and under in waiting for under, over in below)]
        key = (ready or waiting)[0]  # rules in a circle cannot all be kept
        waiting.remove(key)
        track = max((found[under] + 1 for under, over in below if over == key and under in found), default=0)
        while any(found[other] == track and _meet(spans[key], spans[other]) for other in found):
            track += 1
        found[key] = track
    return found


def _meet(one: Span, other: Span) -> bool:
    return one[0] < other[1] + ROOM and other[0] < one[1] + ROOM
