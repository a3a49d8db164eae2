"""Insides as kernels: a program whose step-by-step stages run as built C.

Knows programs and kernels; knows nothing of how a sweep goes through its windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, fx

from leporello.engine.cpu.library import Built, built
from leporello.engine.kernel.decompose import decomposed
from leporello.engine.kernel.lower import kernel_of
from leporello.engine.program import Program, row_axis
from leporello.loop.classes import Class
from leporello.loop.stages import Split, Stage


@dataclass(frozen=True, eq=False)
class Inside:
    """An inside as a kernel, with the values of the loop's graph that it reads and writes, and their row axes."""

    built: Built
    states: tuple[str, ...]
    reads: tuple[tuple[fx.Node, int], ...]
    rows: tuple[tuple[fx.Node, int], ...]
    fixed: tuple[fx.Node, ...]
    writes: tuple[tuple[fx.Node, int], ...]


def with_kernels(program: Program) -> Program:
    """The program with a kernel for each inside; refused by name where an operator is not covered."""
    stages = [stage for stage in program.split.stages if stage.kind in ("at once", "inside")]
    timed = tuple(
        replace(one, kernel=_inside(program.split, stage)) if one.inside else one
        for one, stage in zip(program.timed, stages, strict=True)
    )
    return replace(program, timed=timed)


def _inside(split: Split, stage: Stage) -> Inside:
    own = {split.loop.delays[name][1] for name in stage.states}
    others = [node for node in stage.reads if node not in own and isinstance(node.meta.get("val"), Tensor)]
    kinds = split.classes
    return Inside(
        built(kernel_of(split, stage, decomposed(stage.graph, split.loop.family))),
        stage.states,
        tuple((node, row_axis(node)) for node in others if kinds[node] is Class.VARYING),
        tuple((node, row_axis(node)) for node in others if kinds[node] is Class.TIMELESS),
        tuple(node for node in others if kinds[node] not in (Class.VARYING, Class.TIMELESS)),
        tuple((node, row_axis(node)) for node in stage.writes),
    )
