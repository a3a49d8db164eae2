"""`leporello methods`: bias, variance and cost of gradient methods, compared with the exact gradient of a cell.

The measurement is `lp.analysis.bias_and_variance`.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.analysis.bias_and_variance import Measured, bias_and_variance
from leporello.cli.network_spec import (
    BatchOption,
    CellArgument,
    EngineOption,
    InputOption,
    LengthOption,
    build_random_call,
    mean_square,
)
from leporello.cli.output_files import plot_files, print_measurement
from leporello.errors import ArgumentError
from leporello.specs.method_spec import parse_methods
from leporello.specs.user_code import reporting_user_errors

DEFAULT_METHODS = "full,checkpointed,truncated:10,random:0.9"


def methods(
    cell: CellArgument,
    names: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="Commas between: full, truncated:STEPS[:EVERY], random[:KEEP], checkpointed[:EVERY], rtrl, uoro.",
        ),
    ] = DEFAULT_METHODS,
    draws: Annotated[
        int, typer.Option(metavar="N", help="How many gradients to draw of each method that is random.")
    ] = 100,
    length: LengthOption = 50,
    batch: BatchOption = 16,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the parameters, the inputs and the methods.")] = 0,
    engine: EngineOption = None,
    input: InputOption = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw the result into FILE.png or .svg; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Compare gradient methods: random inputs, the loss is the mean square of the outputs."""
    files, chosen = plot_files(plot), parse_methods(names)
    if draws < 2:
        raise ArgumentError("--draws is no number of draws.", came=draws, expected="2 or more")
    network, call = build_random_call(cell, input, engine, length=length, batch=batch, seed=seed)
    with reporting_user_errors(network.name):
        result = bias_and_variance(network.net, loss=mean_square, methods=chosen, draws=draws, seed=seed, **call)
    numbers = {
        "cell": network.name,
        "length": length,
        "batch": batch,
        "seed": seed,
        "parameters": result.parameters,
        "norm": result.norm,
        "verdict": result.verdict,
        "methods": [_row_numbers(row) for row in result.rows],
    }
    print_measurement(lambda: f"{network.description}\n\n{result}", result, files, numbers if as_json else None)


def _row_numbers(row: Measured) -> dict[str, Any]:
    numbers = {field.name: getattr(row, field.name) for field in fields(row)}
    return {**numbers, "method": repr(row.method), "biased": row.is_biased}
