"""The rewrite `members`: one Loop that runs several networks of one form, or one network with several parameters.

Values of each member lie side by side: an axis of members behind the rows, in front where a value has no rows. Products
with a parameter of each member become products of heads, which kernels have anyway, so no engine has a case for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leporello.errors import EngineRefusal
from leporello.loop.graph import placeholders, stop
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.port import Port
from leporello.loop.tracing.graph_cleanup import WithoutAssertions, label_values
from leporello.rewrite.trace_every_batch import VMAP_REPLACEMENTS, NotForEveryBatch, trace_every_batch, vmappable_step

_REPLACEMENTS = {target: instead for target, instead in VMAP_REPLACEMENTS.items() if target is not stop}


def members(loop: Loop, differs: Sequence[bool], count: int) -> Loop:
    """The Loop of all members; every output has their axis.

    Gradients that operators define themselves are lost: the result is run, not differentiated, where there are some.

    differs   for each input whether each member has a value of its own, as of every state; others keep their shape
    count     of the members
    """
    loop = without_own_gradients(loop)
    inputs = [_of_all(port, count) if own else port for port, own in zip(loop.inputs, differs, strict=True)]
    outputs = tuple(_of_all(port, count) for port in loop.outputs)
    step = vmappable_step(loop, _REPLACEMENTS)
    in_dims = tuple(_axis(port) if own else None for port, own in zip(loop.inputs, differs, strict=True))
    out_dims = tuple(_axis(port) for port in outputs)

    def function(rows: Any, values: list[Tensor]) -> list[Tensor]:
        with WithoutAssertions():
            mapped = torch.func.vmap(lambda *own: tuple(step(rows, *own)), in_dims=in_dims, out_dims=out_dims)
            return list(mapped(*values))

    try:
        graph, constants = trace_every_batch(function, inputs, loop.family)
    except NotForEveryBatch as error:
        raise EngineRefusal(
            "torch cannot map an operator of this step over parameters of several networks.",
            loop=loop.name,
            because=str(error),
            tries='engine="reference", which runs every operator; or one network after another',
        ) from error
    inputs += [Port("invariant", n, tuple(c.shape), c.dtype, c.device, rows=False) for n, c in constants.items()]
    label_values(graph, inputs, placeholders(graph)[1:], {})
    return loop.replace(
        name=f"{count} times {loop.name}",
        graph=graph,
        inputs=tuple(inputs),
        outputs=outputs,
        constants={**loop.constants, **constants},
        signature=None,
    )


def _of_all(port: Port, count: int) -> Port:
    """The port of a value that each member has."""
    return replace(port, shape=(count, *port.shape))


def _axis(port: Port) -> int:
    """The axis of the members in one step's value."""
    return int(port.rows)
