"""Whether rows of a batch influence each other: seen in the graph, or by a numerical test of rows together and alone.

Only the engine `reference` runs such a step. Known shortcoming: the test does not see a dependence that vanishes for
the present parameters (a gain of zero).
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.sizes import Counted
from leporello.loop.tracing.trace_errors import line_text

OF_THE_CALL = (Role.CONTEXT, Role.ONE_DRAW)  # invariants that the cell does not hold
_ROWS = 3  # of the numerical test
_TOLERANCE = {  # relative to the largest value: products of one row and of three are summed in another order
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-3,
    torch.complex64: 1e-3,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}


Named = Sequence[tuple[str, Tensor]]


def why_rows_interact(loop: Loop, sequences: Named, states: Named, contexts: Named = ()) -> str | None:
    """Why rows of a batch influence each other, in a sentence; None if they do not.

    sequences, states, contexts   name and value of each leaf that the step was traced with
    """
    if loop.family.batch_is_concrete():
        return f"the step decides by the number of rows in the batch{_guard_line(loop)}"
    used = _row_count_as_number(loop)
    if used:
        return f"the number of rows in the batch is used as a number in {used}"
    return _differs_alone(loop, sequences, states, contexts)


def _guard_line(loop: Loop) -> str:
    """The user's line that decides by the number of rows, in brackets."""
    frames = [getattr(guard.sloc, "framework_loc", None) for guard in loop.family.guards()]
    lines = [line_text(frame) for frame in frames if isinstance(frame, traceback.FrameSummary)]
    return f" ({lines[0]})" if lines else ""


def _row_count_as_number(loop: Loop) -> str | None:
    """The name of an operator that reads the number of rows as a value, not as a size; None if there is none."""
    counts = {next(iter(loop.graph.nodes))}
    for node in loop.nodes:
        counts_read = counts & set(node.all_input_nodes)
        if not counts_read:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target in (operator.add, operator.mul, operator.sub, operator.floordiv):
                counts.add(node)
                continue
            return node.target.__name__  # type: ignore[union-attr]
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if "SymInt" not in str(argument.type) and "int" not in str(argument.type) and _holds(value, counts_read):
                return node.target._schema.name.split("::")[1]
    return None


def _holds(argument: Any, nodes: set[fx.Node]) -> bool:
    matches: list[bool] = []
    fx.map_arg(argument, lambda node: matches.append(node in nodes))
    return any(matches)


@torch.no_grad()
def _differs_alone(loop: Loop, sequences: Named, states: Named, contexts: Named) -> str | None:
    """Run three rows together and each alone: in a sentence, which output differs; None if none does.

    Inputs are random, but for integers, which are those of the traced call. None, without a test, where the value of an
    invariant is not known.
    """
    kinds = (("sequence", sequences), ("state", states), ("invariant", contexts))
    examples = {(kind, name): leaf for kind, leaves in kinds for name, leaf in leaves}
    held = [port for port in loop.inputs if port.kind == "invariant" and port.role not in OF_THE_CALL]
    if any(loop.invariant(port.name) is None for port in held):
        return None
    values = [_example(loop, port, examples.get((port.kind, port.name))) for port in loop.inputs]
    step = function_of(loop.graph)
    lengths = tuple(loop.family.example_lengths)
    with torch.autocast(_device(values), enabled=False):
        together = step(Counted(_ROWS, lengths), *values)
        for row in range(_ROWS):
            alone = [
                value[row : row + 1] if port.rows else value for port, value in zip(loop.inputs, values, strict=True)
            ]
            for port, all_rows, one_row in zip(loop.outputs, together, step(Counted(1, lengths), *alone), strict=True):
                if not _close(all_rows[row : row + 1], one_row):
                    return f"'{port.name}' of a row changes with the other rows of the batch"
    return None


def _device(values: Sequence[Tensor]) -> str:
    return values[0].device.type if values else "cpu"


def _example(loop: Loop, port: Port, traced_with: Tensor | None) -> Tensor:
    """Three rows for an input: an invariant as it is, integers from the traced call, otherwise random numbers."""
    if port.role is Role.CONTEXT and not port.rows:
        assert traced_with is not None
        return traced_with.detach()
    if port.kind == "invariant" and port.role not in OF_THE_CALL:
        return loop.invariant(port.name)  # type: ignore[return-value]
    numbers = torch.Generator().manual_seed(len(port.name))
    size = replace(port, kind="invariant").shape_of(1, Counted(_ROWS, tuple(loop.family.example_lengths)))
    if traced_with is not None and not (port.dtype.is_floating_point or port.dtype.is_complex):
        return traced_with.detach()[torch.arange(_ROWS) % traced_with.shape[0]]
    make = torch.rand if port.distribution == "uniform" else torch.randn
    wide = torch.complex128 if port.dtype.is_complex else torch.float64
    return make(size, generator=numbers, dtype=wide).to(port.device, port.dtype)


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = _TOLERANCE.get(one.dtype)
    if tolerance is None:
        return bool((one == other).all())
    scale = one.detach().abs().nan_to_num(0, 0, 0).max().item() if one.numel() else 1.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(scale, 1e-30), equal_nan=True)
