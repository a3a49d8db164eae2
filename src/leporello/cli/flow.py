"""`leporello flow`: how far back the gradients of a cell go, and how fast they shrink or grow.

The measurement is `lp.analysis.gradient_flow`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leporello.analysis.gradient_flow import gradient_flow
from leporello.analysis.trend import share_left
from leporello.cli.network_spec import (
    BatchOption,
    CellArgument,
    InputOption,
    LengthOption,
    build_random_call,
    mean_square,
)
from leporello.cli.output_files import plot_files, print_measurement
from leporello.specs.user_code import reporting_user_errors


def flow(
    cell: CellArgument,
    length: LengthOption = 50,
    batch: BatchOption = 16,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the parameters and the inputs.")] = 0,
    input: InputOption = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw the result into FILE.png or .svg; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Say how far back gradients go: random inputs, the loss is the mean square of each step's output."""
    files = plot_files(plot)
    network, call = build_random_call(cell, input, None, length=length, batch=batch, seed=seed)
    with reporting_user_errors(network.name):
        result = gradient_flow(network.net, loss=mean_square, **call)
    numbers = {
        "cell": network.name,
        "length": length,
        "batch": batch,
        "seed": seed,
        "verdict": result.verdict,
        "rate": result.rate,
        "horizon": result.horizon,
        "left": result.left,
        "leaves": {name: share_left(norms) for name, norms in result.leaves.items()},
        "gains": result.gains,
    }
    print_measurement(lambda: f"{network.description}\n\n{result}", result, files, numbers if as_json else None)
