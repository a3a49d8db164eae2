"""From a call to the values of a loop's inputs, and from the values of its outputs to the user's trees.

Both are functions made once for a loop: `gather_function` and `tree_function`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call
from leporello.call.checks import checked_draws
from leporello.engine.state_gradient import ALL, Passing
from leporello.gradient.method import Method
from leporello.loop.batch_axis import BatchAxis, batch_in_place
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.sizes import Counted
from leporello.loop.state import Tree, leaves_of
from leporello.loop.tracing.cell_tensors import under_cell_lock
from leporello.rewrite.real_planes import complex_of, planes_of

# what the rewrites of a call read: by role, and by the name of the input or state that it belongs to
Extra = dict[tuple[Role, str | None], Tensor]
Gather = Callable[..., list[Tensor]]
Results = tuple[Tree, Tree]  # outputs and final state, as the user wrote them


# ---- inputs


@under_cell_lock
def values_of(loop: Loop, call: Call) -> list[Tensor]:
    """The values of the loop's inputs, in their order, for one call."""
    return gather_call(gather_function(loop, *names_of(call)), loop, call)


def names_of(call: Call) -> tuple[list[str], list[str]]:
    """The names of the input sequences and of the state's leaves."""
    return [name for name, _ in call.sequences], [name for name, _ in call.states]


def gather_call(gather: Gather, loop: Loop, call: Call) -> list[Tensor]:
    """The values of the loop's inputs for a checked call, by a gather function of the loop; draws are checked here."""
    draws, extra = None, extra_values(call, loop)
    batch = counted(call.batch, loop, extra)
    if call.draws is not None:
        ports = [port for port in loop.inputs if port.is_drawn]
        draws = checked_draws(call.draws, ports, call.length, batch, one_step=call.one_step)
    sequences, states = [leaf for _, leaf in call.sequences], [leaf for _, leaf in call.states]
    return gather(sequences, states, extra, draws, call.length, batch)


def counted(batch: int, loop: Loop, extra: Extra | None) -> int:
    """The batch, with the free lengths of the call where the loop has some.

    extra   what the call adds to the inputs of the loop, its context among it
    """
    if not loop.free_lengths:
        return batch
    assert extra is not None
    return Counted(batch, tuple(extra[Role.CONTEXT, name].shape[axis] for name, axis in loop.free_lengths))


def gather_function(loop: Loop, sequences: Sequence[str], states: Sequence[str]) -> Gather:
    """A function (sequences, states, extra, draws, length, batch) -> values in the order of the loop's inputs.

    It is generated, one expression per input. Values are contiguous, as a trace assumes. Parameters and buffers are
    read from the modules that the cell has now: after a module is replaced, the function must be made anew.

    sequences, states   the names of the call's leaves, in the order in which their tensors are passed
    extra               what the rewrites of the call read; None without rewrites
    draws               random numbers in the order of the loop's draws; None for fresh ones
    """
    names: dict[str, Any] = {"fresh_draw": fresh_draw, "planes_of": planes_of}
    draws = [port for port in loop.inputs if port.is_drawn]
    expressions = []
    for port in loop.inputs:
        if port.is_drawn:
            name, index = _named(port, names), draws.index(port)
            value = f"(fresh_draw({name}, length, batch) if draws is None else draws[{index}])"
            if port.role is Role.SHARED_DRAW:
                value += f".unsqueeze(1).expand(length, batch, {'-1, ' * len(port.shape)})"
        elif not port.has_default_role:
            value = f"extra[{_named(extra_key(port), names)}]"
        elif port.kind == "sequence":
            value = f"sequences[{sequences.index(port.name)}]"
        elif port.kind == "state":
            value = f"states[{states.index(port.name)}]"
        else:
            value = _invariant(port, loop, names)
        if port.planes and port.name not in loop.constants:
            expressions.append(f"planes_of({value}, {_features_axis(port)})")
        else:
            expressions.append(f"{value}{_resolved(port)}.contiguous()")
    source = f"def gather(sequences, states, extra, draws, length, batch):\n return [{', '.join(expressions)}]"
    exec(source, names)
    gather: Gather = names["gather"]
    return gather


