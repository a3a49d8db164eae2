"""`leporello resume`: go on with a run as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leporello.cli.running import run_to_the_end
from leporello.language.training.start import resume_training


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON instead of a progress bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing while it runs.")] = False,
) -> None:
    """Go on with a run from its last checkpoint: the result is that of a run that was never stopped.

    Ctrl-C stops it again after the present update, with a checkpoint (exit code 130); a second one breaks it off.
    """
    run_to_the_end(resume_training(run), as_json=as_json, quiet=quiet)
