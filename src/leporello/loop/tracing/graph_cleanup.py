"""From make_fx's graph to a Loop's: assertions and redundant operators removed, constants as inputs, values labelled.

Known shortcoming: assertions of torch are left out, so where eager torch would raise (a class out of range, a matrix
without inverse) a Loop computes on.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.loop.fake_tensors import FakeTensorFamily, has_row_symbol, row_axes
from leporello.loop.graph import arguments, call, placeholders, stop
from leporello.loop.own_gradients import closed
from leporello.loop.port import Port
from leporello.loop.tracing.products import plain_products
from leporello.loop.tracing.row_indexing import index_rows

aten = torch.ops.aten


def tidy(graph: fx.Graph, module: fx.GraphModule, family: FakeTensorFamily, *, close: bool = True) -> dict[str, Tensor]:
    """Clean a traced graph in place, and return its constants by name, which become placeholders behind the others.

    Copies onto new memory, slices of everything and aliases become their source; `zeros_like` and its kind become
    `full`, which reads no value; `squeeze()` leaves the batch; `detach` becomes `stop`; writes back to inputs are
    removed; an `autograd.Function` becomes one operator with its own gradient.

    module   what make_fx returned, which holds the constants; the graph is a copy of its own
    close    whether each `autograd.Function` becomes one operator now; else `closed` is still to be called
    """
    constants = _constants_as_placeholders(graph, module, family)
    for node in list(graph.nodes):
        instead = _equal_value(graph, node, family)
        if instead is not None:
            node.replace_all_uses_with(instead)
            graph.erase_node(node)
        elif node.target is aten.detach.default:
            node.target = stop
        elif node.target is aten.copy_.default:
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    index_rows(graph, family)
    plain_products(graph, family)
    if close:
        closed(graph)
    return constants


def _constants_as_placeholders(graph: fx.Graph, module: fx.GraphModule, family: FakeTensorFamily) -> dict[str, Tensor]:
    constants: dict[str, Tensor] = {}
    last = placeholders(graph)[-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        attribute: Any = getattr(module, str(node.target))
        value: Tensor = attribute.constant if hasattr(attribute, "fake_mode") else attribute
        name = f"constant:{len(constants)}"  # no parameter can have that name
        constants[name] = value.detach()
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant{len(constants)}")
        last.meta["val"] = family.tensor(value.shape, value.dtype, value.device, rows=False)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return constants


def _equal_value(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> Any:
    """A value that equals a node's and is simpler, added to the graph where needed; None if there is none."""
    if node.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.alias.default):
        return node.args[0]
    if node.target is aten.slice.Tensor and _takes_everything(node):
        return node.args[0]
    if node.target is aten.slice_scatter.default and _takes_everything(node):
        return node.args[1]
    if node.target is aten.copy.default:
        return _source_of_copy(graph, node, family)
    if node.target is aten.sym_size.int:
        return _count(graph, node, family)
    if node.target in _FILL_VALUES:
        return _filled(graph, node, family)
    if node.target is aten.squeeze.default:
        return _squeezed(graph, node, family)
    return None


def _squeezed(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node:
    """`squeeze()` with the axes that it takes away: the batch, which was a symbol, stays where it is 1."""
    sizes = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    ones = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == 1]
    for size in sizes:
        if not isinstance(size, int) and not has_row_symbol(size):
            family.note_ones(size)  # a free length that is 1 would be taken away
    with graph.inserting_before(node):
        return call(graph, family, aten.squeeze.dims, node.args[0], ones)


def _count(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node | None:
    """A size as a multiple of the number of rows, so that it depends on no value; None for another kind of size."""
    rows, size = placeholders(graph)[0], node.meta["val"]
    if isinstance(size, int) or isinstance(rows.meta["val"], int):
        return None
    times: Any = family.per_row(size)
    if times is None:
        return None
    if isinstance(times, int) and times == 1:
        return rows
    with graph.inserting_before(node):
        count = graph.call_function(operator.mul, (rows, times))
    count.meta["val"] = size
    return count


def _takes_everything(node: fx.Node) -> bool:
    source, *options = arguments(node)
    options = options if node.target is aten.slice.Tensor else options[1:]
    defaults: list[Any] = [0, None, None, 1]
    axis, start, end, step = options + defaults[len(options) :]
    size = source.meta["val"].shape[axis]
    if not isinstance(start, int) and start is not None:
        return False
    beyond = isinstance(end, int) and (end == sys.maxsize or (isinstance(size, int) and end >= size))
    beyond = beyond or (isinstance(end, torch.SymInt) and str(end) == str(size))
    return bool(start in (0, None) and (end is None or beyond) and step == 1)


# Operators that take only shape or dtype from their argument, with the number they fill in: they do not depend on it.
_FILL_VALUES: dict[Any, int | None] = {
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.zero.default: 0,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
    aten.full_like.default: None,  # the number is the last argument
    aten.fill.Scalar: None,
    aten.new_full.default: None,
}


def _filled(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node | None:
    """The same constant as a `full` of its sizes; None if a size is a multiple of the rows."""
    shape, rows = node.meta["val"].shape, placeholders(graph)[0]
    axes = row_axes(node.meta["val"])
    if axes and (len(axes) > 1 or not shape[axes[0]].node.expr.is_symbol):
        return None
    sizes = [rows if axis in axes else size for axis, size in enumerate(shape)]
    value = _FILL_VALUES[node.target]
    options = {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
    with graph.inserting_before(node):
        return call(graph, family, aten.full.default, sizes, arguments(node)[-1] if value is None else value, **options)


def _source_of_copy(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node:
    """What `copy` writes: its source, cast and expanded to the dtype and shape of its destination."""
    destination, source = arguments(node)[:2]
    wanted, value = destination.meta["val"], source.meta["val"]
    with graph.inserting_before(node):
        if value.dtype != wanted.dtype:
            source = call(graph, family, aten._to_copy.default, source, dtype=wanted.dtype)
        if str(value.shape) != str(wanted.shape):
            source = call(graph, family, aten.expand_as.default, source, destination)
    return source


class WithoutAssertions(TorchDispatchMode):
    """While active, operators that return nothing and only check, as in one_hot and linalg.solve, are left out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.returns and not func._schema.is_mutable:
            return None
        return func(*args, **(kwargs or {}))


def label_values(
    graph: fx.Graph, inputs: Sequence[Port], placeholders: Sequence[fx.Node], named: Mapping[str, fx.Node]
) -> None:
    """Label the values of a graph, and rename its nodes after the labels.

    Inputs get the names of their ports, `named` values the user's names; others keep the name of their operator. The
    graph is changed in place: the label is `meta["label"]`. What the user calls an input is its `meta["local"]`.

    inputs, placeholders   the ports and their nodes, without the number of rows
    named                  values by the user's name
    """
    for port, node in zip(inputs, placeholders, strict=True):
        node.meta["label"] = port.name
    for name, node in named.items():
        if node.op == "placeholder":
            node.meta.setdefault("local", name)
        else:
            node.meta["label"] = name
    taken: set[str] = set()
    for node in graph.nodes:
        if node.op != "output":
            wish = _identifier(node.meta.get("label") or node.name)
            node.name = _free(wish if node.op != "placeholder" or node.meta.get("label") else "rows", taken)


def _identifier(name: str) -> str:
    spelt = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    return spelt if spelt[:1].isalpha() or spelt[:1] == "_" else f"v{spelt}"


def _free(wish: str, taken: set[str]) -> str:
    name, count = wish, 1
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name
