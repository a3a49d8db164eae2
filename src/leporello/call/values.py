"""The values of a loop's inputs, gathered for a call by one written-out function.

Knows where a cell keeps its tensors; knows nothing of plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call
from leporello.call.checks import checked_draws
from leporello.engine.state_gradient import ALL, Passing
from leporello.gradient.method import Method
from leporello.loop.cell_tensors import under_cell_lock
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.state import Tree, leaves_of, map_leaves

Gathering = Callable[..., list[Tensor]]


def gathering(loop: Loop, cell: nn.Module, states: Sequence[str]) -> Gathering:
    """A function (inputs, states, length, batch, beside) -> values in the order of the loop's inputs, contiguous.

    states   the names of the state's leaves, in their order
    beside   what goes along with the sequence, by kind and name
    """
    known: dict[str, Any] = {"drawn": drawn}
    values = [_expression(port, loop, cell, states, known) + _signed(port) for port in loop.inputs]
    lines = ["def gather(inputs, states, length, batch, beside):"]
    lines.append(f" return [{', '.join(f'{value}.contiguous()' for value in values)}]")
    exec("\n".join(lines), known)
    found: Gathering = known["gather"]
    return found


def _expression(port: Port, loop: Loop, cell: nn.Module, states: Sequence[str], known: dict[str, Any]) -> str:
    """How one input is found; `known` gets what the line names."""
    if port.name.startswith("call."):
        return f"beside[{port.kind!r}, {port.name!r}]"
    if port.kind == "sequence":
        return "inputs"
    if port.kind == "state":
        return f"states[{states.index(port.name)}]"
    name = f"k{len(known)}"
    if port.kind == "draw":
        known[name] = port
        return f"drawn({name}, length, batch, inputs.device)"
    if port.name in loop.constants:
        known[name] = loop.constants[port.name]
        return name
    *path, own = port.name.split(".")
    home: Any = cell
    for part in path:
        home = getattr(home, part)
    table = next((table for table in (home._parameters, home._buffers) if own in table), None)
    if table is None:  # a parametrized weight: computed whenever it is read
        known[name] = home
        return f"{name}.{own}" if own.isidentifier() else f"getattr({name}, {own!r})"
    known[name] = table
    return f"{name}[{own!r}]"


def _signed(port: Port) -> str:
    """What writes a minus sign into the numbers that torch has only noted: it notes it on imaginary parts, which lie
    one behind the other, and are not copied then, where there is but one of them."""
    return ".resolve_neg()" if math.prod(port.shape) == 1 and port.dtype.is_floating_point else ""


def passing_of(call: Call, gradient: Method) -> Passing:
    """What each step passes back to the step before."""
    dtype = next((leaf.real.dtype for _, leaf in call.states if leaf.is_floating_point() or leaf.is_complex()), None)
    past = None if call.lengths is None else past_of(call, call.lengths)
    return passing(gradient, call.length, call.batch, call.device, dtype, past)


def passing(
    gradient: Method,
    length: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype | None,
    past: Tensor | None,
) -> Passing:
    """The same, told in numbers.

    dtype   of the state; None where none of its leaves has a gradient
    past    where rows have ended. Padding does nothing: the gradient of a row's final state comes to the row's end
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


@under_cell_lock
def values_of(loop: Loop, call: Call) -> list[Tensor]:
    """The call's tensors in the order of the loop's inputs, lying in memory as their stand-ins did: torch may have
    noted a minus sign that is not in the numbers yet."""
    given = named_values(loop, call)
    ports = [port for port in loop.inputs if port.kind == "draw"]
    draws = None if call.draws is None else iter(checked_draws(call.draws, ports, call.length, call.batch))
    values = []
    for port in loop.inputs:
        if port.kind == "draw":
            own = drawn(port, call.length, call.batch, call.device) if draws is None else next(draws)
            values.append(own)
        else:
            values.append(value_of(loop, port, given))
    return [value.resolve_neg().contiguous() for value in values]


def named_values(loop: Loop, call: Call) -> dict[tuple[str, str], Tensor]:
    """The call's tensors by kind and name."""
    given: dict[tuple[str, str], Tensor] = {("sequence", name): leaf for name, leaf in call.sequences}
    given |= {("state", name): leaf for name, leaf in call.states}
    return given | of_the_call(call, loop)


def value_of(loop: Loop, port: Port, given: dict[tuple[str, str], Tensor]) -> Tensor:
    """What a port reads, unless it is a draw."""
    key = (port.kind, port.name)
    return loop.invariant(port.name) if port.kind == "invariant" and key not in given else given[key]  # type: ignore[return-value]


def of_the_call(call: Call, loop: Loop) -> dict[tuple[str, str], Tensor]:
    """What the rewrites of a call read, by kind and name.

    loop   the rewritten one
    """
    found: dict[tuple[str, str], Tensor] = {}
    if call.targets is not None:
        found["sequence", "call.target"] = call.targets
    if call.coin is not None:
        found["sequence", "call.coin"] = call.coin
    if call.resets is not None:
        found["sequence", "call.reset"] = call.resets
        if call.initial is not None:
            for (name, _), leaf in zip(call.states, leaves_of(call.initial), strict=True):
                found["invariant", f"call.initial.{name}"] = leaf
    if call.lengths is not None:
        found["sequence", "call.past"] = past_of(call, call.lengths)
        if any(port.name == "call.elsewhere" for port in loop.inputs):
            found["sequence", "call.elsewhere"] = times_of(call) != call.lengths - 1
        for name, leaf in call.sequences:
            found["invariant", f"call.first.{name}"] = leaf[0].detach()
    return found


def past_of(call: Call, lengths: Tensor) -> Tensor:
    """Where rows have ended, (length, batch)."""
    return times_of(call) >= lengths


def times_of(call: Call) -> Tensor:
    return call.times if call.times is not None else torch.arange(call.length, device=call.device).unsqueeze(1)


def drawn(port: Port, length: int, batch: int, device: torch.device) -> Tensor:
    """Fresh random numbers for all steps and rows."""
    make = torch.rand if port.distribution == "uniform" else torch.randn
    return make((length, batch, *port.shape), dtype=port.dtype, device=device)


def each(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """A tree with its tensors changed."""
    if isinstance(tree, Tensor):
        return function(tree)
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def in_trees(loop: Loop, results: Sequence[Tensor]) -> tuple[Tree, Tree]:
    """Outputs and final state as the user wrote them; a state that is a shift has its end in a total."""
    signature = loop.signature
    assert signature is not None
    named = {(port.kind, port.name): value for port, value in zip(loop.outputs, results, strict=True)}
    outputs = [value for (kind, _), value in named.items() if kind == "sequence"]
    states = [
        named.get(("total", f"call.final.{name}"), value) for (kind, name), value in named.items() if kind == "state"
    ]
    waiting = iter(outputs)
    leaves = [next(waiting) if there else None for there in signature.present]
    return pytree.tree_unflatten(leaves, signature.outputs), pytree.tree_unflatten(states, signature.state)
