"""`build`: call a class or a function with what was written on the command line, and say what is wrong with it.

Knows signatures; knows nothing of where the class comes from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from leporello.errors import ArgumentError, LeporelloError
from leporello.written.blame import line_of, words_of


def build(
    make: Callable[..., object], name: str, sizes: Sequence[float], options: Mapping[str, object], example: str
) -> object:
    """make(*sizes, **options)."""
    given = ", ".join([*map(str, sizes), *(f"{key}={value}" for key, value in options.items())])
    _refuse_arguments(make, name, sizes, options, given, example)
    try:
        return make(*sizes, **options)
    except LeporelloError as error:
        error.place(cell=f"{name}({given})")
        raise
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            f"{name}({given}) cannot be built.",
            line=line_of(error),
            says=words_of(error),
        ) from error


def required(make: Callable[..., object]) -> list[str]:
    """The names of the arguments that come first and have no default; none for what tells none."""
    signature = _signature(make)
    return [
        parameter.name
        for parameter in (signature.parameters.values() if signature else ())
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]


def _refuse_arguments(
    make: Callable[..., object],
    name: str,
    sizes: Sequence[float],
    options: Mapping[str, object],
    given: str,
    example: str,
) -> None:
    signature = _signature(make)
    if signature is None:  # it will say itself what it lacks
        return
    try:
        signature.bind(*sizes, **options)
    except TypeError as error:
        takes = [part.replace(annotation=part.empty) for part in signature.parameters.values()]
        raise ArgumentError(
            f"{name} is built from other arguments.",
            came=given or "none",
            expected=str(signature.replace(parameters=takes, return_annotation=signature.empty)),
            says=error,
            tries=example,
        ) from error


def _signature(make: Callable[..., object]) -> inspect.Signature | None:
    try:
        return inspect.signature(make)
    except (TypeError, ValueError):  # some of what is written in C
        return None
