"""`Program`: a split made ready for the engine `stepwise`: a Python function per stage, and who reads and writes what.

Everything that does not depend on a call is found here, once. Knows splits; runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import copied, function_of, placeable, results
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass


@dataclass(frozen=True, eq=False)
class Timed:
    """A stage that runs in every window.

    function   of the number of rows, the states, `varying`, `fixed`, and the places of `placed`
    states     for an inside those on its cycle, elsewhere those it shifts by one step
    varying    the sequences it reads, with their row axis
    fixed      what it reads that is the same at every step
    writes     of an at-once stage, with their row axis, None for a part of a total
    placed     writes that go straight to their place
    loose      its other writes, with their index among the results
    done       sequences of the window that nobody reads after it
    kernel     what runs an inside instead of `function`, where an engine has one
    sums       what runs an at-once stage that is nothing but sums over rows, and the sequences it reads, in its order
    """

    inside: bool
    function: Callable[..., Any]
    states: tuple[str, ...]
    varying: tuple[tuple[fx.Node, int], ...]
    fixed: tuple[fx.Node, ...]
    writes: tuple[tuple[fx.Node, int | None], ...]
    placed: tuple[fx.Node, ...]
    loose: tuple[tuple[int, fx.Node], ...]
    done: tuple[fx.Node, ...]
    kernel: Any = None
    sums: tuple[Any, tuple[fx.Node, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A split made ready.

    shifts   states on no cycle, with what enters their delay
    kept     sequences the loop gives out
    summed   values the loop gives out summed over time, one per row
    """

    split: Split
    reverse: bool
    inputs: tuple[fx.Node, ...]
    sequences: frozenset[fx.Node]
    outputs: tuple[tuple[str, str, fx.Node], ...]
    delays: dict[str, tuple[fx.Node, fx.Node]]
    shifts: tuple[tuple[str, fx.Node], ...]
    kept: frozenset[fx.Node]
    summed: tuple[fx.Node, ...]
    once: tuple[Stage, Callable[..., Any]] | None
    timed: tuple[Timed, ...]
    finish: tuple[Stage, Callable[..., Any]] | None


def program(split: Split) -> Program:
    """Make a split ready."""
    loop = split.loop
    ports = list(zip(loop.outputs, loop.results, strict=True))
    cyclic = {name for stage in split.insides for name in stage.states}
    summed = tuple(dict.fromkeys(node for port, node in ports if port.kind == "total" and port.rows))
    shifts = tuple((name, into) for name, (into, _) in loop.delays.items() if name not in cyclic)
    timed = [stage for stage in split.stages if stage.kind in ("at once", "inside")]
    done = _done(timed, {*summed, *(into for _, into in shifts)})
    return Program(
        split=split,
        reverse=loop.reverse,
        inputs=tuple(loop.placeholders),
        sequences=frozenset(
            node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind in ("sequence", "draw")
        ),
        outputs=tuple((port.kind, port.name, node) for port, node in ports),
        delays=loop.delays,
        shifts=shifts,
        kept=frozenset(node for port, node in ports if port.kind == "sequence"),
        summed=summed,
        once=_alone(split, "once"),
        timed=tuple(timed_of(split, stage, own) for stage, own in zip(timed, done, strict=True)),
        finish=_alone(split, "finish"),
    )


def without_unread(program: Program) -> Program:
    """The program whose beginning makes no more than the rest reads."""
    if program.once is None:
        return program
    stage, _ = program.once
    read = {node for _, _, node in program.outputs} | {node for _, node in program.shifts} | {*program.summed}
    if program.finish is not None:
        read |= set(program.finish[0].reads)
    for timed in program.timed:
        if timed.kernel is None:
            read |= {*timed.fixed, *(node for node, _ in timed.varying)}
        else:
            read |= {*timed.kernel.fixed, *(node for node, _ in timed.kernel.rows)}
    kept = [index for index, node in enumerate(stage.writes) if node in read]
    if len(kept) == len(stage.writes):
        return program
    if not kept:
        return replace(program, once=None)
    graph, copies = copied(stage.graph)
    made = [copies[node] for node in results(stage.graph)]
    graph.output_node().args = (tuple(made[index] for index in kept),)
    graph.eliminate_dead_code()
    fewer = replace(stage, graph=graph, writes=tuple(stage.writes[index] for index in kept))
    return replace(program, once=(fewer, function_of(graph)))


def _alone(split: Split, kind: str) -> tuple[Stage, Callable[..., Any]] | None:
    return next(((stage, function_of(stage.graph)) for stage in split.stages if stage.kind == kind), None)


def _done(stages: list[Stage], asked: set[fx.Node]) -> list[tuple[fx.Node, ...]]:
    """For each stage the values that are read or written there, and by nobody after it."""
    done: list[tuple[fx.Node, ...]] = []
    for stage in reversed(stages):
        mine = tuple(node for node in (*stage.reads, *stage.writes) if node not in asked)
        done.append(mine)
        asked.update(mine)
    return done[::-1]


def timed_of(split: Split, stage: Stage, done: tuple[fx.Node, ...]) -> Timed:
    """A stage made ready.

    done   of its values those that nobody reads after it
    """
    inside, count = stage.kind == "inside", len(stage.states)
    own = {split.loop.delays[name][1] for name in stage.states}
    varying = [node for node in stage.reads if split.classes[node] is ValueClass.VARYING and node not in own]
    timeless = [node for node in stage.reads if split.classes[node] is ValueClass.TIMELESS and not inside]
    fixed = [node for node in stage.reads if node not in own and node not in varying and node not in timeless]
    first = count if inside else 0
    placed = _placed(stage, split, first)
    return Timed(
        inside=inside,
        function=_ordered(stage, [*varying, *timeless, *fixed], [first + index for index in placed], split),
        states=stage.states,
        varying=tuple((node, row_axis(node)) for node in (*varying, *timeless)),
        fixed=tuple(fixed),
        writes=tuple(
            (node, None if split.classes[node] is ValueClass.REDUCED else row_axis(node)) for node in stage.writes
        ),
        placed=tuple(stage.writes[index] for index in placed),
        loose=tuple((count + index, node) for index, node in enumerate(stage.writes) if index not in placed),
        done=done,
    )


def _placed(stage: Stage, split: Split, first: int) -> list[int]:
    """The writes of a stage that its operators can put where they are kept.

    first   the results in front of them: an inside's states
    """
    made = results(stage.graph)
    able = {made[index] for index in placeable(stage.graph)}
    found = enumerate(zip(stage.writes, made[first:], strict=True))
    return [index for index, (node, own) in found if own in able and split.classes[node] is ValueClass.VARYING]


def _ordered(stage: Stage, reads: list[fx.Node], placed: list[int], split: Split) -> Callable[..., Any]:
    """The stage's function, which takes its states first, then the reads in this order."""
    states = [split.loop.delays[name][1] for name in stage.states]
    order = [stage.reads.index(node) for node in (*states, *reads)]
    return function_of(stage.graph, placed, [0, *(1 + index for index in order)])


def row_axis(node: fx.Node) -> int:
    axis = clean_row_axis(node.meta["val"])
    assert axis is not None, f"{node} has no row axis of its own"
    return axis
