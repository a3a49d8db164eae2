"""`leporello flow`: how far back the gradients of a cell go, and how fast they shrink or grow.

Knows the options; the measurement is that of `lp.analysis.gradient_flow`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leporello.analysis.gradient_flow import gradient_flow
from leporello.analysis.trend import share_left
from leporello.cli.explain import described
from leporello.cli.measuring import mean_square, plot_files, random_subject, tell
from leporello.written.blame import blaming


def flow(
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="lstm, lstm:28,256, lstm:28,256+gru, or your own: my_model:Leaky:3,64")
    ],
    length: Annotated[int, typer.Option(metavar="N", help="Steps of the sequence.")] = 50,
    batch: Annotated[int, typer.Option(metavar="B", help="Rows of the batch.")] = 16,
    seed: Annotated[int, typer.Option(metavar="S", help="Of the parameters and the inputs.")] = 0,
    input: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What one row of the input is: 3, or 3,5, or class, or none.")
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Draw it into FILE.png or .svg; may be given twice."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object instead.")] = False,
) -> None:
    """Say how far back gradients go: random inputs, the loss is the mean square of each step's output."""
    files = plot_files(plot)
    subject, call = random_subject(cell, input, None, length=length, batch=batch, seed=seed)
    with blaming(subject.name):
        found = gradient_flow(subject.net, loss=mean_square, **call)
    numbers = {
        "cell": subject.name,
        "length": length,
        "batch": batch,
        "seed": seed,
        "verdict": found.verdict,
        "rate": found.rate,
        "horizon": found.horizon,
        "left": found.left,
        "leaves": {name: share_left(norms) for name, norms in found.leaves.items()},
        "gains": found.gains,
    }
    tell(lambda: f"{described(subject)}\n\n{found}", found, files, numbers if as_json else None)
