"""`leporello explain`: which engine would run a cell, what runs at once and what step by step, and what is kept.

Knows the options; the explanation is the network's own.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leporello.cli.saying import say
from leporello.cli.subject import NETWORKS, Subject, subject_of
from leporello.errors import ArgumentError
from leporello.loop.state import leaves_of
from leporello.loop.step import state_names
from leporello.written.blame import blaming


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
    for option, count in (("--length", length), ("--batch", batch)):
        if count < 1:
            raise ArgumentError(f"{option} is no count.", came=count, expected="1 or more")
    subject = subject_of(cell, input, engine)
    if not hasattr(subject.net, "explain"):
        raise ArgumentError(f"{subject.name} is several networks.", tries="explain each of them")
    with blaming(subject.name):
        say(f"{described(subject)}\n\n{_told(subject, length, batch).rstrip()}")


def _told(subject: Subject, length: int, batch: int) -> str:
    if subject.shape is None:
        return subject.net.explain(None, subject.net.initial_state(batch), steps=length)
    return subject.net.explain(subject.inputs(length, batch))


def described(subject: Subject) -> str:
    """A cell in one line: what it is, how many parameters it has, and its state."""
    given = subject.given
    told = f"{subject.name}: {sum(parameter.numel() for parameter in given.parameters()):,} parameters"
    if isinstance(given, NETWORKS):
        return told
    state = given.initial_state(1)  # type: ignore[operator]
    leaves = zip(state_names(given, state), leaves_of(state), strict=True)
    states = ", ".join(f"{name} {list(leaf.shape[1:])}" for name, leaf in leaves)
    return f"{told}, {'state ' + states if states else 'no state'}"
