"""`Program`: a split Loop prepared for a target: a Python function or a built kernel per stage, and what each reads.

It holds everything that does not depend on a call. `engine/sweep/function.py` generates a Python function from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.lagged import PutShifted
from leporello.engine.sweep.over_steps import over_steps
from leporello.engine.target import RecordedSteps, Runner, Target
from leporello.kernel.decompose import decomposed
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Kernel, Matrix
from leporello.kernel.lower import kernel_of
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import arguments, copied, function_of, placeable, placeholders, results
from leporello.loop.phases import timed_phase
from leporello.loop.port import Port
from leporello.loop.stages import Split, Stage
from leporello.loop.value_classes import ValueClass, is_transposed


@dataclass(frozen=True, eq=False)
class InsideKernel:
    """An inside as a kernel, with the values of the Loop's graph that it reads and writes, as (value, row axis).

    reads    sequences
    rows     values that are the same at every step, one per row
    fixed    values that are the same for all rows
    writes   sequences it computes
    totals   sums over the rows of a window that it computes
    """

    runner: Runner
    kernel: Kernel
    states: tuple[str, ...]
    reads: tuple[tuple[fx.Node, int], ...]
    rows: tuple[tuple[fx.Node, int], ...]
    fixed: tuple[fx.Node, ...]
    writes: tuple[tuple[fx.Node, int], ...]
    totals: tuple[fx.Node, ...] = ()

    @property
    def flat(self) -> bool:
        """Whether the rows of all steps are rows of one: nothing tells a step from another."""
        return not self.states and not self.rows


@dataclass(frozen=True, eq=False)
class TimedStage:
    """A stage that runs in every window.

    function   of the number of rows, the states, `varying`, `fixed`, and the memory for `placed`; it runs one step of
               an inside (its first results are the next states), all steps of a window elsewhere
    states     for an inside those on its cycle, elsewhere those it shifts by one step
    varying    the sequences it reads, with their row axis; for an at-once stage also what is the same at every step but
               not for all rows, which is repeated for each step unless all its operators run `over_steps`
    fixed      its other reads: what is the same at every step
    writes     what it computes beside next states, with the row axis, None for a part of a total
    placed     writes that can go into memory that is passed to the stage
    loose      its other writes, each behind its index among the results of an inside
    done       sequences of the window that no later stage reads
    kernel     what runs an inside instead of `function`, where the target builds kernels
    scattered  those of `varying` that it takes with their rows anywhere in memory: they are not made contiguous
    direct     where an at-once stage is one call of a target's function that reads sequences in place: that function,
               and the sequences in the order of its arguments
    recorded   of an inside that torch's operators run: what may run all its steps in the place of Python
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
    kernel: InsideKernel | None = None
    scattered: frozenset[fx.Node] = frozenset()
    direct: tuple[Callable[..., Any], tuple[fx.Node, ...]] | None = None
    recorded: RecordedSteps | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A split Loop prepared for a target.

    inputs      values that are the Loop's inputs, in their order
    sequences   those of them that have an axis of steps
    outputs     ports with their values
    delays      of each state what enters its delay, and what leaves it
    shifts      states on no cycle, with what enters their delay
    kept        output sequences
    summed      values that are outputs as their sum over time, one per row
    once        the stage that runs before the first window, with its function; None where there is none
    timed       the stages that run in every window, in order
    finish      the stage that runs after the last window, likewise
    put_step    copies a value to one step of a contiguous sequence of the same dtype
    put_shifted  fills a contiguous sequence with another of the same dtype, one step later
    in_place    a shifted sequence as kernels without states read it (`Target.in_place`); None where they cannot
    """

    split: Split
    reverse: bool
    inputs: tuple[fx.Node, ...]
    sequences: frozenset[fx.Node]
    outputs: tuple[tuple[Port, fx.Node], ...]
    delays: dict[str, tuple[fx.Node, fx.Node]]
    shifts: tuple[tuple[str, fx.Node], ...]
    kept: frozenset[fx.Node]
    summed: tuple[fx.Node, ...]
    once: tuple[Stage, Callable[..., Any]] | None
    timed: tuple[TimedStage, ...]
    finish: tuple[Stage, Callable[..., Any]] | None
    put_step: Callable[[Tensor, int, Tensor], None]
    put_shifted: PutShifted
    in_place: Callable[[Tensor, Tensor | None, bool], Any] | None = None

    @property
    def device(self) -> torch.device:
        """The device of the inputs, and of all else."""
        inputs = self.split.loop.inputs
        return inputs[0].device if inputs else torch.get_default_device()

    @property
    def only_kernels(self) -> bool:
        """Whether kernels run all stages: the sequence then need not be cut into windows."""
        return all(timed.kernel is not None for timed in self.timed)


def program_of(split: Split, target: Target) -> Program:
    """Prepare a split for a target; raises EngineRefusal for an operator that the target's kernels do not cover."""
    loop = split.loop
    ports = list(zip(loop.outputs, loop.results, strict=True))
    cyclic = {name for stage in split.insides for name in stage.states}
    summed = tuple(dict.fromkeys(node for port, node in ports if port.kind == "total" and port.rows))
    shifts = tuple((name, into) for name, (into, _) in loop.delays.items() if name not in cyclic)
    stages = [stage for stage in split.stages if stage.kind in ("at once", "inside")]
    done = _last_reads(stages, {*summed, *(into for _, into in shifts)})
    timed = [part for stage, last in zip(stages, done, strict=True) for part in _timed(split, stage, last, target)]
    program = Program(
        split=split,
        reverse=loop.reverse,
        inputs=tuple(loop.placeholders),
        sequences=frozenset(
            node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind in ("sequence", "draw")
        ),
        outputs=tuple(ports),
        delays=loop.delays,
        shifts=shifts,
        kept=frozenset(node for port, node in ports if port.kind == "sequence"),
        summed=summed,
        once=_untimed(split, "once"),
        timed=tuple(timed),
        finish=_untimed(split, "finish"),
        put_step=target.put_step,
        put_shifted=target.put_shifted,
        in_place=target.in_place,
    )
    return _without_unread(program) if target.kernels else program


