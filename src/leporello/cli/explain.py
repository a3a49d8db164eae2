"""`leporello explain`: which engine would run a cell, what runs at once and what step by step, and what is saved."""

from __future__ import annotations

from typing import Annotated

import typer

from leporello.cli.console import say
from leporello.cli.network_spec import BuiltNetwork, build_network, check_counts
from leporello.errors import ArgumentError
from leporello.specs.user_code import reporting_user_errors


def explain(
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="lstm, lstm:28,256, lstm:28,256+gru, or your own: my_model:Leaky:3,64")
    ],
    length: Annotated[int, typer.Option(metavar="N", help="Steps of the sequence.")] = 50,
    batch: Annotated[int, typer.Option(metavar="B", help="Rows of the batch.")] = 16,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="auto, cpu, stepwise or reference; auto if not told.")
    ] = None,
    input: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What one row of the input is: 3, or 3,5, or class, or none.")
    ] = None,
) -> None:
    """Say how a cell would run: which engine, what runs where, and why."""
    check_counts(length=length, batch=batch)
    network = build_network(cell, input, engine)
    if not hasattr(network.net, "explain"):
        raise ArgumentError(f"{network.name} is several networks.", tries="explain each of them")
    with reporting_user_errors(network.name):
        say(f"{network.description}\n\n{_explanation(network, length, batch).rstrip()}")


def _explanation(network: BuiltNetwork, length: int, batch: int) -> str:
    if network.shape is None:
        return network.net.explain(None, network.net.initial_state(batch), steps=length)
    return network.net.explain(network.zero_inputs(length, batch))
