"""Buffer placement: which values of a sweep are written directly into a whole sequence, and which live in one window.

It is decided before the text of the sweep is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx

from leporello.engine.sweep.program import Program, TimedStage, own_row_axis
from leporello.loop.port import Role


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the values of a sweep are in memory.

    in_place      output sequences that a stage writes directly into their final memory
    loose         other values that a stage writes: they live in one window; output sequences among them are copied
    totals        what each window adds to, in the order of the stages
    owners        sequences of a state after each step whose memory begins with the initial state -> that state (of
                  several the first): the states before each step are then a view of the same memory
    leaving       sequences that are returned to the caller: not allocated from the buffer pool
    may_be_none   states that only their kernel reads: None stands for zeros
    shifted       states that are an input shifted by one step: stages read a `Lagged`, or the shifted sequence where
                  there is one window
    lagged        sequences, and states on no cycle, that all who read them can take as `Target.in_place` has them
    """

    in_place: frozenset[fx.Node]
    loose: frozenset[fx.Node]
    totals: tuple[fx.Node, ...]
    owners: Mapping[fx.Node, str]
    leaving: frozenset[fx.Node]
    may_be_none: frozenset[str]
    shifted: frozenset[fx.Node]
    lagged: frozenset[fx.Node]

    @cached_property
    def written(self) -> frozenset[fx.Node]:
        """All that stages write, except totals."""
        return self.in_place | self.loose


def placement_of(program: Program, befores: Mapping[str, fx.Node]) -> Placement:
    """The placement of all values of a program.

    befores   states whose sequence before each step is wanted -> the value that is their sequence after each step
    """
    totals = dict.fromkeys(
        node
        for timed in program.timed
        for node, rows in timed.writes
        if rows is None and (not timed.inside or timed.kernel is not None)
    )
    in_place: set[fx.Node] = set()
    loose: set[fx.Node] = set()
    for timed in program.timed:
        in_place.update(node for node in _can_be_placed(timed) if node in program.kept)
        loose.update(node for node, _ in timed.writes if node not in totals and node not in in_place)
    return Placement(
        in_place=frozenset(in_place),
        loose=frozenset(loose),
        totals=tuple(totals),
        owners={node: name for name, node in reversed([*befores.items()])},
        leaving=frozenset(
            node for port, node in program.outputs if port.kind == "sequence" and port.role is not Role.SAVED
        ),
        may_be_none=frozenset(
            name
            for timed in program.timed
            if timed.kernel is not None
            for name in timed.kernel.states
            if name not in befores and not _is_read_elsewhere(program, name, timed)
        ),
        shifted=_shifted_inputs(program, befores),
        lagged=read_lagged(program, befores),
    )


def only_kernels(program: Program, befores: Mapping[str, fx.Node]) -> bool:
    """Whether kernels run all stages, shifts of inputs left out: the sequence then need not be cut into windows."""
    shifted = _shifted_inputs(program, befores)
    return all(timed.kernel is not None or shifted.issuperset(n for n, _ in timed.writes) for timed in program.timed)


def copies_shifted(program: Program, befores: Mapping[str, fx.Node]) -> bool:
    """Whether a window with the first step copies a shifted input."""
    return not _shifted_inputs(program, befores) <= read_lagged(program, befores)


def _shifted_inputs(program: Program, befores: Mapping[str, fx.Node]) -> frozenset[fx.Node]:
    shifted = set()
    for name, into in program.shifts:
        state, after = program.delays[name][1], befores.get(name, into)
        same = after in program.sequences and after.meta["val"].dtype == state.meta["val"].dtype
        if same and own_row_axis(state) == 0 and state not in program.kept:
            shifted.add(state)
    for timed in program.timed:  # a stage that computes something else from the shift needs the states itself
        if not shifted.issuperset(node for node, _ in timed.writes):
            shifted.difference_update(program.delays[name][1] for name in timed.states)
    return frozenset(shifted)


def read_lagged(program: Program, befores: Mapping[str, fx.Node]) -> frozenset[fx.Node]:
    """`Placement.lagged`: what only kernels without a cycle read, and functions of the target that can."""
    if program.in_place is None:
        return frozenset()
    shifted = _shifted_inputs(program, befores)
    able: set[fx.Node] = set()
    others = {node for _, node in program.outputs} | {into for _, into in program.shifts}
    for untimed in (program.once, program.finish):
        others |= set(untimed[0].reads) if untimed else set()
    for timed in program.timed:
        reads = {node for node, _ in timed.varying}
        if timed.kernel is not None:
            flat = {node for node, axis in timed.kernel.reads if axis == 0 and timed.kernel.flat}
            able |= flat
            others |= reads - flat
        elif timed.direct is not None and getattr(timed.direct[0], "reads_lagged", False):
            able |= reads
        elif not shifted.issuperset(node for node, _ in timed.writes):
            others |= {*reads, *(program.delays[name][1] for name in timed.states)}
    return frozenset(able - others)


def possible_aliases(program: Program, befores: Mapping[str, fx.Node]) -> tuple[int, ...]:
    """Indices of the outputs that may share memory with an input or with another output.

    befores   as for `placement_of`
    """
    shifted = _shifted_inputs(program, befores)
    # values and states that are written to memory of their own
    unshared: set[Any] = {name for name, _ in program.shifts if program.delays[name][1] in shifted}
    for timed in program.timed:
        unshared.update(_can_be_placed(timed))
        if timed.kernel is not None:
            unshared.update(timed.kernel.states)
    indices = []
    for index, (port, node) in enumerate(program.outputs):
        key = port.name if port.kind == "state" else node
        if port.kind == "total" or key not in unshared:
            indices.append(index)
        unshared.discard(key)  # a second output of the same value shares the first one's memory
    return tuple(indices)


def _can_be_placed(timed: TimedStage) -> list[fx.Node]:
    """What a stage can write into memory that is passed to it; of a kernel the values whose first axis is the rows."""
    if timed.kernel is not None:
        return [node for node, axis in timed.kernel.writes if axis == 0]
    return list(timed.placed)


def _is_read_elsewhere(program: Program, state: str, inside: TimedStage) -> bool:
    """Whether anything but its inside reads a state's initial value."""
    out = program.delays[state][1]
    read = {node for _, node in program.outputs} | {node for _, node in program.shifts}
    for untimed in (program.once, program.finish):
        read |= set(untimed[0].reads) if untimed else set()
    for timed in program.timed:
        read |= set() if timed is inside else {*timed.fixed, *(node for node, _ in timed.varying)}
    return out in read