def _timed(split: Split, stage: Stage, done: tuple[fx.Node, ...], target: Target) -> list[TimedStage]:
    """A stage as the target runs it: an inside as a kernel if it builds any, an at-once stage as one or several.

    done   values that no later stage reads
    """
    if stage.kind == "inside":
        ready = _with_function(split, stage, done)
        if target.build is not None:
            return [replace(ready, kernel=_inside_kernel(split, stage, target))]
        return [replace(ready, recorded=_recorded(ready, split, target))]
    parts: list[TimedStage] = []
    read_later: set[fx.Node] = set()
    for part in reversed(target.at_once(stage)):
        last_used = {*part.reads, *part.writes} - read_later
        read_later |= last_used
        ready = _with_function(split, part, tuple(node for node in done if node in last_used))
        parts.append(replace(ready, direct=_direct(part, split)))
    return parts[::-1]


def _with_function(split: Split, stage: Stage, done: tuple[fx.Node, ...]) -> TimedStage:
    """A stage with a function that runs it with torch's operators."""
    inside, count, kinds = stage.kind == "inside", len(stage.states), split.classes
    unrepeated: frozenset[fx.Node] = frozenset()
    if not inside:
        stage, unrepeated = over_steps(stage, kinds)
    states = {split.loop.delays[name][1] for name in stage.states}
    varying = [node for node in stage.reads if kinds[node] is ValueClass.VARYING and node not in states]
    timeless = [node for node in stage.reads if kinds[node] is ValueClass.TIMELESS and not inside]
    timeless = [node for node in timeless if node not in unrepeated]
    fixed = [node for node in stage.reads if node not in states and node not in varying and node not in timeless]
    first = count if inside else 0
    placed = _placed(stage, split, first)
    return TimedStage(
        inside=inside,
        function=_ordered(stage, [*varying, *timeless, *fixed], [first + index for index in placed], split),
        states=stage.states,
        varying=tuple((node, own_row_axis(node)) for node in (*varying, *timeless)),
        fixed=tuple(fixed),
        writes=tuple(
            (node, None if kinds[node] is ValueClass.REDUCED else own_row_axis(node)) for node in stage.writes
        ),
        placed=tuple(stage.writes[index] for index in placed),
        loose=tuple((count + index, node) for index, node in enumerate(stage.writes) if index not in placed),
        done=done,
        scattered=frozenset() if inside else _scattered(stage),
    )


def _recorded(timed: TimedStage, split: Split, target: Target) -> RecordedSteps | None:
    """What the target has to run the steps of an inside in the place of Python."""
    loose = [(index, next(rows or 0 for one, rows in timed.writes if one is node)) for index, node in timed.loose]
    return target.recorded(timed.function, len(timed.states), loose, split.loop.inputs[0].device)


def _scattered(stage: Stage) -> frozenset[fx.Node]:
    """The sequences that only functions of the target read which take them as they are in memory."""
    reads = zip(placeholders(stage.graph)[1:], stage.reads, strict=True)
    return frozenset(
        read
        for place, read in reads
        if place.users and all(getattr(user.target, "reads_sequences", False) for user in place.users)
    )


def _placed(stage: Stage, split: Split, first: int) -> list[int]:
    """Indices of the writes that a stage's operators can put into memory that is passed to them.

    first   the number of results in front of the writes: an inside's states
    """
    nodes = results(stage.graph)
    able = {nodes[index] for index in placeable(stage.graph)}
    writes = enumerate(zip(stage.writes, nodes[first:], strict=True))
    return [index for index, (node, result) in writes if result in able and split.classes[node] is ValueClass.VARYING]


def _ordered(stage: Stage, reads: list[fx.Node], placed: list[int], split: Split) -> Callable[..., Any]:
    """The stage's function of the number of rows, its states, the reads in this order, and memory for results.

    placed   indices of the results that are written into memory passed to the function
    """
    states = [split.loop.delays[name][1] for name in stage.states]
    order = [stage.reads.index(node) for node in (*states, *reads)]
    return function_of(stage.graph, placed, [0, *(1 + index for index in order)])


