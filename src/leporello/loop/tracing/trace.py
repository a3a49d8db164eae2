"""`trace`: from a cell and the input of one step to a Loop.

The step runs on fake tensors whose batch is one symbol. So one trace serves every batch and, with length x batch rows,
all steps at once. Random operators become draws, in-place operators are functionalized, values keep the user's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from leporello.loop.clock import time
from leporello.loop.context import (
    FreeAxes,
    context_leaves,
    free_axes,
    length_places,
    plain_context,
    present_context,
    without_lengths,
)
from leporello.loop.draws import Draw, Drawing, replay
from leporello.loop.fake_tensors import FakeTensorFamily, size_of
from leporello.loop.graph import call, copied, placeholders
from leporello.loop.graph import results as graph_results
from leporello.loop.length_one import holds_at_one, note_copies
from leporello.loop.loop import Loop, Signature
from leporello.loop.own_gradients import recording
from leporello.loop.port import Port, Role
from leporello.loop.sizes import LengthsFixed, Size
from leporello.loop.state import Tree, leaf_names
from leporello.loop.step import context_name, observed, place_of, state_names, take
from leporello.loop.tracing.cell_tensors import (
    NoWrites,
    attributes_unchanged,
    buffers_restored,
    refuse_aliases,
    refuse_replaced,
    tensors_of,
    tensors_replaced,
    under_cell_lock,
)
from leporello.loop.tracing.found_tensors import FindTensors, Found
from leporello.loop.tracing.graph_cleanup import WithoutAssertions, label_values, tidy
from leporello.loop.tracing.row_indexing import FixedMasks
from leporello.loop.tracing.rowwise import why_rows_interact
from leporello.loop.tracing.scripts import scripts_inlined
from leporello.loop.tracing.step_checks import (
    has_batch,
    refuse_before,
    refuse_misplaced_rows,
    refuse_outputs,
    refuse_sparse,
    refuse_states,
    refuse_unread_context,
)
from leporello.loop.tracing.trace_errors import UserLines, translated
from leporello.loop.tracing.unrecorded_writes import UnrecordedWrites

aten = torch.ops.aten
CLOCK = "call.time"

# With fixed statistics batch norm is pointwise, but its one operator also returns what only its own backward reads.
_DECOMPOSITIONS: Any = get_decompositions([aten._native_batch_norm_legit_no_training, aten._native_batch_norm_legit])


@dataclass(frozen=True)
class _Leaves:
    """Everything one step reads: flat lists of (name, tensor), and the structure of input and state."""

    sequences: list[tuple[str, Tensor]]
    invariants: list[tuple[str, Tensor]]
    states: list[tuple[str, Tensor]]
    present: list[bool]  # which leaves of the input are not None
    input_spec: Any
    state_spec: Any
    contexts: list[tuple[str, Tensor]]  # of the call, which every step reads
    shared: list[bool]  # which of them have no batch axis
    free: list[FreeAxes]  # for each of them which axes have a free length
    context_present: list[bool]
    context_spec: Any  # None without a context
    found: dict[str, Found]  # invariants that the cell does not register


@dataclass(frozen=True)
class _Traced:
    """The graph of one run of the step.

    Its results are the outputs, the next states, the named values, and what the step leaves in the written buffers.
    """

    module: fx.GraphModule
    draws: list[Draw]
    outputs: list[str]  # names of the outputs that are tensors
    present: tuple[bool, ...]  # which leaves of the output are tensors
    spec: Any
    named: list[str]  # names of values inside the step
    written: dict[str, str | None]  # buffers that the step writes to, with the user's line


@under_cell_lock
def trace(
    cell: nn.Module,
    x: Tree,
    state: Tree,
    context: Tree = None,
    *,
    rows: int | None = None,
    free: bool = False,
    ones: bool = True,
) -> Loop:
    """The Loop of a cell, from the input and the state of one step.

    x, state   trees of tensors whose first axis is the batch. Only shapes, dtypes and devices matter, except for one
               numerical test that rows of the batch do not influence each other
    context    what the call passes to every step, as a tree of tensors and `Shared`
    rows       the number of rows, for a step that depends on it; such a trace serves that number only
    free       whether the trace serves every length of those axes of the context that may differ from call to call
    ones       whether that holds for axes of length 1, too
    """
    leaves = _flat(cell, x, state, context)
    refuse_before(cell, leaves.sequences, [*leaves.contexts, *leaves.invariants], leaves.states)
    if free and rows is None and leaves.contexts:
        held = {size for _, leaf in (*leaves.sequences, *leaves.invariants, *leaves.states) for size in leaf.shape}
        leaves = replace(leaves, free=free_axes(leaves.contexts, leaves.shared, held, ones=ones))
    while True:
        lengths = _lengths(leaves)
        single = {index for index, length in enumerate(lengths) if length == 1}
        try:
            loop = _traced(cell, leaves, rows)
        except LengthsFixed:
            fixed = set(range(len(lengths)))
        except Exception:
            if not single:
                raise
            fixed = single  # where the step fails at another length, the axis is none that has a length
        else:
            fixed = loop.family.fixed_lengths() or (set() if holds_at_one(loop, single) else single)
        if not fixed:
            return loop.replace(batch_interaction=_batch_interaction(cell, x, state, context, loop, leaves))
        leaves = replace(leaves, free=without_lengths(leaves.free, fixed))


def _lengths(leaves: _Leaves) -> list[int]:
    """The free lengths of the call that is traced."""
    places = length_places(leaves.free)
    return [leaves.contexts[leaf][1].shape[axis + (not leaves.shared[leaf])] for leaf, axis in places]


def _traced(cell: nn.Module, leaves: _Leaves, rows: int | None) -> Loop:
    """The Loop of a step, without the test of its rows."""
    places, lengths = length_places(leaves.free), _lengths(leaves)
    sizes = [size for _, leaf in _all(leaves) for size in leaf.shape]
    family = FakeTensorFamily(feature_sizes=sizes, rows=rows, lengths=lengths)
    with (
        translated(cell, leaves.sequences, leaves.states, family),
        _same_autocast(),
        _without_validation(),
        scripts_inlined(),
    ):
        traced, leaves = _traced_step(cell, leaves, family)
        if traced.written:
            refuse_aliases(leaves.invariants, traced.written)
        loop = _loop(cell, leaves, family, traced)
    read = tuple((leaves.contexts[leaf][0], axis + (not leaves.shared[leaf])) for leaf, axis in places)
    return loop.replace(free_lengths=read)


def _batch_interaction(cell: nn.Module, x: Tree, state: Tree, context: Tree, loop: Loop, leaves: _Leaves) -> str | None:
    """Why rows influence each other, in a sentence; None if they do not.

    This runs the step on real tensors for the first time. Where it fails on what fake tensors do not show, such as
    mixed dtypes, the cell itself is run, so that the error has the user's line.
    """
    try:
        return why_rows_interact(loop, leaves.sequences, leaves.states, leaves.contexts)
    except Exception:  # what fake tensors do not notice, such as mixed dtypes
        with (
            translated(cell, leaves.sequences, leaves.states, loop.family),
            torch.no_grad(),
            present_context(plain_context(context)),
            buffers_restored(cell),
        ):
            take(cell, x, state)  # fails in the user's line
        raise


def _flat(cell: nn.Module, x: Tree, state: Tree, context: Tree) -> _Leaves:
    contexts = context_leaves(cell, context, context_name(cell))
    x_leaves, input_spec = pytree.tree_flatten(x)
    state_leaves, state_spec = pytree.tree_flatten(state)
    names = leaf_names(x, "x")
    invariants = [*cell.named_parameters(), *cell.named_buffers()]
    return _Leaves(
        sequences=[(name, leaf) for name, leaf in zip(names, x_leaves, strict=True) if leaf is not None],
        invariants=invariants,
        states=list(zip(state_names(cell, state), state_leaves, strict=True)),
        present=[leaf is not None for leaf in x_leaves],
        input_spec=input_spec,
        state_spec=state_spec,
        contexts=[(leaf.name, leaf.tensor) for leaf in contexts],
        shared=[leaf.shared for leaf in contexts],
        free=[(None,) * (leaf.tensor.dim() - (not leaf.shared)) for leaf in contexts],
        context_present=[leaf is not None for leaf in pytree.tree_leaves(context)],
        context_spec=None if context is None else pytree.tree_structure(context),
        found={},
    )


def _all(leaves: _Leaves) -> list[tuple[str, Tensor]]:
    return [*leaves.sequences, *leaves.contexts, *leaves.invariants, *leaves.states]


class _Fakes(NamedTuple):
    """Fake tensors for the leaves of a step."""

    sequences: list[Tensor]
    contexts: list[Tensor]
    invariants: list[Tensor]
    states: list[Tensor]


def _fake_leaves(leaves: _Leaves, family: FakeTensorFamily) -> _Fakes:
    """One fake tensor for every leaf, because a tensor that is passed twice must not merge two leaves into one."""

    def fake(leaf: Tensor, rows: bool, free: FreeAxes = ()) -> Tensor:
        shape: list[Any] = list(leaf.shape[1:] if rows else leaf.shape)
        for axis, length in enumerate(free):
            shape[axis] = shape[axis] if length is None else Size.length(length)
        return family.tensor(shape, leaf.dtype, leaf.device, rows=rows)

    contexts = zip(leaves.contexts, leaves.shared, leaves.free, strict=True)
    return _Fakes(
        [fake(leaf, True) for _, leaf in leaves.sequences],
        [fake(leaf, not shared, free) for (_, leaf), shared, free in contexts],
        [fake(leaf, False) for _, leaf in leaves.invariants],
        [fake(leaf, True) for _, leaf in leaves.states],
    )


def _flat_step(cell: nn.Module, leaves: _Leaves, fakes: _Fakes) -> tuple[Any, Any]:
    """Run the step on flat leaves, and return the output as a tree and the next state as a list of leaves.

    Under autocast a state is cast back to the dtype it came in with.
    """
    x = _unflattened(fakes.sequences, leaves.present, leaves.input_spec)
    state = pytree.tree_unflatten(list(fakes.states), leaves.state_spec)
    context = None
    if leaves.context_spec is not None:
        context = _unflattened(fakes.contexts, leaves.context_present, leaves.context_spec)
    instead = {id(leaf): value for (_, leaf), value in zip(leaves.invariants, fakes.invariants, strict=True)}
    with tensors_replaced(cell, instead), present_context(context) as present:
        before = tensors_of(cell)
        output, after = take(cell, x, state)
        refuse_replaced(cell, before)
        if context is not None and not present.read:
            refuse_unread_context(cell)
    after_leaves = pytree.tree_leaves(after)
    if torch.is_autocast_enabled(_device(leaves).type):
        after_leaves = [new.to(old.dtype) for new, old in zip(after_leaves, fakes.states, strict=True)]
    return output, after_leaves


def _unflattened(tensors: Sequence[Tensor], present: Sequence[bool], spec: Any) -> Tree:
    """The tree of some leaves, with None where one is not present."""
    remaining = iter(tensors)
    return pytree.tree_unflatten([next(remaining) if there else None for there in present], spec)


def _device(leaves: _Leaves) -> torch.device:
    return next((leaf.device for _, leaf in _all(leaves)), torch.device("cpu"))


def _same_autocast() -> AbstractContextManager[Any]:
    """Autocast as it is, without its cache: a cached cast of a fake tensor must not outlive the trace."""
    device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device), cache_enabled=False)


@contextmanager
def _without_validation() -> Iterator[None]:
    """While the block runs, torch.distributions do not look at their arguments: a trace has no numbers."""
    before = Distribution._validate_args
    try:
        Distribution.set_default_validate_args(False)
        with _AllValid():
            yield
    finally:
        Distribution.set_default_validate_args(before)


class _AllValid(TorchFunctionMode):
    """While active, what `validate_args=True` tests holds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True if func is torch._is_all_true else func(*args, **(kwargs or {}))


