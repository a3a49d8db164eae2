"""`Svg` and `Png`: drawn pictures, which notebooks display and `save` writes to files."""

from __future__ import annotations

import os
from pathlib import Path

from leporello.errors import ArgumentError

SUFFIXES = (".svg", ".png", ".pdf", ".jpg", ".jpeg", ".gif", ".webp")


class Svg(str):
    """SVG as a string; notebooks display it, `save` writes it."""

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file and return the file's path.

        >>> Svg("<svg/>").save("net.png")
        Traceback (most recent call last):
        leporello.errors.ArgumentError: the argument 'path' names a .png file, and this picture is SVG.
          came      net.png
          expected  a path that ends in .svg
          try       .png() instead of .svg() makes a PNG
        """
        file = _checked(path, "SVG", ".png() instead of .svg() makes a PNG")
        file.write_text(self, encoding="utf-8")
        return file


class Png(bytes):
    """PNG as bytes; notebooks display it, `save` writes it."""

    def _repr_png_(self) -> bytes:
        return bytes(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file and return the file's path."""
        file = _checked(path, "PNG", ".svg() instead of .png() makes an SVG")
        file.write_bytes(self)
        return file


def _checked(path: str | os.PathLike[str], kind: str, tries: str) -> Path:
    """A path that does not promise another kind of picture."""
    file, own = Path(path), f".{kind.lower()}"
    if file.suffix.lower() in SUFFIXES and file.suffix.lower() != own:
        raise ArgumentError(
            f"the argument 'path' names a {file.suffix.lower()} file, and this picture is {kind}.",
            came=str(file),
            expected=f"a path that ends in {own}",
            tries=tries,
        )
    return file