def _invariant(port: Port, loop: Loop, names: dict[str, Any]) -> str:
    """The expression that reads a constant of the step, or a parameter or buffer of its module.

    names   objects that the generated text refers to; what the expression needs is added
    """
    if port.name in loop.constants:
        return _named(loop.constants[port.name], names)
    if loop.signature is not None and port.name in loop.signature.found:
        return f"{_named(loop.signature.found[port.name], names)}()"
    *path, attribute = port.name.split(".")
    module: Any = None if loop.signature is None else loop.signature.module
    for part in path:
        module = getattr(module, part)
    for table in (module._parameters, module._buffers):
        if attribute in table:
            return f"{_named(table, names)}[{attribute!r}]"
    name = _named(module, names)  # a parametrized weight: computed whenever it is read
    return f"{name}.{attribute}" if attribute.isidentifier() else f"getattr({name}, {attribute!r})"


def _features_axis(port: Port) -> int:
    """The first axis of a port's value behind steps and rows."""
    return int(port.kind in ("sequence", "draw")) + int(port.rows)


def _named(value: Any, names: dict[str, Any]) -> str:
    name = f"k{len(names)}"
    names[name] = value
    return name


def _resolved(port: Port) -> str:
    """The text of a call that applies a pending negation, which torch leaves on imaginary parts; empty if not needed.

    Imaginary parts are strided, so `contiguous` copies and negates them, unless the shape has only one element.
    """
    return ".resolve_neg()" if math.prod(port.shape) == 1 and port.dtype.is_floating_point else ""


def fresh_draw(port: Port, length: int, batch: int) -> Tensor:
    """Random numbers of a draw's distribution for all steps and rows, (length, batch, ...); without the length where
    all steps share them, without the batch where all rows do."""
    make = torch.rand if port.distribution == "uniform" else torch.randn
    return make(port.drawn_shape(length, batch), dtype=port.dtype, device=port.device)


def extra_key(port: Port) -> tuple[Role, str | None]:
    """Where `Extra` holds the value of a port that a rewrite has added."""
    if port.role is Role.CONTEXT:
        return (port.role, port.name)
    belongs = port.of is not None and port.role in (Role.INITIAL_STATE, Role.FIRST_INPUT)
    return (port.role, port.of.name if belongs and port.of is not None else None)


def extra_values(call: Call, loop: Loop) -> Extra:
    """What a call adds to the inputs of a loop; empty without forcing, resets, lengths, context and `lp.time()`.

    loop   the rewritten one
    """
    extra: Extra = {}
    if reads_time(loop):
        numbers = times_of(call) + call.begin
        extra[Role.TIME, None] = numbers.expand(call.length, call.batch).unsqueeze(2)
    for leaf in call.contexts:
        extra[Role.CONTEXT, leaf.name] = leaf.tensor
    if call.targets is not None:
        extra[Role.TARGET, None] = call.targets
    if call.coin is not None:
        extra[Role.COIN, None] = call.coin
    if call.resets is not None:
        extra[Role.RESET, None] = call.resets
        if call.initial is not None:
            for (name, _), initial in zip(call.states, leaves_of(call.initial), strict=True):
                extra[Role.INITIAL_STATE, name] = initial
    if call.lengths is not None:
        extra[Role.PAST, None] = past_of(call, call.lengths)
        if any(port.role is Role.ELSEWHERE for port in loop.inputs):
            extra[Role.ELSEWHERE, None] = times_of(call) != call.lengths - 1
        for name, sequence in call.sequences:
            extra[Role.FIRST_INPUT, name] = sequence[0].detach()
    return extra


def reads_time(loop: Loop) -> bool:
    """Whether a step of the loop reads its number, `lp.time()`."""
    return any(port.role is Role.TIME for port in loop.inputs)


