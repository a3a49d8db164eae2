"""The commands of `leporello` under one roof."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from leporello.cli.cache import cache
from leporello.cli.draw import draw
from leporello.cli.explain import explain
from leporello.cli.flow import flow
from leporello.cli.methods import methods
from leporello.cli.saying import in_words, say

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(in_words(draw))
app.command()(in_words(explain))
app.command()(in_words(flow))
app.command()(in_words(methods))
app.command()(in_words(cache))


def _show_version(asked: bool) -> None:
    if asked:
        say(f"leporello {version('leporello')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Recurrent networks: one step, drawn folded and unfolded, how it would run, and where its gradients go."""
