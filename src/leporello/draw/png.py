"""Rendering of SVG as PNG with the package resvg_py: with fonts for all its letters, and a limit on the size."""

from __future__ import annotations

import re
import warnings
from types import ModuleType

from leporello.draw.fonts import (
    drawn_letters,
    fallback_fonts,
    generic_families,
    missing_letters_warning,
    set_in_chinese,
)
from leporello.errors import ArgumentError, LeporelloError, MissingPackage

MAX_PIXELS = 2**26  # 256 MiB while it is drawn; resvg would abort the process on a far larger image, not raise


def png(svg: str, scale: float = 2) -> bytes:
    """The image of an SVG on a white background, `scale` pixels for each unit of the SVG.

    Letters that no font has are named in a warning.

    >>> png('<svg xmlns="http://www.w3.org/2000/svg" width="3" height="2"/>')[:4]
    b'\\x89PNG'
    """
    resvg = _resvg()
    _check_size(svg, scale)
    render = resvg.svg_to_bytes
    options: dict[str, object] = {}
    if "<text" in svg:
        options |= generic_families(render)
        files, missing = fallback_fonts(render, drawn_letters(svg))
        if files:
            options["font_files"] = list(files)
        if missing:
            warnings.warn(missing_letters_warning(missing), UserWarning, stacklevel=3)  # at the caller of `.png()`
        svg = set_in_chinese(render, svg, files)
    return render(svg_string=svg, background="white", zoom=scale, **options)


def _resvg() -> ModuleType:
    try:
        import resvg_py  # an optional package
    except ImportError as error:
        raise MissingPackage(
            "a picture as PNG needs the package resvg_py.",
            tries="pip install 'leporello[pictures]'; or write a .svg, which needs nothing",
        ) from error
    return resvg_py


def _check_size(svg: str, scale: float) -> None:
    """Raise if the scale is not positive or the image would be too large."""
    width, height = _size(svg)
    if not scale > 0:
        raise ArgumentError("the argument 'scale' is no scale.", came=repr(scale), expected="a number above 0")
    if width * height * scale**2 > MAX_PIXELS:
        raise LeporelloError(
            "the picture is too large for a PNG.",
            came=f"{width * scale:,.0f} × {height * scale:,.0f} pixels",
            expected=f"at most {MAX_PIXELS:,} of them",
            tries="write a .svg; or draw fewer steps",
        )


def _size(svg: str) -> tuple[float, float]:
    """Width and height of an SVG, from the attributes of its root element."""
    root = re.search(r"<svg\b[^>]*>", svg)
    tag = root[0] if root else ""
    sides = [re.search(rf'\s{name}="([0-9.]+)(?:px)?"', tag) for name in ("width", "height")]
    box = re.search(r'\sviewBox="[-0-9.]+[\s,]+[-0-9.]+[\s,]+([0-9.]+)[\s,]+([0-9.]+)"', tag)
    if sides[0] and sides[1]:
        return float(sides[0][1]), float(sides[1][1])
    if box:
        return float(box[1]), float(box[2])
    raise ArgumentError("the argument 'svg' tells no size.", expected='<svg ... width="300" height="200">')
