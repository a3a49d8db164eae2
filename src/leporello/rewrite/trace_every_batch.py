"""`every_batch`: the graph of a function of rows, for any number of them, though torch traces it for one number only.

torch's vmap asks for sizes as numbers. So the function is traced for a number of rows that no feature has as a factor:
every size it divides has the rows in it, and gets the symbol in its place. The shapes of all values are then computed
once more with the symbol, which fails where a size is not what it seemed. Knows sizes; knows nothing of derivatives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import copied, placeholders
from leporello.loop.graph_cleanup import tidy
from leporello.loop.port import Port

ROWS = 1_299_709  # prime
aten = torch.ops.aten

# Memory shaped like a value, of which torch's rules read the shape alone: as zeros it does not depend on that value.
_UNWRITTEN: dict[Any, Any] = {
    aten.new_empty.default: aten.new_zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
}


class NotForEveryBatch(Exception):
    """An operator has no rule for many rows at once, or its graph depends on their number."""


def every_batch(
    function: Callable[..., Sequence[Tensor]], ports: Sequence[Port], family: FakeTensorFamily
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph of function(rows, values of the ports), and the constants it holds, placeholders behind the others."""
    try:
        with _no_row_after_row():
            graph, constants = _of_many_rows(function, ports)
        _with_the_symbol(graph)
        own = [Port("invariant", name, tuple(c.shape), c.dtype, c.device, rows=False) for name, c in constants.items()]
        _with_shapes(graph, [*ports, *own], family)
    except NotForEveryBatch:
        raise
    except Exception as error:  # whatever torch has to say
        raise NotForEveryBatch((str(error) or type(error).__name__).splitlines()[0]) from error
    return graph, constants


def _of_many_rows(function: Callable[..., Any], ports: Sequence[Port]) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph for the one number of rows."""
    family = FakeTensorFamily(rows=ROWS)
    values = [family.tensor(port.shape, port.dtype, port.device, rows=port.rows) for port in ports]
    with family.active():
        module = make_fx(dispatch_functionalize(function))(family.rows, values)
    graph, _ = copied(module.graph)
    for node in list(graph.nodes):
        if node.target is aten.detach.default:  # autograd's own: it means nothing here
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _UNWRITTEN:
            node.target = _UNWRITTEN[node.target]
    constants = tidy(graph, module, family)
    graph.eliminate_dead_code()
    return graph, constants


def _with_the_symbol(graph: fx.Graph) -> None:
    """Sizes made of the traced number of rows become sizes made of the first placeholder."""
    inputs = placeholders(graph)
    counts: dict[int, fx.Node] = {1: inputs[0]}

    def size(given: Any) -> Any:
        if not _counts(given):
            return given
        times = given // ROWS
        if times not in counts:
            with graph.inserting_after(inputs[-1]):
                counts[times] = graph.call_function(operator.mul, (inputs[0], times))
        return counts[times]

    for node in list(graph.nodes):
        if node.op == "call_function":
            node.args = map_aggregate(node.args, size)
            node.kwargs = map_aggregate(node.kwargs, size)


def _with_shapes(graph: fx.Graph, ports: Sequence[Port], family: FakeTensorFamily) -> None:
    """Every value gets a stand-in of the family, of the shape it had, with the symbol in the place of the number."""
    rows, *inputs = placeholders(graph)
    rows.meta["val"] = family.rows
    for node, port in zip(inputs, ports, strict=True):
        node.meta["val"] = family.tensor(port.shape, port.dtype, port.device, rows=port.rows)
    with family.active(), family.no_new_guards(), torch.no_grad():
        for node in graph.nodes:
            if node.op == "call_function":
                before = node.meta.get("val")
                given, options = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
                node.meta["val"] = node.target(*given, **options)
                if not _alike(before, node.meta["val"], family):
                    raise NotForEveryBatch(f"{node.target} has another shape for another number of rows")


def _alike(before: Any, now: Any, family: FakeTensorFamily) -> bool:
    if isinstance(before, (tuple, list)):
        return all(_alike(*pair, family) for pair in zip(before, now, strict=True))
    if not isinstance(before, Tensor):
        return True
    wanted = [family.rows * (size // ROWS) if _counts(size) else size for size in before.shape]
    return list(map(str, wanted)) == list(map(str, now.shape))  # as text: to compare symbols would decide by them


def _counts(size: Any) -> bool:
    """Whether a size has the rows in it."""
    return type(size) is int and size != 0 and size % ROWS == 0


@contextmanager
def _no_row_after_row() -> Iterator[None]:
    """An operator without a rule of its own raises, instead of going through all rows."""
    rules: Any = torch._C._functorch
    before = rules._is_vmap_fallback_enabled()
    rules._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        rules._set_vmap_fallback_enabled(before)
