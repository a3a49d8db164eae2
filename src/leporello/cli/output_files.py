"""Files that commands write: whether they can be written, checked before the work is done; plots of measurements."""

from __future__ import annotations

import io
import json
import math
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from leporello.atomic_write import write_atomically
from leporello.cli.console import say, warn
from leporello.errors import ArgumentError, LeporelloError

PLOT_SUFFIXES = (".png", ".svg")
DOTS_PER_INCH = 144


def writable(file: Path, suffixes: Collection[str], example: str = "--out picture.svg") -> Path:
    """The real path of a file, if it has one of these suffixes and can be written; raises otherwise.

    example   of the option with a good file name, for the error
    """
    if file.suffix.lower() not in suffixes:
        raise ArgumentError(
            f"'{file.suffix}' tells no format." if file.suffix else "the file has no suffix to tell its format.",
            came=file,
            expected=", ".join(suffixes),
            tries=example,
        )
    path = Path(os.path.realpath(file))  # a symbolic link stays one: the file it points to is written
    try:
        _check_place(path)
    except OSError as error:
        raise ArgumentError("this file cannot be written.", came=file, says=error.strerror or error) from error
    return path


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ArgumentError(
            "there is no such folder to write into.",
            came=path.parent,
            tries=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.is_dir():
        raise ArgumentError("this is a folder, not a file.", came=path, tries="the name of a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError("this file may not be written.", came=path, tries="another name or folder")


def plot_files(files: Sequence[Path] | None) -> dict[Path, Path]:
    """The plot files that were named, each with its real path; raises where one cannot be written or drawn."""
    if files and find_spec("matplotlib") is None:
        raise LeporelloError("a plot needs the package matplotlib.", tries="pip install 'leporello[plots]'")
    return {file: writable(file, PLOT_SUFFIXES, "--plot picture.png") for file in files or ()}


def print_measurement(
    text: Callable[[], str], result: Any, files: dict[Path, Path], numbers: dict[str, Any] | None
) -> None:
    """Write the plots of a result, and print it: as text, or as one JSON object.

    text      makes the text; called only if that is printed
    result    has a method `plot` that gives a figure of matplotlib
    files     from `plot_files`
    numbers   for the JSON object; None: print the text
    """
    for file, path in files.items():
        image = io.BytesIO()
        form = file.suffix.lower()[1:]
        result.plot().savefig(image, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
        write_atomically(path, image.getvalue())
    if numbers is not None:
        print(json.dumps(_plain(numbers), allow_nan=False))
    else:
        say(text())
    for file in files:
        (say if numbers is None else warn)(f"wrote {file}")


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: tensors as lists, None for numbers that are not finite."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
