"""Call code of the user, and report an error in it by the user's own line instead of a traceback."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from leporello.errors import ArgumentError, LeporelloError

_LIBRARY_FOLDERS = (Path(__file__).parents[1], Path(torch.__file__).parent)

INPUT_HINT = (
    "--input 3 if a row of the input is 3 features, --input class if it is a class index, --input none without input"
)


@contextmanager
def reporting_user_errors(name: str) -> Iterator[None]:
    """In a block that runs the user's step, an exception in a line of the user becomes an ArgumentError that names it.

    Where the inputs do not fit, the error suggests the option --input. An exception raised in this library or in torch
    alone passes unchanged.

    name   of the cell, for the error
    """
    try:
        yield
    except LeporelloError as error:
        if "inputs" not in error.details:
            raise
        raise type(error)(error.what, **{**error.details, "tries": INPUT_HINT}) from error
    except Exception as error:
        line = user_line(error)
        if line is None:
            raise
        raise ArgumentError(f"{name} fails in a line of its own.", line=line, says=first_line(error)) from error


def user_line(error: BaseException) -> str | None:
    """The last line of the user in a traceback, as `my_model.py, line 41: h = tanh(x)`; None if there is none.

    For a SyntaxError the line that cannot be parsed, without its text.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    if not frames:
        return None
    last = frames[-1]
    return f"{Path(last.filename).name}, line {last.lineno}" + (f": {last.line}" if last.line else "")


def first_line(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _is_user_file(file: str) -> bool:
    path = Path(file)
    return not file.startswith("<") and not any(path.is_relative_to(folder) for folder in _LIBRARY_FOLDERS)


def build(
    make: Callable[..., object], name: str, sizes: Sequence[float], options: Mapping[str, object], example: str
) -> object:
    """Return make(*sizes, **options), with the signature checked first; a failure becomes an ArgumentError.

    name      of the class or function, for errors
    example   of a specification that works, for errors
    """
    arguments = ", ".join([*map(str, sizes), *(f"{key}={value}" for key, value in options.items())])
    _check_signature(make, name, sizes, options, arguments, example)
    try:
        return make(*sizes, **options)
    except LeporelloError as error:
        error.place(cell=f"{name}({arguments})")
        raise
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"{name}({arguments}) cannot be built.",
            line=user_line(error),
            says=first_line(error),
        ) from error


def required_arguments(make: Callable[..., object]) -> list[str]:
    """Names of the positional arguments without a default; empty if the signature cannot be read."""
    signature = _signature(make)
    return [
        parameter.name
        for parameter in (signature.parameters.values() if signature else ())
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]


def _check_signature(
    make: Callable[..., object],
    name: str,
    sizes: Sequence[float],
    options: Mapping[str, object],
    arguments: str,
    example: str,
) -> None:
    signature = _signature(make)
    if signature is None:  # the call itself will report what is missing
        return
    try:
        signature.bind(*sizes, **options)
    except TypeError as error:
        parameters = [part.replace(annotation=part.empty) for part in signature.parameters.values()]
        raise ArgumentError(
            f"{name} is built from other arguments.",
            came=arguments or "none",
            expected=str(signature.replace(parameters=parameters, return_annotation=signature.empty)),
            says=error,
            tries=example,
        ) from error


def _signature(make: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(make)
    except (TypeError, ValueError):  # some callables written in C have none
        return None
