"""Drawings of large cells stay readable: every name is there in full, and nothing is written over anything else."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

import leporello as lp
from leporello.draw.picture import Picture
from leporello.draw.picture_layout import layout_picture
from leporello.draw.svg import svg
from leporello.draw.terminal import terminal
from tests.draw.geometry import faults
from tests.draw.large_cells import LARGE

PICTURES = [(name, steps) for name in LARGE for steps in (0, 3)]


@cache
def picture(name: str, steps: int) -> Picture:
    loop: lp.Loop = folded(name)
    return loop.unfold(steps).picture() if steps else loop.picture()


@cache
def folded(name: str) -> lp.Loop:
    return LARGE[name]()


def overwritten(drawn: Picture) -> list[str]:
    """Names and labels that are not in the terminal as often as in the picture, with marks for labels without room."""
    rows = terminal(drawn).split("\n")
    notes = dict(reversed(row.split(" ", 1)) for row in rows if re.match("[⁰¹²³⁴⁵⁶⁷⁸⁹]+ ", row))
    drawing = "\n".join(row for row in rows if row[:1] not in set("⁰¹²³⁴⁵⁶⁷⁸⁹") or not row)
    found = []
    for name, count in Counter(str(spot.name) for spot in drawn.spots).items():
        drawing, times = re.subn(rf"[│┆] +{re.escape(name)} +[│┆]", "", drawing)
        found += [] if times == count else [f"name {name}: {times} of {count}"]
    for label, count in Counter(line.label for line in drawn.lines if line.names).items():
        times = len(re.findall(rf"(?<![\w…]){re.escape(label)}(?![\w…])", drawing))
        times += len(re.findall(notes[label] + "(?![⁰¹²³⁴⁵⁶⁷⁸⁹])", drawing)) if label in notes else 0
        found += [] if times == count else [f"label {label}: {times} of {count}"]
    return found


@pytest.mark.parametrize(("name", "steps"), PICTURES)
def test_nothing_is_overwritten_in_the_terminal(name: str, steps: int) -> None:
    assert overwritten(picture(name, steps)) == []


@pytest.mark.parametrize(("name", "steps"), [*((name, 0) for name in LARGE), ("Hyper", 3)])
def test_nothing_lies_on_anything_else(name: str, steps: int) -> None:
    assert faults(layout_picture(picture(name, steps))) == []


@pytest.mark.parametrize("name", LARGE)
def test_every_line_that_comes_back_has_an_arrowhead_of_its_own(name: str) -> None:
    """As the four that come back to c of Turing, and one from c itself: its circle is higher than others."""
    assert terminal(picture(name, 0)).count("◀") == sum(line.delay > 0 for line in picture(name, 0).lines)


def test_a_label_without_room_is_a_mark_with_a_note() -> None:
    for drawn in (terminal(picture("Hyper", 3)), svg(picture("Hyper", 3))):
        (mark,) = re.findall("([⁰¹²³⁴⁵⁶⁷⁸⁹]+) small_ih", drawn)
        assert drawn.count(mark) > 1


def test_a_label_has_the_same_mark_everywhere() -> None:
    drawn = terminal(picture("Turing", 0))
    notes = re.findall("^([⁰¹²³⁴⁵⁶⁷⁸⁹]+) (.*)$", drawn, re.MULTILINE)
    assert len({mark for mark, _ in notes}) == len({label for _, label in notes}) == len(notes)
