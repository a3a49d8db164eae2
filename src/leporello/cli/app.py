"""The typer application: every command registered under its name."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from leporello.cli.baseline import baseline
from leporello.cli.cache import cache
from leporello.cli.compare import compare
from leporello.cli.console import reporting_errors, say
from leporello.cli.draw import draw
from leporello.cli.explain import explain
from leporello.cli.flow import flow
from leporello.cli.generate import generate
from leporello.cli.methods import methods
from leporello.cli.runs import runs
from leporello.cli.score import evaluate, score
from leporello.cli.train import resume, train

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(reporting_errors(train))
app.command()(reporting_errors(resume))
app.command()(reporting_errors(evaluate))
app.command()(reporting_errors(generate))
app.command()(reporting_errors(score))
app.command()(reporting_errors(runs))
app.command()(reporting_errors(compare))
app.command()(reporting_errors(baseline))
app.command()(reporting_errors(draw))
app.command()(reporting_errors(explain))
app.command()(reporting_errors(flow))
app.command()(reporting_errors(methods))
app.command()(reporting_errors(cache))


def _show_version(requested: bool) -> None:
    if requested:
        say(f"leporello {version('leporello')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Recurrent networks: one step, drawn folded and unfolded, how it would run, and where its gradients go."""
