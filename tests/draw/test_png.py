"""Pictures as PNG: white behind, letters in front, and words where one of them is missing."""

from __future__ import annotations

import functools
import struct
import sys
import zlib

import pytest

from leporello.draw.fonts import generic_families
from leporello.draw.png import MAX_PIXELS, png
from leporello.errors import ArgumentError, LeporelloError
from tests.cli.invoke import refused
from tests.errors.said import said

resvg_py = pytest.importorskip("resvg_py", reason="only PNG needs it")
EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="{}" height="{}">{}</svg>'


def size(image: bytes) -> tuple[int, int]:
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", image[16:24])


def pixels(image: bytes) -> bytes:
    """The bytes of an image's rows, each behind one that tells its filter."""
    parts, place = [], 8
    while place < len(image):
        (length,), kind = struct.unpack(">I", image[place : place + 4]), image[place + 4 : place + 8]
        parts += [image[place + 8 : place + 8 + length]] if kind == b"IDAT" else []
        place += 12 + length
    return zlib.decompress(b"".join(parts))


@pytest.mark.parametrize(("scale", "expected"), [(1, (63, 21)), (2, (126, 42)), (0.5, (32, 11)), (1.5, (95, 32))])
def test_scale_is_pixels_for_each_unit(scale: float, expected: tuple[int, int]) -> None:
    assert size(png(EMPTY.format(63, 21, ""), scale)) == expected


def test_it_is_white_behind() -> None:
    assert pixels(png(EMPTY.format(1, 1, ""), 1))[1:] == bytes([255, 255, 255, 255])  # behind the row's filter


@pytest.mark.parametrize("family", ["serif", "sans-serif", "monospace", "'No Such Font', serif", "No Such Font"])
def test_letters_are_drawn_whatever_family_is_asked_for(family: str) -> None:
    letter = f'<text x="3" y="17" font-size="16" style="font-family: {family}">h</text>'
    assert png(EMPTY.format(21, 21, letter)) != png(EMPTY.format(21, 21, ""))


def test_a_size_may_stand_in_the_view_box() -> None:
    assert size(png('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 7 3"/>')) == (14, 6)


def test_a_drawing_without_size_is_refused() -> None:
    said(ArgumentError, lambda: png('<svg xmlns="http://www.w3.org/2000/svg"/>'), "tells no size")


@pytest.mark.parametrize("scale", [0, -1, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    said(ArgumentError, lambda: png(EMPTY.format(3, 3, ""), scale), "'scale'")


def test_a_picture_beyond_memory_is_refused() -> None:
    wide = EMPTY.format(MAX_PIXELS, 3, "")
    said(LeporelloError, lambda: png(wide), "too large", ".svg")


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    told = refused("draw", "rnn", "--out", f"{tmp_path}/net.png")
    assert "pip install 'leporello[pictures]'" in told
    assert ".svg" in told


def test_a_machine_without_fonts_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    bare = functools.partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", bare)
    told = refused("draw", "rnn", "--out", f"{tmp_path}/net.png")
    assert "no font was found" in told
    assert ".svg" in told


def test_a_kind_of_font_that_is_missing_is_drawn_with_another() -> None:
    def only_one(svg_string: str) -> bytes:
        return b"drawn" if '"Noto Sans"' in svg_string else b"nothing"

    assert set(generic_families(only_one).values()) == {"Noto Sans"}
