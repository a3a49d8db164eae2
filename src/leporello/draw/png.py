"""Rendering of SVG as PNG with the package resvg_py: a font for every generic family, and a limit on the size."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from leporello.errors import ArgumentError, LeporelloError

MAX_PIXELS = 2**26  # 256 MiB while it is drawn; resvg would abort the process on a far larger image, not raise

# resvg has one font for each generic family of CSS, and draws no text where that font is missing.
FONT_FAMILIES = {
    "serif": ("DejaVu Serif", "Liberation Serif", "Noto Serif", "FreeSerif", "Times New Roman", "Times", "Georgia"),
    "sans-serif": (
        "DejaVu Sans",
        "Liberation Sans",
        "Noto Sans",
        "FreeSans",
        "Arial",
        "Helvetica",
        "Segoe UI",
        "Ubuntu",
        "Cantarell",
    ),
    "monospace": ("DejaVu Sans Mono", "Liberation Mono", "Noto Sans Mono", "FreeMono", "Courier New", "Menlo"),
}

_TEST_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'


class Png(bytes):
    """PNG as bytes; notebooks display it, `save` writes it."""

    def _repr_png_(self) -> bytes:
        return bytes(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file and return the file's path."""
        file = Path(path)
        file.write_bytes(self)
        return file


def png(svg: str, scale: float = 2) -> bytes:
    """The image of an SVG on a white background, `scale` pixels for each unit of the SVG.

    >>> png('<svg xmlns="http://www.w3.org/2000/svg" width="3" height="2"/>')[:4]
    b'\\x89PNG'
    """
    resvg = _resvg()
    _check_size(svg, scale)
    fonts = _fonts(resvg.svg_to_bytes) if "<text" in svg else {}
    return resvg.svg_to_bytes(svg_string=svg, background="white", zoom=scale, **fonts)


def _resvg() -> ModuleType:
    try:
        import resvg_py  # an optional package
    except ImportError as error:
        raise LeporelloError(
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


@functools.cache
def _fonts(render: Callable[..., bytes]) -> dict[str, str]:
    """Arguments for resvg: for each generic family an installed font, of another family where none is installed."""
    installed = {
        kind: next((name for name in (kind, *names) if _draws(render, name)), None)
        for kind, names in FONT_FAMILIES.items()
    }
    substitute = next(filter(None, installed.values()), None)
    if substitute is None:
        raise LeporelloError(
            "no font was found, so the picture would have no letters.",
            expected="one of " + ", ".join(names[0] for names in FONT_FAMILIES.values()) + " or a font like them",
            tries="install one, as the package fonts-dejavu; or write a .svg, which is drawn with the reader's fonts",
        )
    return {f"{kind.replace('-', '_')}_family": name or substitute for kind, name in installed.items() if name != kind}


def _draws(render: Callable[..., bytes], family: str) -> bool:
    """Whether a letter of this family is drawn at all."""
    letter = f'<text x="5" y="35" font-size="30" font-family="{family}">M</text>'
    return render(svg_string=_TEST_SVG.format(letter)) != render(svg_string=_TEST_SVG.format(""))
