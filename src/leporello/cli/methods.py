"""`leporello methods`: gradient methods beside the exact gradient of a cell: how wrong, how random, how dear.

Knows the options; the measurement is that of `lp.analysis.bias_and_variance`.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.analysis.bias_and_variance import Measured, bias_and_variance
from leporello.cli.explain import described
from leporello.cli.measuring import mean_square, plot_files, random_subject, tell
from leporello.errors import ArgumentError
from leporello.written.blame import blaming
from leporello.written.methods import methods_of

USUAL = "full,checkpointed,truncated:10,random:0.9"


def methods(
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="lstm, lstm:28,256, lstm:28,256+gru, or your own: my_model:Leaky:3,64")
    ],
    names: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="NAMES",
            help="full, truncated:STEPS[:EVERY], random[:KEEP], checkpointed[:EVERY], rtrl, uoro; commas between.",
        ),
    ] = USUAL,
    draws: Annotated[int, typer.Option(metavar="N", help="Gradients of each method that is random.")] = 100,
    length: Annotated[int, typer.Option(metavar="N", help="Steps of the sequence.")] = 50,
    batch: Annotated[int, typer.Option(metavar="B", help="Rows of the batch.")] = 16,
    seed: Annotated[int, typer.Option(metavar="S", help="Of the parameters, the inputs and the methods.")] = 0,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, cpu, stepwise or reference; auto if not told.")
    ] = None,
    input: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What one row of the input is: 3, or 3,5, or class, or none.")
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw it into FILE.png or .svg; may be given twice."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Compare gradient methods: random inputs, the loss is the mean square of the outputs."""
    files, chosen = plot_files(plot), methods_of(names)
    if draws < 2:
        raise ArgumentError("--draws is no number of draws.", came=draws, expected="2 or more")
    subject, call = random_subject(cell, input, engine, length=length, batch=batch, seed=seed)
    with blaming(subject.name):
        found = bias_and_variance(subject.net, loss=mean_square, methods=chosen, draws=draws, seed=seed, **call)
    numbers = {
        "cell": subject.name,
        "length": length,
        "batch": batch,
        "seed": seed,
        "parameters": found.parameters,
        "norm": found.norm,
        "verdict": found.verdict,
        "methods": [_row(row) for row in found.rows],
    }
    tell(lambda: f"{described(subject)}\n\n{found}", found, files, numbers if as_json else None)


def _row(row: Measured) -> dict[str, Any]:
    plain = {field.name: getattr(row, field.name) for field in fields(row)}
    return {**plain, "method": repr(row.method), "biased": row.is_biased}
