"""`png`: a drawing as an image, for pages that show no SVG.

Knows SVG text, the package resvg_py and what it lacks: a font under every generic name, and room for huge images.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import ModuleType

from leporello.errors import ArgumentError, LeporelloError

MOST_PIXELS = 2**26  # 256 MiB while it is drawn; what lies far beyond would end the process, not raise

# resvg knows the generic families of CSS by one name each, and draws nothing where that font is missing.
FAMILIES = {
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

_LETTER = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'


def png(svg: str, scale: float = 2) -> bytes:
    """The image of an SVG on white, `scale` pixels for each of its own.

    >>> png('<svg xmlns="http://www.w3.org/2000/svg" width="3" height="2"/>')[:4]
    b'\\x89PNG'
    """
    resvg = _resvg()
    _refuse_size(svg, scale)
    fonts = _fonts(resvg.svg_to_bytes) if "<text" in svg else {}
    return resvg.svg_to_bytes(svg_string=svg, background="white", zoom=scale, **fonts)


def _resvg() -> ModuleType:
    try:
        import resvg_py  # here, because nothing else needs it
    except ImportError as error:
        raise LeporelloError(
            "a picture as PNG needs the package resvg_py.",
            tries="pip install 'leporello[pictures]'; or write a .svg, which needs nothing",
        ) from error
    return resvg_py


def _refuse_size(svg: str, scale: float) -> None:
    width, height = _size(svg)
    if not scale > 0:
        raise ArgumentError("the argument 'scale' is no scale.", came=repr(scale), expected="a number above 0")
    if width * height * scale**2 > MOST_PIXELS:
        raise LeporelloError(
            "the picture is too large for a PNG.",
            came=f"{width * scale:,.0f} × {height * scale:,.0f} pixels",
            expected=f"at most {MOST_PIXELS:,} of them",
            tries="write a .svg; or draw fewer steps",
        )


def _size(svg: str) -> tuple[float, float]:
    """Width and height, as the root tells them."""
    root = re.search(r"<svg\b[^>]*>", svg)
    told = root[0] if root else ""
    found = [re.search(rf'\s{name}="([0-9.]+)(?:px)?"', told) for name in ("width", "height")]
    box = re.search(r'\sviewBox="[-0-9.]+[\s,]+[-0-9.]+[\s,]+([0-9.]+)[\s,]+([0-9.]+)"', told)
    if found[0] and found[1]:
        return float(found[0][1]), float(found[1][1])
    if box:
        return float(box[1]), float(box[2])
    raise ArgumentError("the argument 'svg' tells no size.", expected='<svg ... width="300" height="200">')


@functools.cache
def _fonts(render: Callable[..., bytes]) -> dict[str, str]:
    """For each generic family one that is there; one of another kind where there is none."""
    found = {
        kind: next((name for name in (kind, *names) if _draws(render, name)), None) for kind, names in FAMILIES.items()
    }
    any_other = next(filter(None, found.values()), None)
    if any_other is None:
        raise LeporelloError(
            "no font was found, so the picture would have no letters.",
            expected="one of " + ", ".join(names[0] for names in FAMILIES.values()) + " or a font like them",
            tries="install one, as the package fonts-dejavu; or write a .svg, which is drawn with the reader's fonts",
        )
    return {f"{kind.replace('-', '_')}_family": name or any_other for kind, name in found.items() if name != kind}


def _draws(render: Callable[..., bytes], family: str) -> bool:
    """Whether a letter of this family leaves a trace."""
    letter = f'<text x="5" y="35" font-size="30" font-family="{family}">M</text>'
    return render(svg_string=_LETTER.format(letter)) != render(svg_string=_LETTER.format(""))
