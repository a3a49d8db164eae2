"""`trace_every_batch`: the graph of a function of rows for any batch size, though torch traces it for one size only.

torch's vmap needs sizes as plain integers. So the function is traced for a large prime number of rows, which divides no
size of a feature: every size that it divides depends on the number of rows, and the symbol for that number replaces it.
The shapes of all values are then propagated once more with the symbol, which fails where that guess was wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import copied, placeholders, stop
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import closed
from leporello.loop.port import Port
from leporello.loop.tracing.graph_cleanup import tidy

TRACED_ROWS = 1_299_709  # prime
aten = torch.ops.aten

# torch's rules allocate memory in the shape of a value; zeros of that shape do not depend on the value's contents.
_ZEROS_FOR_EMPTY: dict[Any, Any] = {
    aten.new_empty.default: aten.new_zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
}


class NotForEveryBatch(Exception):
    """An operator has no vmap rule, or its graph depends on the number of rows."""


def trace_every_batch(
    function: Callable[..., Sequence[Tensor]], ports: Sequence[Port], family: FakeTensorFamily
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of function(rows, values of the ports), and by name its constants, which are the last placeholders.

    Raises `NotForEveryBatch` where torch cannot map an operator, or the graph holds for one number of rows only.
    """
    try:
        with _no_vmap_fallback():
            graph, constants = _trace_one_batch(function, ports)
        _make_sizes_symbolic(graph)
        extra = [
            Port("invariant", name, tuple(c.shape), c.dtype, c.device, rows=False) for name, c in constants.items()
        ]
        _propagate_shapes(graph, [*ports, *extra], family)
        closed(graph)  # now, because a graph inside of an operator keeps its sizes
    except NotForEveryBatch:
        raise
    except Exception as error:  # torch raises many types here
        raise NotForEveryBatch((str(error) or type(error).__name__).splitlines()[0]) from error
    return graph, constants


def _trace_one_batch(function: Callable[..., Any], ports: Sequence[Port]) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph for `TRACED_ROWS` rows, and its constants."""
    family = FakeTensorFamily(rows=TRACED_ROWS)
    values = [family.tensor(port.shape, port.dtype, port.device, rows=port.rows) for port in ports]
    module = family.graph_of(function, family.rows, values)
    graph, _ = copied(module.graph)
    for node in list(graph.nodes):
        if node.target is aten.detach.default:  # added by autograd, without effect here
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _ZEROS_FOR_EMPTY:
            node.target = _ZEROS_FOR_EMPTY[node.target]
    constants = tidy(graph, module, family, close=False)
    graph.eliminate_dead_code()
    return graph, constants


def _make_sizes_symbolic(graph: fx.Graph) -> None:
    """Replace, in the arguments of all operators, multiples of the traced number of rows by multiples of the first
    placeholder."""
    inputs = placeholders(graph)
    multiples: dict[int, fx.Node] = {1: inputs[0]}

    def symbolic(argument: Any) -> Any:
        if not _depends_on_rows(argument):
            return argument
        times = argument // TRACED_ROWS
        if times not in multiples:
            with graph.inserting_after(inputs[-1]):
                multiples[times] = graph.call_function(operator.mul, (inputs[0], times))
        return multiples[times]

    for node in list(graph.nodes):
        if node.op == "call_function":
            node.args = map_aggregate(node.args, symbolic)
            node.kwargs = map_aggregate(node.kwargs, symbolic)


def _propagate_shapes(graph: fx.Graph, ports: Sequence[Port], family: FakeTensorFamily) -> None:
    """Give every value a fake tensor of the family; its shape must be the traced one, with the symbol in it."""
    rows, *inputs = placeholders(graph)
    rows.meta["val"] = family.rows
    for node, port in zip(inputs, ports, strict=True):
        node.meta["val"] = family.tensor(port.shape, port.dtype, port.device, rows=port.rows)
    with family.active(), family.no_new_guards(), torch.no_grad():
        for node in graph.nodes:
            if node.op == "call_function":
                before = node.meta.get("val")
                arguments, options = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
                node.meta["val"] = node.target(*arguments, **options)
                if not _is_same_shape(before, node.meta["val"], family):
                    raise NotForEveryBatch(f"{node.target} has another shape for another number of rows")


def _is_same_shape(before: Any, now: Any, family: FakeTensorFamily) -> bool:
    if isinstance(before, (tuple, list)):
        return all(_is_same_shape(*pair, family) for pair in zip(before, now, strict=True))
    if not isinstance(before, Tensor):
        return True
    expected = [family.rows * (size // TRACED_ROWS) if _depends_on_rows(size) else size for size in before.shape]
    return list(map(str, expected)) == list(map(str, now.shape))  # as text: comparing symbols would add a guard


def _depends_on_rows(size: Any) -> bool:
    """Whether a size is a multiple of the traced number of rows."""
    return type(size) is int and size != 0 and size % TRACED_ROWS == 0


@contextmanager
def _no_vmap_fallback() -> Iterator[None]:
    """While the block runs, an operator without a vmap rule raises, instead of being run row by row."""
    rules: Any = torch._C._functorch
    before = rules._is_vmap_fallback_enabled()
    rules._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        rules._set_vmap_fallback_enabled(before)


# ---- a step as a function of one row, by operators for which torch's vmap has a rule: instead of those it maps wrongly


def _slice_scatter(x: Tensor, part: Tensor, axis: int, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    end = None if end is None else min(end, x.shape[axis])  # an end beyond all sizes overflows under vmap
    return aten.slice_scatter.default(x, part, axis, start, end, step)


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    axis = axis % x.dim()
    starts = range(0, x.shape[axis] - size + 1, step)
    return torch.stack([x.narrow(axis, start, size).movedim(axis, -1) for start in starts], axis)


VMAP_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    stop: torch.Tensor.detach,
    aten.fill.Tensor: lambda x, value: value.to(x.dtype).expand_as(x),
    aten.slice_scatter.default: _slice_scatter,
    aten.unfold.default: _unfold,
    aten._prelu_kernel.default: lambda x, weight: torch.where(x > 0, x, weight * x),
}


def vmappable_step(
    loop: Loop, replacements: Mapping[Any, Callable[..., Any]] = VMAP_REPLACEMENTS
) -> Callable[..., Any]:
    """The step as a function of the number of rows and its inputs that returns its outputs, of operators that vmap maps
    correctly.

    replacements   what is called instead of an operator
    """
    graph, _ = copied(loop.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = replacements.get(node.target, node.target)
    return fx.GraphModule({}, graph).forward
