"""The typer application: every command registered under its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from leporello.cli.baseline import baseline
from leporello.cli.cache import cache
from leporello.cli.compare import compare
from leporello.cli.console import reporting_errors
from leporello.cli.draw import draw
from leporello.cli.explain import explain
from leporello.cli.flow import flow
from leporello.cli.generate import generate
from leporello.cli.methods import methods
from leporello.cli.runs import runs
from leporello.cli.score import evaluate, score
from leporello.cli.train import resume, train
from leporello_command.outline import COMMANDS, Command, new_application

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    train, resume, evaluate, generate, score, runs, compare, baseline, draw, explain, flow, methods, cache,
)  # fmt: skip


def help_of(command: Callable[..., Any]) -> str:
    """The docstring of a command, a line for each paragraph: the terminal wraps them."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = new_application()
for name, function in zip(COMMANDS, FUNCTIONS, strict=True):
    app.command(name, cls=Command, help=help_of(function))(reporting_errors(function))
