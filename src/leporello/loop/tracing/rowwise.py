"""Whether rows of a batch influence each other: seen in the graph, or by a numerical test of rows together and alone.

Only the engine `reference` runs such a step. Known shortcoming: the test does not see a dependence that vanishes for
the present parameters (a gain of zero).
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import has_rows, row_axes
from leporello.loop.graph import arguments, copied, function_of
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import OwnGradient
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
    reason = _reason_in_graph(loop)
    if loop.family.batch_is_concrete() or (reason is not None and not loop.written):
        return reason
    values = _examples(loop, sequences, states, contexts)
    if values is None:
        return reason
    with torch.no_grad(), torch.autocast(_device(values), enabled=False):
        if reason is not None:
            function_of(loop.graph)(Counted(_ROWS, tuple(loop.family.example_lengths)), *values)  # may fail
            return reason
        line = _gradient_that_joins_rows(loop, values)
        if line is not None:
            return f"the gradient that goes through {line} joins the rows of a step, and is no sum over them"
        return _differs_alone(loop, values)


def _reason_in_graph(loop: Loop) -> str | None:
    """What of the graph makes rows influence each other, without its numbers."""
    for name, write in loop.written.items():
        line = write.meta.get("line")
        return f"the step writes to its buffer '{name}', which all rows share{f' ({line})' if line else ''}"
    if loop.family.batch_is_concrete():
        return f"the step decides by the number of rows in the batch{_guard_line(loop)}"
    used = row_count_as_number(loop)
    return f"the number of rows in the batch is used as a number in {used}" if used else None


def _gradient_that_joins_rows(loop: Loop, values: Sequence[Tensor]) -> str | None:
    """Where a step's own gradient (`autograd.Function`) of three rows is not made of those of each alone; else None.

    Of a value with rows it is one behind the other; of a parameter it is the sum, unless the backward clips that sum,
    or divides by its length. A value without rows gets the sum over all rows and steps: its gradient must be linear.
    """
    nodes = [(node, node.target) for node in loop.nodes if isinstance(node.target, OwnGradient)]
    if not nodes:
        return None
    graph, counterparts = copied(loop.graph)
    wanted = [(*arguments(node)[2], *arguments(node)[0]) for node, _ in nodes]
    graph.output_node().args = (tuple(counterparts[value] for values in wanted for value in values),)
    run, lengths = function_of(graph), tuple(loop.family.example_lengths)
    together = iter(run(Counted(_ROWS, lengths), *values))
    alone = [iter(run(Counted(1, lengths), *_one_row(loop, values, row))) for row in range(_ROWS)]
    for node, own in nodes:
        results, inputs, reads = arguments(node)
        sizes = len(reads), len(results)
        of_all, *of_each = [[list(islice(found, size)) for size in sizes] for found in (together, *alone)]
        axes = [_first_row_axis(result) for result in results]
        if None in axes:
            same = has_rows([result.meta["val"] for result in results]) or _is_linear(own, *of_all)
        else:
            backs = [_first_row_axis(value) for value in inputs]
            same = _is_row_by_row(own, of_all, [reads for reads, _ in of_each], axes, backs)
        if not same:
            return node.meta.get("line") or "an autograd.Function"
    return None


def _first_row_axis(node: fx.Node) -> int | None:
    return next(iter(row_axes(node.meta["val"])), None)


def _is_linear(own: OwnGradient, reads: Sequence[Tensor], results: Sequence[Tensor]) -> bool:
    """Whether the gradient of a sum is the sum of gradients, of random ones."""
    for one, other in zip(_incoming(results, 0), _incoming(results, 1), strict=True):
        both = own.backward(*reads, *[a + b for a, b in zip(one, other, strict=True)])
        parts = zip(own.backward(*reads, *one), own.backward(*reads, *other), strict=True)
        if not all(_close(whole, a + b) for whole, (a, b) in zip(both, parts, strict=True)):
            return False
    return True


def _is_row_by_row(
    own: OwnGradient, of_all: Sequence[Any], of_each: Sequence[Any], axes: Sequence[Any], backs: Sequence[int | None]
) -> bool:
    """Whether gradients of rows are those of each row alone, for random ones that arrive.

    of_all, of_each   what the backward reads of all rows (with the results), and of each alone
    axes, backs       where the rows are in what arrives, and in what is passed on
    """
    reads, results = of_all
    for arriving in _incoming(results, 0):
        whole = own.backward(*reads, *arriving)
        split = [value.tensor_split(_ROWS, axis) for value, axis in zip(arriving, axes, strict=True)]
        parts = [own.backward(*of_each[row], *[pieces[row] for pieces in split]) for row in range(_ROWS)]
        for gradient, back, *rows in zip(whole, backs, *parts, strict=True):
            if not _close(gradient, sum(rows) if back is None else torch.cat(rows, back)):
                return False
    return True


def _incoming(results: Sequence[Tensor], seed: int) -> list[list[Tensor]]:
    """Random gradients of some values, small ones and large ones: some backwards clip them."""
    numbers = torch.Generator().manual_seed(seed)
    return [[scale * _random(value.shape, value, numbers) for value in results] for scale in (1.0, 100.0)]


def _guard_line(loop: Loop) -> str:
    """The user's line that decides by the number of rows, in brackets."""
    frames = [getattr(guard.sloc, "framework_loc", None) for guard in loop.family.guards()]
    lines = [line_text(frame) for frame in frames if isinstance(frame, traceback.FrameSummary)]
    return f" ({lines[0]})" if lines else ""


