"""Options of a command from the typed configuration: one for each key, with its help, its group and its default.

Knows typer and dataclasses; which keys there are is told by the configuration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from leporello.language.config import Config


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes every key of the configuration as an option, and gets those that were given as `options`."""
    own = [one for name, one in inspect.signature(command).parameters.items() if name != "options"]
    hints = inspect.get_annotations(command, eval_str=True)
    parameters = [one.replace(annotation=hints[one.name]) for one in own]
    for field in dataclasses.fields(Config):
        if field.name != "text":
            parameters.append(_parameter(field))

    @functools.wraps(command)
    def taken(**given: Any) -> None:
        names = {one.name for one in own}
        options = {name: value for name, value in given.items() if name not in names and value is not None}
        command(**{name: given[name] for name in names}, options=options)

    taken.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taken.__annotations__ = {one.name: one.annotation for one in parameters}
    del taken.__wrapped__
    return taken


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = type(field.default)
    told = field.metadata
    flag = f"--{field.name.replace('_', '-')}"
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        metavar=None if kind is bool else {int: "N", float: "X", str: "WORD"}[kind],
        help=escape(_help(field)),
        rich_help_panel=told["group"].capitalize(),
        show_default=False,
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _help(field: dataclasses.Field[Any]) -> str:
    """A sentence, what may be chosen, and the default; words that are values stay as they are written."""
    text, choices = field.metadata["help"], field.metadata["choices"]
    if not re.match(r"[\w-]+[,:]", text):
        text = text[0].upper() + text[1:]
    if choices:
        text += f" ({', '.join(choices)})"
    default = f" [{field.default}]" if not isinstance(field.default, bool) else ""
    return f"{text.rstrip('.')}.{default}"