def past_of(call: Call, lengths: Tensor) -> Tensor:
    """Where rows have ended, (length, batch)."""
    return times_of(call) >= lengths


def times_of(call: Call) -> Tensor:
    """The indices of the steps, (length, 1)."""
    return call.times if call.times is not None else torch.arange(call.length, device=call.device).unsqueeze(1)


# ---- gradient weights


def passing_of(call: Call, gradient: Method) -> Passing:
    """What each step of the call passes back to the step before, as the gradient method has it."""
    dtype = next((leaf.real.dtype for _, leaf in call.states if leaf.is_floating_point() or leaf.is_complex()), None)
    past = None if call.lengths is None else past_of(call, call.lengths)
    return passing_for(gradient, call.length, call.batch, call.device, dtype, past)


def passing_for(
    gradient: Method, length: int, batch: int, device: torch.device, dtype: torch.dtype | None, past: Tensor | None
) -> Passing:
    """What each step passes back to the step before, as the gradient method has it.

    dtype   of the state; None where none of its leaves has a gradient
    past    where rows have ended. Padding passes everything: the gradient of a row's final state reaches the row's end
            whole, and belongs to the losses there
    """
    if dtype is None or not torch.is_grad_enabled():
        return ALL
    weights, groups = gradient.weights(length, batch, device, dtype), gradient.groups(length)
    if groups is not None:
        groups = groups.to(device).unsqueeze(1).expand(length, batch)
    if past is not None and weights is not None:
        weights = weights.masked_fill(past, 1)
        if groups is not None:
            ends = (~past).sum(0, keepdim=True) - 1
            groups = torch.where(past, groups.gather(0, ends), groups)
    return ALL if weights is None and gradient.limit is None else Passing(weights, groups, gradient.limit)


# ---- outputs


def tree_function(loop: Loop) -> Callable[[Sequence[Tensor]], Results]:
    """A function from the values of the loop's outputs to outputs and final state in the user's trees."""
    signature = loop.signature
    assert signature is not None
    outputs = [index for index, port in enumerate(loop.outputs) if port.kind == "sequence"]
    # a state that is a shift of a sequence has its final value in a total
    finals = {
        port.of.name: index for index, port in enumerate(loop.outputs) if port.role is Role.FINAL_STATE and port.of
    }
    states = [finals.get(port.name, index) for index, port in enumerate(loop.outputs) if port.kind == "state"]
    output_tree, state_tree = _unflatten(signature.outputs, signature.present), _unflatten(signature.state)
    if isinstance(signature.module, BatchAxis):
        cell, front = signature.module, state_tree
        state_tree = lambda leaves: batch_in_place(cell, front(leaves))  # noqa: E731

    def in_trees(results: Sequence[Tensor]) -> Results:
        return output_tree([results[place] for place in outputs]), state_tree([results[place] for place in states])

    planes = [(index, _features_axis(port)) for index, port in enumerate(loop.outputs) if port.planes]
    if not planes:
        return in_trees

    def with_complex(results: Sequence[Tensor]) -> Results:
        results = list(results)
        for index, axis in planes:
            results[index] = complex_of(results[index], axis)
        return in_trees(results)

    return with_complex


def _unflatten(spec: Any, present: Sequence[bool] = ()) -> Callable[[list[Tensor]], Tree]:
    """A function from leaves to a tree, with short cuts for a tensor, a tuple and a named tuple.

    present   which leaves of the tree are not None; none given where all are
    """
    if not all(present):

        def with_gaps(leaves: list[Tensor]) -> Tree:
            remaining = iter(leaves)
            return pytree.tree_unflatten([next(remaining) if there else None for there in present], spec)

        return with_gaps
    if spec.is_leaf():
        return lambda leaves: leaves[0]
    if all(child.is_leaf() for child in spec.children()):
        if spec.type is tuple:
            return tuple
        if pytree.is_namedtuple_class(spec.context):
            kind = spec.context
            return lambda leaves: kind(*leaves)
    return lambda leaves: pytree.tree_unflatten(leaves, spec)