def _traced_step(cell: nn.Module, leaves: _Leaves, family: FakeTensorFamily) -> tuple[_Traced, _Leaves]:
    """Run the step on fake tensors, and trace it with make_fx. Returns the leaves with those that were found.

    A step that draws random numbers, or writes in place, is run a second time: with its random numbers as inputs, and
    made functional. One that reads tensors which the cell does not register is run again with them among its leaves.
    """
    details: dict[str, Any] = {}
    draws: list[Draw] = []
    held = [name for name, _ in leaves.invariants]
    fakes = _fake_leaves(leaves, family)
    clock = family.tensor((1,), torch.int64, _device(leaves), rows=True)
    shared = NoWrites(
        dict(zip([name for name, _ in leaves.contexts], fakes.contexts, strict=True))
        | dict(zip(held, fakes.invariants, strict=True)),
        {name for name, _ in cell.named_buffers()},
    )
    finder = _finder(cell, leaves, family, fakes.invariants)

    def note(draw: Draw) -> Tensor:
        own = draw.of_rows(family.rows)
        if not draw.once:
            refuse_misplaced_rows(own, family)
        draws.append(own)
        return torch.empty(draw.shape, dtype=draw.dtype, device=draw.device)

    def first(rows: Any, sequences: Any, clock: Any, contexts: Any, invariants: Any, states: Any) -> list[Tensor]:
        with Drawing(note), shared, finder, time.at(clock):
            return run(_Fakes(sequences, contexts, invariants, states))

    def second(
        rows: Any, sequences: Any, clock: Any, contexts: Any, invariants: Any, numbers: Any, states: Any
    ) -> list[Tensor]:
        with replay(numbers), _finder(cell, leaves, family, invariants), time.at(clock):
            return run(_Fakes(sequences, contexts, invariants, states))

    def run(fakes: _Fakes) -> list[Tensor]:
        with (
            torch.enable_grad(),
            WithoutAssertions(),
            UserLines(),
            FixedMasks(),
            recording(),
            observed(cell) as named,
            UnrecordedWrites() as writes,
        ):
            with attributes_unchanged(cell):  # of every run: the next one must not read what this one has set
                output, after = _flat_step(cell, leaves, fakes)
            writes.finish((output, after))
        output_leaves, spec = pytree.tree_flatten(output)
        names = leaf_names(output, "o")
        refuse_states(leaves.states, after, fakes.states)
        refuse_outputs(names, output_leaves, family)
        present = tuple(isinstance(leaf, Tensor) for leaf in output_leaves)
        tensors = [leaf for leaf, there in zip(output_leaves, present, strict=True) if there]
        outputs = [name for name, there in zip(names, present, strict=True) if there]
        details.update(outputs=outputs, present=present, spec=spec, named=list(named))
        buffers = [fakes.invariants[held.index(name)] for name in shared.written]
        return [*tensors, *after, *named.values(), *buffers]

    module = family.traced(
        first,
        family.rows,
        fakes.sequences,
        clock,
        fakes.contexts,
        fakes.invariants,
        fakes.states,
        decompositions=_DECOMPOSITIONS,
    )
    if finder.found:
        tensors = [*leaves.invariants, *((name, tensor) for name, (tensor, _) in finder.found.items())]
        found = leaves.found | {name: place for name, (_, place) in finder.found.items()}
        return _traced_step(cell, replace(leaves, invariants=tensors, found=found), family)
    if family.lengths:
        note_copies(module.graph, family)
    if draws or shared.saw_writes:
        numbers = [
            family.tensor(draw.shape[rows:], draw.dtype, draw.device, rows=rows)
            for draw, rows in ((draw, has_batch(draw, family)) for draw in draws)
        ]
        fakes = _fake_leaves(leaves, family)
        module = family.graph_of(
            second,
            family.rows,
            fakes.sequences,
            clock,
            fakes.contexts,
            fakes.invariants,
            numbers,
            fakes.states,
            decompositions=_DECOMPOSITIONS,
        )
    return _Traced(module=module, draws=draws, written=shared.written, **details), leaves


