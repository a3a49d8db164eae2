"""`tidy`: what make_fx leaves in a graph and a Loop does not need.

Constants become placeholders, writes back to inputs and assertions go, slices that take everything and copies onto
fresh memory become what they stand for. Knows ATen spellings; knows nothing of cells.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import arguments, call, placeholders, stop
from leporello.loop.port import Port

aten = torch.ops.aten


def tidy(graph: fx.Graph, module: fx.GraphModule, family: FakeTensorFamily) -> dict[str, Tensor]:
    """Clean a fresh graph in place; give the constants it holds, now placeholders behind the others."""
    constants = _constants_as_placeholders(graph, module, family)
    for node in list(graph.nodes):
        instead = _stands_for(graph, node, family)
        if instead is not None:
            node.replace_all_uses_with(instead)
            graph.erase_node(node)
        elif node.target is aten.detach.default:
            node.target = stop
        elif node.target is aten.copy_.default:
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    return constants


def _constants_as_placeholders(graph: fx.Graph, module: fx.GraphModule, family: FakeTensorFamily) -> dict[str, Tensor]:
    constants: dict[str, Tensor] = {}
    last = placeholders(graph)[-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        held: Any = getattr(module, str(node.target))
        value: Tensor = held.constant if hasattr(held, "fake_mode") else held
        name = f"constant:{len(constants)}"  # no parameter can have that name
        constants[name] = value.detach()
        with graph.inserting_after(last):
            last = graph.placeholder(f"constant{len(constants)}")
        last.meta["val"] = family.tensor(value.shape, value.dtype, value.device, rows=False)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
    return constants


def _stands_for(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> Any:
    """The value a node merely repeats, None if it does something."""
    if node.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.alias.default):
        return node.args[0]
    if node.target is aten.slice.Tensor and _takes_everything(node):
        return node.args[0]
    if node.target is aten.slice_scatter.default and _takes_everything(node):
        return node.args[1]
    if node.target is aten.copy.default:
        return _copied(graph, node, family)
    if node.target in _SHAPED_LIKE:
        return _constant(graph, node, family)
    return None


def _takes_everything(node: fx.Node) -> bool:
    source, *given = arguments(node)
    given = given if node.target is aten.slice.Tensor else given[1:]
    defaults: list[Any] = [0, None, None, 1]
    axis, start, end, step = given + defaults[len(given) :]
    size = source.meta["val"].shape[axis]
    beyond = isinstance(end, int) and (end == sys.maxsize or (isinstance(size, int) and end >= size))
    return bool(start in (0, None) and (end is None or beyond) and step == 1)


# Constants that take a shape or a dtype from another value, and nothing else: they do not depend on it.
_SHAPED_LIKE: dict[Any, int | None] = {
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.zero.default: 0,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
    aten.full_like.default: None,  # the value is the last argument
    aten.fill.Scalar: None,
    aten.new_full.default: None,
}


def _constant(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node | None:
    """The same constant made of its sizes alone; None if rows are part of a size."""
    shape, rows = node.meta["val"].shape, placeholders(graph)[0]
    if not all(isinstance(size, int) or size.node.expr.is_symbol for size in shape):
        return None
    sizes = [size if isinstance(size, int) else rows for size in shape]
    value = _SHAPED_LIKE[node.target]
    options = {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
    with graph.inserting_before(node):
        return call(graph, family, aten.full.default, sizes, arguments(node)[-1] if value is None else value, **options)


def _copied(graph: fx.Graph, node: fx.Node, family: FakeTensorFamily) -> fx.Node:
    """A copy onto memory of known shape and dtype is its source, spread and cast."""
    onto, source = arguments(node)[:2]
    wanted, value = onto.meta["val"], source.meta["val"]
    with graph.inserting_before(node):
        if value.dtype != wanted.dtype:
            source = call(graph, family, aten._to_copy.default, source, dtype=wanted.dtype)
        if str(value.shape) != str(wanted.shape):
            source = call(graph, family, aten.expand_as.default, source, onto)
    return source


class Unasserted(TorchDispatchMode):
    """While active, what only checks is left out."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func._schema.returns and not func._schema.is_mutable:
            return None
        return func(*args, **(kwargs or {}))


def label_all(
    graph: fx.Graph, inputs: Sequence[Port], placeholders: Sequence[fx.Node], heard: Mapping[str, fx.Node]
) -> None:
    """Give inputs their ports' names and named values the user's; an unnamed value keeps its operator's."""
    for port, node in zip(inputs, placeholders, strict=True):
        node.meta["label"] = port.name
    for name, node in heard.items():
        if node.op != "placeholder":
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
