"""`leporello explain`: which engine would run a cell, what runs at once and what step by step, and what is saved."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from leporello.cli.console import say
from leporello.cli.network_spec import (
    BatchOption,
    BuiltNetwork,
    CellArgument,
    EngineOption,
    InputOption,
    LengthOption,
    build_network,
    check_counts,
)
from leporello.errors import ArgumentError
from leporello.loop.phases import recorded_phases
from leporello.specs.user_code import reporting_user_errors


def explain(
    cell: CellArgument,
    length: LengthOption = 50,
    batch: BatchOption = 16,
    engine: EngineOption = None,
    input: InputOption = None,
    passes: Annotated[
        bool, typer.Option("--passes", help="Show every rewrite in order, with the size of the loop after it.")
    ] = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show where the time of the first call goes.")] = False,
) -> None:
    """Say how a cell would run: which engine, what runs where, and why."""
    check_counts(length=length, batch=batch)
    with recorded_phases("the rest") if timing else nullcontext():  # making the network loads torch's tracer
        network = build_network(cell, input, engine)
        if not hasattr(network.net, "explain"):
            raise ArgumentError(f"{network.name} is several networks.", tries="explain each of them")
        with reporting_user_errors(network.name):
            say(f"{network.description}\n\n{_explanation(network, length, batch, passes, timing).rstrip()}")


def _explanation(network: BuiltNetwork, length: int, batch: int, passes: bool, timing: bool) -> str:
    options = {"passes": passes, "timing": timing}
    if network.shape is None:
        return network.net.explain(None, network.net.initial_state(batch), steps=length, **options)
    return network.net.explain(network.zero_inputs(length, batch), **options)
