"""`Homes`: where the values of a sweep lie: at their place in a whole sequence, loose in a window, or in a total.

All of it is known before a line of the sweep is written. Knows programs; knows nothing of lines, names or addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from leporello.engine.program import Program, Timed
from leporello.rewrite.save import SAVED


@dataclass(frozen=True, eq=False)
class Homes:
    """Where values lie.

    places       kept sequences that are written where they stay
    loose        other values that a stage writes
    totals       what each window adds to, in the order of the stages
    owners       sequences that lie behind a state's first value, with the first state of each
    leaving      sequences that leave the engine
    by_address   states that nobody but their kernel reads: what is None there stands for zeros
    """

    places: frozenset[fx.Node]
    loose: frozenset[fx.Node]
    totals: tuple[fx.Node, ...]
    owners: Mapping[fx.Node, str]
    leaving: frozenset[fx.Node]
    by_address: frozenset[str]

    @cached_property
    def made(self) -> frozenset[fx.Node]:
        """All that stages write, but for totals."""
        return self.places | self.loose


def homes(program: Program, befores: Mapping[str, fx.Node]) -> Homes:
    """Find a home for each value; `befores` as in `sweep_of`."""
    totals = dict.fromkeys(
        node for timed in program.timed for node, rows in timed.writes if rows is None and not timed.inside
    )
    places: set[fx.Node] = set()
    loose: set[fx.Node] = set()
    for timed in program.timed:
        places.update(node for node in _placed(timed) if node in program.kept)
        loose.update(node for node, _ in timed.writes if node not in totals and node not in places)
    return Homes(
        places=frozenset(places),
        loose=frozenset(loose),
        totals=tuple(totals),
        owners={node: name for name, node in reversed([*befores.items()])},
        leaving=frozenset(
            node for kind, name, node in program.outputs if kind == "sequence" and not name.startswith(SAVED)
        ),
        by_address=frozenset(
            name
            for timed in program.timed
            if timed.kernel is not None
            for name in timed.kernel.states
            if name not in befores and not _is_read(program, name, timed)
        ),
    )


def shared(program: Program) -> tuple[int, ...]:
    """The outputs that may lie in the memory of an input or of another output."""
    own: set[Any] = set()
    for timed in program.timed:
        own.update(_placed(timed))
        if timed.kernel is not None:
            own.update(timed.kernel.states)
    found = []
    for index, (kind, name, node) in enumerate(program.outputs):
        key = name if kind == "state" else node
        if kind == "total" or key not in own:
            found.append(index)
        own.discard(key)  # the same once more is no longer its own
    return tuple(found)


def device_of(program: Program) -> torch.device:
    """Where the inputs lie, and all else."""
    inputs = program.split.loop.inputs
    return inputs[0].device if inputs else torch.device("cpu")


def _placed(timed: Timed) -> list[fx.Node]:
    """What a stage can write straight to its place."""
    if timed.kernel is not None:
        return [node for node, axis in timed.kernel.writes if axis == 0]
    return list(timed.placed)


def _is_read(program: Program, state: str, inside: Timed) -> bool:
    """Whether others than its inside read what a state begins with."""
    out = program.delays[state][1]
    read = {node for _, _, node in program.outputs} | {node for _, node in program.shifts}
    for alone in (program.once, program.finish):
        read |= set(alone[0].reads) if alone else set()
    for timed in program.timed:
        read |= set() if timed is inside else {*timed.fixed, *(node for node, _ in timed.varying)}
    return out in read