def _finder(cell: nn.Module, leaves: _Leaves, family: FakeTensorFamily, invariants: Sequence[Tensor]) -> FindTensors:
    known = zip(leaves.invariants, invariants, strict=True)
    return FindTensors(cell, family, {id(tensor): fake for (_, tensor), fake in known})


def _loop(cell: nn.Module, leaves: _Leaves, family: FakeTensorFamily, traced: _Traced) -> Loop:
    """The Loop of a traced step: ports for inputs and outputs, labels for named values."""
    graph, _ = copied(traced.module.graph)
    constants = tidy(graph, traced.module, family)
    places = placeholders(graph)[1:]
    inputs = tuple(
        _port(kind, name, node, **options)
        for (kind, name, options), node in zip(_inputs(leaves, traced.draws, constants, family), places, strict=True)
    )
    results = graph_results(graph)
    ends = len(traced.outputs), len(traced.outputs) + len(leaves.states)
    outputs = (
        *(_port("sequence", name, node) for name, node in zip(traced.outputs, results[: ends[0]], strict=True)),
        *(
            _port("state", name, node)
            for (name, _), node in zip(leaves.states, results[ends[0] : ends[1]], strict=True)
        ),
    )
    values = results[ends[1] :]
    named = dict(zip(traced.named, values, strict=False))
    by_name = {port.name: node for port, node in zip(inputs, places, strict=True) if port.kind == "invariant"}
    _write_buffers(graph, family, traced.written, by_name, values)
    results = graph_results(graph)
    inputs, places = _without_unread(graph, inputs, places, results[: ends[1]])
    refuse_sparse(_all(leaves), {port.name for port in inputs})
    found = {name: found.read for name, found in leaves.found.items()}
    label_values(graph, inputs, places, named)
    return Loop(
        name=place_of(cell).split(" ")[0],
        graph=graph,
        inputs=inputs,
        outputs=outputs,
        family=family,
        constants=constants,
        signature=Signature(leaves.input_spec, leaves.state_spec, traced.spec, traced.present, cell, found),
    )


