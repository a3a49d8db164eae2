"""`leporello train` and `leporello resume`: from a text to a language model, and on from a checkpoint.

`train` has an option for every key of the configuration (`language.config.Config`), with its help, group and default.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from leporello.cli.training_view import run_training
from leporello.errors import ArgumentError
from leporello.language.config import Config, config_of, values_in
from leporello.language.training.train import resume_training, start_training

RUNS_FOLDER = Path("runs")


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: the signature that typer reads gets an option for every key of the configuration but `text`.

    The options that the user sets are passed to the command as the dict `options`, by key.
    """
    parameters = [one for name, one in inspect.signature(command).parameters.items() if name != "options"]
    command_names = {one.name for one in parameters}
    hints = inspect.get_annotations(command, eval_str=True)
    parameters = [one.replace(annotation=hints[one.name]) for one in parameters]
    for field in dataclasses.fields(Config):
        if field.name != "text":
            parameters.append(_option_parameter(field))

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        options = {name: value for name, value in values.items() if name not in command_names and value is not None}
        command(**{name: values[name] for name in command_names}, options=options)

    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    del wrapped.__wrapped__
    return wrapped


def _option_parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = type(field.default)
    flag = f"--{field.name.replace('_', '-')}"
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
        metavar=None if kind is bool else {int: "N", float: "X", str: "WORD"}[kind],
        help=escape(_help(field)),
        rich_help_panel=field.metadata["group"].capitalize(),
        show_default=False,
    )
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _help(field: dataclasses.Field[Any]) -> str:
    """A sentence, the choices and the default; a text that begins with a value of the option keeps its lower case."""
    text, choices = field.metadata["help"], field.metadata["choices"]
    if not re.match(r"[\w-]+:", text):
        text = text[0].upper() + text[1:]
    if choices:
        text += f" ({', '.join(choices)})"
    default = f" [{field.default}]" if not isinstance(field.default, bool) else ""
    return f"{text}{'' if text.endswith('...') else '.'}{default}"


@with_config_options
def train(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Files or folders; -: standard input; none: Python's manual."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the run; by itself one in runs/.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read options from a TOML file; options set here take precedence."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON instead of a progress bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing while it runs.")] = False,
    options: Any = None,
) -> None:
    """Train a recurrent language model on a text; show its perplexity as it falls, beside that of n-grams.

    Ctrl-C stops it after the present update, with a checkpoint from which leporello resume goes on (exit code 130); a
    second Ctrl-C breaks it off.
    """
    values = values_in(config) if config is not None else {}
    if text:
        values["text"] = text
    chosen = config_of({**values, **options})
    chosen = chosen.replaced({"text": tuple(map(_absolute, chosen.text))})
    run_training(start_training(chosen, None, out or _free_folder(chosen)), as_json=as_json, quiet=quiet)


def _absolute(name: str) -> str:
    return name if name == "-" else str(Path(name).absolute())


def _free_folder(config: Config) -> Path:
    """A folder that does not exist yet: runs/shakespeare-lstm, or runs/shakespeare-lstm-2 and so on."""
    stem = "manual" if not config.text else "stdin" if config.text == ("-",) else Path(config.text[0]).stem
    name = re.sub(r"[^\w.-]+", "-", f"{stem}-{config.cell}")
    for number in range(1, 10_000):
        folder = RUNS_FOLDER / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise ArgumentError(
        "there are too many runs of this name.", came=RUNS_FOLDER / name, tries="--out with another name"
    )


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON instead of a progress bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing while it runs.")] = False,
) -> None:
    """Go on with a run from its last checkpoint: the result is that of a run that was never stopped.

    Ctrl-C stops it again after the present update, with a checkpoint (exit code 130); a second one breaks it off.
    """
    run_training(resume_training(run), as_json=as_json, quiet=quiet)
