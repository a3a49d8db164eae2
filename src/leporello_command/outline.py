"""The application without its commands: their names and summaries, and the options of `leporello` itself."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

# The first sentence that the help of each command begins with.
COMMANDS = {
    "train": "Train a recurrent language model on a text; show its perplexity as it falls, beside that of n-grams.",
    "resume": "Go on with a run from its last checkpoint: the result is that of a run that was never stopped.",
    "evaluate": "Perplexity and bits per character of a text, the state carried from its first character to its last.",
    "generate": "Write text, token by token, and show it as it comes.",
    "score": "Show a text with each token on the colour of its surprise, in bits; "
    "marks below it where there are no colours.",
    "runs": "List the runs below a folder, the best first.",
    "compare": "Show runs side by side: options that differ, perplexity, size and speed.",
    "baseline": "Perplexity of n-grams (modified Kneser-Ney) on a text, and of the model that knows nothing.",
    "draw": "Draw a cell: folded, or unfolded over N steps.",
    "explain": "Say how a cell would run: which engine, what runs where, and why.",
    "flow": "Say how far back gradients go: random inputs, the loss is the mean square of each step's output.",
    "methods": "Compare gradient methods: random inputs, the loss is the mean square of the outputs.",
    "cache": "Show what was built for the engine cpu, or clear it.",
}


def _without_types(parameters: list[Any]) -> list[Any]:
    """Parameters whose help shows no Python types: flags take no value, and an argument's name says what it is."""
    for one in parameters:
        if one.param_type_name == "argument":
            one.display_type_rich = lambda ctx: None
        elif one.is_flag:
            one.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _show_version(requested: bool) -> None:
    if requested:
        print(f"leporello {version('leporello')}")
        raise typer.Exit


def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Recurrent networks: one step, drawn folded and unfolded, how it would run, and where its gradients go."""


def new_application() -> typer.Typer:
    """The application with its own options, and no command yet."""
    application = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    application.callback()(about)
    return application


app = new_application()
for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)
