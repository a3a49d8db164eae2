"""Insides as kernels: a program whose step-by-step stages run as built C.

Knows programs and kernels; knows nothing of how a sweep goes through its windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from leporello.engine.cpu.gathering import gathered, in_turn, nothing_else
from leporello.engine.cpu.library import Built, built
from leporello.engine.cpu.multiplying import multiplied
from leporello.engine.cpu.totals import Totals
from leporello.engine.program import Program, Timed, row_axis, timed_of, without_unread
from leporello.kernel.decompose import decomposed
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Matrix
from leporello.kernel.lower import kernel_of
from leporello.loop.graph import placeholders
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass


@dataclass(frozen=True, eq=False)
class Inside:
    """An inside as a kernel, with the values of the loop's graph that it reads and writes, and their row axes.

    loaded   which of `fixed` are read as they lie in memory, not only multiplied
    """

    built: Built
    states: tuple[str, ...]
    reads: tuple[tuple[fx.Node, int], ...]
    rows: tuple[tuple[fx.Node, int], ...]
    fixed: tuple[fx.Node, ...]
    loaded: tuple[bool, ...]
    writes: tuple[tuple[fx.Node, int], ...]


def with_kernels(program: Program) -> Program:
    """The program with kernels for insides and for sums over all rows; an operator not covered is refused by name."""
    split = program.split
    stages = [stage for stage in split.stages if stage.kind in ("at once", "inside")]
    timed: list[Timed] = []
    for one, stage in zip(program.timed, stages, strict=True):
        timed += [replace(one, kernel=_inside(split, stage))] if one.inside else _at_once(one, stage, split)
    return without_unread(replace(program, timed=tuple(timed)))


def _at_once(one: Timed, stage: Stage, split: Split) -> list[Timed]:
    """A stage by parts; what only one of them reads is done with it."""
    parts = in_turn(stage)
    found: list[Timed] = []
    later: set[fx.Node] = set()
    for part in reversed(parts):
        own = {*part.reads, *part.writes} - later
        later |= own
        done = tuple(node for node in one.done if node in own)
        graph = multiplied(gathered(part.graph))
        ready = timed_of(split, replace(part, graph=graph), done)
        found.append(replace(ready, sums=_sums(graph, part, split)))
    return found[::-1]


def _sums(graph: fx.Graph, stage: Stage, split: Split) -> tuple[Totals, tuple[fx.Node, ...]] | None:
    """Of a stage that is nothing but sums of sequences with their rows first: what makes them, and what of."""
    alone = nothing_else(graph)
    if alone is None:
        return None
    totals, reads = alone
    own = dict(zip(placeholders(graph)[1:], stage.reads, strict=True))
    values = tuple(own[node] for node in reads)
    able = all(split.classes[node] is ValueClass.VARYING and row_axis(node) == 0 for node in values)
    return (totals, values) if able else None


def _inside(split: Split, stage: Stage) -> Inside:
    own = {split.loop.delays[name][1] for name in stage.states}
    others = [node for node in stage.reads if node not in own and isinstance(node.meta.get("val"), Tensor)]
    kinds = split.classes
    kernel = kernel_of(split, stage, decomposed(stage.graph, split.loop.family))
    fixed = [node for node in others if kinds[node] not in (ValueClass.VARYING, ValueClass.TIMELESS)]
    multiplied = {matrix.fixed for matrix in kernel.matrices} - loaded(kernel)
    matrices = list(kernel.matrices)
    for slot in multiplied:
        source, turns = fixed[slot], 0
        while source.target is torch.ops.aten.t.default:
            source, turns = source.all_input_nodes[0], turns + 1
        if source.op == "placeholder":  # a kernel reads matrices by their strides, turned or not
            fixed[slot] = source
            if turns % 2:
                matrices = [_turned(matrix) if matrix.fixed == slot else matrix for matrix in matrices]
    return Inside(
        built(replace(kernel, matrices=tuple(matrices))),
        stage.states,
        tuple((node, row_axis(node)) for node in others if kinds[node] is ValueClass.VARYING),
        tuple((node, row_axis(node)) for node in others if kinds[node] is ValueClass.TIMELESS),
        tuple(fixed),
        tuple(slot not in multiplied for slot in range(len(fixed))),
        tuple((node, row_axis(node)) for node in stage.writes),
    )


def _turned(matrix: Matrix) -> Matrix:
    """A matrix whose axes have changed places."""
    head, inner, outer = matrix.axes
    return replace(matrix, axes=(head, 1 - inner, 1 - outer))