def _write_buffers(
    graph: fx.Graph,
    family: FakeTensorFamily,
    written: Mapping[str, str | None],
    places: Mapping[str, fx.Node],
    values: Sequence[fx.Node],
) -> None:
    """Write to each buffer what the step leaves in it, at the end of the graph; the operators before read a copy.

    Without the copy autograd would refuse a gradient that reads what the buffer held.

    written   their names, with the user's line
    places    placeholders by the name of their port
    values    the last of them are those of the buffers
    """
    first = placeholders(graph)[-1].next
    for (name, line), value in zip(written.items(), values[len(values) - len(written) :], strict=True):
        place = places[name]
        readers = list(place.users)
        with graph.inserting_before(first):
            before = call(graph, family, aten.clone.default, place)
        for reader in readers:
            reader.replace_input_with(place, before)
        with graph.inserting_before(graph.output_node()):
            write = graph.call_function(aten.copy_.default, (place, value if value is not place else before))
        write.meta.update(val=place.meta["val"], line=line)


def _inputs(
    leaves: _Leaves, draws: list[Draw], constants: Mapping[str, Tensor], family: FakeTensorFamily
) -> list[tuple[str, str, dict[str, Any]]]:
    """Kind and name of each placeholder, and other arguments of `_port`, in order."""
    held = {"rows": False}
    contexts = zip(leaves.contexts, leaves.shared, strict=True)
    return [
        *(("sequence", name, {}) for name, _ in leaves.sequences),
        ("sequence", CLOCK, {"role": Role.TIME}),
        *(("invariant", name, {"rows": not shared, "role": Role.CONTEXT}) for (name, _), shared in contexts),
        *(("invariant", name, held) for name, _ in leaves.invariants),
        *(_draw_input(index, draw, family) for index, draw in enumerate(draws)),
        *(("state", name, {}) for name, _ in leaves.states),
        *(("invariant", name, held) for name in constants),
    ]