def row_count_as_number(loop: Loop) -> str | None:
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


def _examples(loop: Loop, sequences: Named, states: Named, contexts: Named) -> list[Tensor] | None:
    """Three rows for each input of a Loop: random numbers, but for integers, which are those of the traced call.

    None where the value of an invariant is not known.
    """
    kinds = (("sequence", sequences), ("state", states), ("invariant", contexts))
    examples = {(kind, name): leaf for kind, leaves in kinds for name, leaf in leaves}
    held = [port for port in loop.inputs if port.kind == "invariant" and port.role not in OF_THE_CALL]
    if any(loop.invariant(port.name) is None for port in held):
        return None
    values = [_example(loop, port, examples.get((port.kind, port.name))) for port in loop.inputs]
    written = loop.written
    return [value.clone() if port.name in written else value for port, value in zip(loop.inputs, values, strict=True)]


def _differs_alone(loop: Loop, values: Sequence[Tensor]) -> str | None:
    """Run three rows together and each alone: in a sentence, which output differs; None if none does."""
    step = function_of(loop.graph)
    lengths = tuple(loop.family.example_lengths)
    together = step(Counted(_ROWS, lengths), *values)
    for row in range(_ROWS):
        alone = step(Counted(1, lengths), *_one_row(loop, values, row))
        for port, all_rows, one_row in zip(loop.outputs, together, alone, strict=True):
            if not _close(all_rows[row : row + 1], one_row):
                return f"'{port.name}' of a row changes with the other rows of the batch"
    return None


def _one_row(loop: Loop, values: Sequence[Tensor], row: int) -> list[Tensor]:
    return [value[row : row + 1] if port.rows else value for port, value in zip(loop.inputs, values, strict=True)]


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
    return _random(size, port, numbers, torch.rand if port.distribution == "uniform" else torch.randn)


def _random(size: Sequence[int], like: Tensor | Port, numbers: torch.Generator, make: Any = torch.randn) -> Tensor:
    """The same numbers in every precision."""
    wide = torch.complex128 if like.dtype.is_complex else torch.float64
    return make(size, generator=numbers, dtype=wide).to(like.device, like.dtype)


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = _TOLERANCE.get(one.dtype)
    if tolerance is None:
        return bool((one == other).all())
    scale = one.detach().abs().nan_to_num(0, 0, 0).max().item() if one.numel() else 1.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(scale, 1e-30), equal_nan=True)
