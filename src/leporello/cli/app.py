"""The commands of `leporello` under one roof."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from leporello.cli.baseline import baseline
from leporello.cli.cache import cache
from leporello.cli.compare import compare
from leporello.cli.draw import draw
from leporello.cli.evaluate import evaluate
from leporello.cli.explain import explain
from leporello.cli.flow import flow
from leporello.cli.generate import generate
from leporello.cli.methods import methods
from leporello.cli.resume import resume
from leporello.cli.runs import runs
from leporello.cli.saying import in_words, say
from leporello.cli.score import score
from leporello.cli.train import train

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(in_words(train))
app.command()(in_words(resume))
app.command()(in_words(evaluate))
app.command()(in_words(generate))
app.command()(in_words(score))
app.command()(in_words(runs))
app.command()(in_words(compare))
app.command()(in_words(baseline))
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