def _draw_input(index: int, draw: Draw, family: FakeTensorFamily) -> tuple[str, str, dict[str, Any]]:
    name, options = f"draw{index}", {"distribution": draw.distribution, "rows": has_batch(draw, family)}
    return ("invariant", name, options | {"role": Role.ONE_DRAW}) if draw.once else ("draw", name, options)


def _without_unread(
    graph: fx.Graph, inputs: tuple[Port, ...], places: list[fx.Node], results: list[fx.Node]
) -> tuple[tuple[Port, ...], list[fx.Node]]:
    """The inputs, and their placeholders, without the time, parameters and buffers that the step does not use.

    Changes the graph: it returns `results` alone (no named values any more), and dead code is removed.
    """
    graph.output_node().args = (tuple(results),)
    graph.eliminate_dead_code()
    pairs = list(zip(inputs, places, strict=True))
    held = [(p, n) for p, n in pairs if (p.kind == "invariant" and not p.is_drawn) or p.role is Role.TIME]
    unread = [n for _, n in held if not n.users]
    kept = [(p, n) for p, n in pairs if n not in unread]
    for node in unread:
        graph.erase_node(node)
    return tuple(port for port, _ in kept), [node for _, node in kept]


def _port(
    kind: Any,
    name: str,
    node: fx.Node,
    *,
    rows: bool = True,
    distribution: str | None = None,
    role: Role = Role.INPUT,
) -> Port:
    value = node.meta["val"]
    shape = tuple(map(size_of, value.shape[1:] if rows else value.shape))
    return Port(kind, name, shape, value.dtype, value.device, rows, distribution, role)