def _direct(stage: Stage, split: Split) -> tuple[Callable[..., Any], tuple[fx.Node, ...]] | None:
    """Of a stage that is one call of a function with `reads_sequences`: the function and what it reads; else None."""
    calls = [node for node in stage.graph.nodes if getattr(node.target, "reads_sequences", False)]
    parts = [node for call in calls for node in call.users]
    outputs = results(stage.graph)
    if len(calls) != 1 or [arguments(node)[1] for node in outputs if node in parts] != list(range(len(parts))):
        return None
    reads = calls[0].all_input_nodes
    if len(outputs) != len(parts) or not all(node.op == "placeholder" for node in reads):
        return None
    read_by = dict(zip(placeholders(stage.graph)[1:], stage.reads, strict=True))
    values = tuple(read_by[node] for node in reads)
    rows_first = all(split.classes[node] is ValueClass.VARYING and own_row_axis(node) == 0 for node in values)
    function: Any = calls[0].target
    return (function, values) if rows_first else None


# ---- kernels


def _inside_kernel(split: Split, stage: Stage, target: Target) -> InsideKernel:
    """Lower an inside to a kernel and build it."""
    states = {split.loop.delays[name][1] for name in stage.states}
    others = [node for node in stage.reads if node not in states and isinstance(node.meta.get("val"), Tensor)]
    kinds = split.classes
    with timed_phase("lowering to kernels"):
        kernel = kernel_of(split, stage, decomposed(stage.graph, split.loop.family), target.floats, target.stored)
    fixed = [node for node in others if kinds[node] not in (ValueClass.VARYING, ValueClass.TIMELESS)]
    fixed, kernel = _untransposed(fixed, kernel)
    assert target.build is not None
    with timed_phase("writing and loading kernels"):
        runner = target.build(kernel)
    return InsideKernel(
        runner,
        kernel,
        stage.states,
        tuple((node, own_row_axis(node)) for node in others if kinds[node] is ValueClass.VARYING),
        tuple((node, own_row_axis(node)) for node in others if kinds[node] is ValueClass.TIMELESS),
        tuple(fixed),
        tuple((node, own_row_axis(node)) for node in stage.writes if kinds[node] is not ValueClass.REDUCED),
        tuple(node for node in stage.writes if kinds[node] is ValueClass.REDUCED),
    )


def _untransposed(fixed: Sequence[fx.Node], kernel: Kernel) -> tuple[list[fx.Node], Kernel]:
    """The fixed values of a kernel with transposed inputs replaced by the inputs, and the kernel changed to fit.

    This is for matrices that are only multiplied: a runner reads them by their strides, so no transposed copy is made.
    """
    sources, matrices = list(fixed), list(kernel.matrices)
    for slot in {matrix.fixed for matrix in kernel.matrices} - loaded(kernel):
        source, turns = fixed[slot], 0
        while is_transposed(source):
            source, turns = source.all_input_nodes[0], turns + 1
        if source.op == "placeholder":
            sources[slot] = source
            if turns % 2:
                matrices = [_transposed(matrix) if matrix.fixed == slot else matrix for matrix in matrices]
    return sources, replace(kernel, matrices=tuple(matrices))


def _transposed(matrix: Matrix) -> Matrix:
    head, inner, outer = matrix.axes
    return replace(matrix, axes=(head, 1 - inner, 1 - outer))


# ---- live ranges


def _last_reads(stages: list[Stage], read_later: set[fx.Node]) -> list[tuple[fx.Node, ...]]:
    """For each stage the values that it is the last to read or write.

    read_later   values that are read after all stages; all others are added to this set
    """
    done: list[tuple[fx.Node, ...]] = []
    for stage in reversed(stages):
        last_used = tuple(node for node in (*stage.reads, *stage.writes) if node not in read_later)
        done.append(last_used)
        read_later.update(last_used)
    return done[::-1]


def _without_unread(program: Program) -> Program:
    """The program without results of the stage `once` that nothing reads: kernels need no transposed matrices of it."""
    if program.once is None:
        return program
    stage, _ = program.once
    read = {node for _, node in program.outputs} | {node for _, node in program.shifts} | {*program.summed}
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
    nodes = [copies[node] for node in results(stage.graph)]
    graph.output_node().args = (tuple(nodes[index] for index in kept),)
    graph.eliminate_dead_code()
    fewer = replace(stage, graph=graph, writes=tuple(stage.writes[index] for index in kept))
    return replace(program, once=(fewer, function_of(graph)))


def _untimed(split: Split, kind: str) -> tuple[Stage, Callable[..., Any]] | None:
    """The stage of a kind that runs once a call, with its function; None where there is none."""
    return next(((stage, function_of(stage.graph)) for stage in split.stages if stage.kind == kind), None)


def own_row_axis(node: fx.Node) -> int:
    """The axis of a value that is the rows of the batch."""
    axis = clean_row_axis(node.meta["val"])
    assert axis is not None, f"{node} has no row axis of its own"
    return axis
