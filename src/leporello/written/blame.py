"""Where an error comes from: the last line outside this library and torch, and what it says."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from leporello.errors import ArgumentError, LeporelloError

_OURS = (Path(__file__).parents[1], Path(torch.__file__).parent)


INPUT = (
    "--input 3 if a row of the input is 3 features, --input class if it is a class index, --input none without input"
)


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """A call of the user's step: where its input does not fit, the option that tells it is named.

    An error in the user's lines becomes one sentence with that line; one in ours stays what it is.
    """
    try:
        yield
    except LeporelloError as error:
        if "inputs" not in error.details:
            raise
        raise type(error)(error.what, **{**error.details, "tries": INPUT}) from error
    except Exception as error:
        line = line_of(error)
        if line is None:
            raise
        raise ArgumentError(f"{name} fails in a line of its own.", line=line, says=words_of(error)) from error


def line_of(error: BaseException) -> str | None:
    """`my_model.py, line 41: h = tanh(x)`; None if all lines are ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    if not frames:
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}, line {last.lineno}" + (f": {last.line}" if last.line else "")


def words_of(error: BaseException) -> str:
    """Its kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _is_the_users(file: str) -> bool:
    path = Path(file)
    return not file.startswith("<") and not any(path.is_relative_to(folder) for folder in _OURS)
