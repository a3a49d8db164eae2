"""Composite operators as the few that kernels know: torch's own decompositions, put in their place one by one.

Knows graphs; a value keeps its name and its label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from leporello.engine.kernel.operators import COVERED
from leporello.engine.kernel.shapes import row_axis, short
from leporello.loop.family import Family
from leporello.loop.graph import arguments, call, copied

aten = torch.ops.aten


def decomposed(graph: fx.Graph, family: Family) -> fx.Graph:
    """A copy of a graph in which every operator that can be is made of those that kernels cover."""
    graph, _ = copied(graph)
    next(iter(graph.nodes)).meta.setdefault("val", family.rows)
    waiting = [node for node in graph.nodes if node.op == "call_function"]
    while waiting:
        node = waiting.pop(0)
        rule = _rule(node)
        if rule is not None:
            waiting[:0] = _replaced(graph, node, rule, family)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _rule(node: fx.Node) -> Callable[..., Any] | None:
    name = short(node)
    if name in OWN and OWN[name](node) is not None:
        return OWN[name](node)
    if name in COVERED:
        return None
    target: Any = node.target
    return decomposition_table.get(target)


def _added(node: fx.Node) -> Callable[..., Any]:
    """b + x W as a product and a sum."""
    product = aten.mm.default if short(node) == "addmm" else aten.bmm.default

    def rule(bias: Tensor, one: Tensor, other: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        found = product(one, other)
        found = found if alpha == 1 else aten.mul.Tensor(found, alpha)
        return aten.add.Tensor(found, bias if beta == 1 else aten.mul.Tensor(bias, beta))

    return rule


def _of_rows(node: fx.Node) -> Callable[..., Any] | None:
    """A product of two values of a row as a sum of products."""
    axes = [row_axis(argument) for argument in arguments(node)[:2]]
    if 0 in axes and all(axis in (0, None) for axis in axes):
        return lambda a, b: aten.sum.dim_IntList(aten.mul.Tensor(aten.unsqueeze(a, 3), aten.unsqueeze(b, 1)), [2])
    return None


def _mean(node: fx.Node) -> Callable[..., Any]:
    def rule(value: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        axes = list(range(value.dim())) if dim is None else dim
        count = 1
        for axis in axes if isinstance(axes, (list, tuple)) else [axes]:
            count *= value.shape[axis]
        return aten.div.Tensor(aten.sum.dim_IntList(value, axes, keepdim), count)

    return rule


def _averaged(value: Tensor, axes: Any) -> Tensor:
    count = 1
    for axis in axes:
        count *= value.shape[axis]
    return aten.mul.Tensor(aten.sum.dim_IntList(value, axes, True), 1.0 / count)


def _normed(node: fx.Node) -> Callable[..., Any]:
    def rule(value: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        axes = list(range(value.dim() - len(shape), value.dim()))
        mean = _averaged(value, axes)
        away = aten.sub.Tensor(value, mean)
        rate = aten.rsqrt.default(aten.add.Tensor(_averaged(aten.mul.Tensor(away, away), axes), eps))
        found = aten.mul.Tensor(away, rate)
        found = found if weight is None else aten.mul.Tensor(found, weight)
        return (found if bias is None else aten.add.Tensor(found, bias)), mean, rate

    return rule


def _normed_backward(node: fx.Node) -> Callable[..., Any] | None:
    """The gradient of what was normed; gains and shifts get theirs outside, where rows may be summed."""
    mask: Any = node.args[-1]
    if mask[1] or mask[2]:
        return None

    def rule(
        gradient: Tensor, value: Tensor, shape: Any, mean: Tensor, rate: Tensor, weight: Any, bias: Any, mask: Any
    ) -> tuple[Tensor, None, None]:
        axes = list(range(value.dim() - len(shape), value.dim()))
        normed = aten.mul.Tensor(aten.sub.Tensor(value, mean), rate)
        inner = gradient if weight is None else aten.mul.Tensor(gradient, weight)
        own = aten.sub.Tensor(inner, _averaged(inner, axes))
        along = aten.mul.Tensor(normed, _averaged(aten.mul.Tensor(inner, normed), axes))
        return aten.mul.Tensor(rate, aten.sub.Tensor(own, along)), None, None

    return rule


def _softmax(node: fx.Node) -> Callable[..., Any]:
    logs = short(node) == "_log_softmax"

    def rule(value: Tensor, axis: int, half: bool) -> Tensor:
        away = aten.sub.Tensor(value, aten.amax.default(value, [axis], True))
        size = aten.exp.default(away)
        total = aten.sum.dim_IntList(size, [axis], True)
        return aten.sub.Tensor(away, aten.log.default(total)) if logs else aten.div.Tensor(size, total)

    return rule


def _softmax_backward(node: fx.Node) -> Callable[..., Any]:
    logs = short(node) == "_log_softmax_backward_data"

    def rule(gradient: Tensor, found: Tensor, axis: int, dtype: Any) -> Tensor:
        if logs:
            total = aten.sum.dim_IntList(gradient, [axis], True)
            return aten.sub.Tensor(gradient, aten.mul.Tensor(aten.exp.default(found), total))
        inner = aten.mul.Tensor(gradient, found)
        return aten.sub.Tensor(inner, aten.mul.Tensor(found, aten.sum.dim_IntList(inner, [axis], True)))

    return rule


def _varied(node: fx.Node) -> Callable[..., Any]:
    both = short(node) == "var_mean"

    def rule(value: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
        axes = list(range(value.dim())) if dim is None else [axis % value.dim() for axis in dim]
        count = 1
        for axis in axes:
            count *= value.shape[axis]
        mean = _averaged(value, axes)
        away = aten.sub.Tensor(value, mean)
        squares = aten.sum.dim_IntList(aten.mul.Tensor(away, away), axes, keepdim)
        found = aten.mul.Tensor(
            squares, 1.0 / max(count - (1 if correction is None else correction), 0) if count > 1 else float("nan")
        )
        if not both:
            return found
        return found, mean if keepdim else aten.squeeze.dims(mean, axes)

    return rule


def _extreme(node: fx.Node) -> Callable[..., Any] | None:
    """The largest or smallest along an axis, and where it stands."""
    if len(node.args) < 2 or not isinstance(node.args[1], int):
        return None
    largest = short(node) == "max"
    value, place = (aten.amax, aten.argmax) if largest else (aten.amin, aten.argmin)

    def rule(source: Tensor, axis: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return value.default(source, [axis], keepdim), place.default(source, axis, keepdim)

    return rule


OWN: dict[str, Callable[[fx.Node], Callable[..., Any] | None]] = {
    "addmm": _added,
    "baddbmm": _added,
    "bmm": _of_rows,
    "mean": _mean,
    "native_layer_norm": _normed,
    "native_layer_norm_backward": _normed_backward,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "max": _extreme,
    "min": _extreme,
    "var": _varied,
    "var_mean": _varied,
}


def _replaced(graph: fx.Graph, node: fx.Node, rule: Callable[..., Any], family: Family) -> list[fx.Node]:
    """Put what an operator is made of in its place; the new operators."""
    leaves = list(node.all_input_nodes)
    order = {leaf: index for index, leaf in enumerate(leaves)}

    def of_leaves(*values: Any) -> Any:
        args, options = fx.map_arg((node.args, node.kwargs), lambda leaf: values[order[leaf]])
        return rule(*map(_own, args), **options)

    try:
        with family.active(), torch.no_grad():
            inner = make_fx(of_leaves)(*(leaf.meta["val"] for leaf in leaves)).graph
    except Exception:  # a decomposition that does not fit; the operator is refused by name later
        return []
    copies: dict[fx.Node, Any] = dict(
        zip([place for place in inner.nodes if place.op == "placeholder"], leaves, strict=True)
    )
    made: list[fx.Node] = []
    with graph.inserting_before(node):
        for own in inner.nodes:
            if own.op == "call_function" and not isinstance(own.target, type):
                args, options = fx.map_arg((own.args, own.kwargs), copies.__getitem__)
                copies[own] = call(graph, family, own.target, *args, **options)
                made.append(copies[own])
    given: Any = inner.output_node().args[0]
    if isinstance(given, fx.Node) and isinstance(given.target, type):
        given = given.args if len(given.args) > 1 else given.args[0]  # several results in a tuple with names
    if isinstance(given, (list, tuple)):
        for user in list(node.users):
            part = given[user.args[1]]  # type: ignore[index]
            if part is None:
                continue
            user.replace_all_uses_with(copies[part])
            _labelled(copies[part], user)
            graph.erase_node(user)
    else:
        node.replace_all_uses_with(copies[given])
        _labelled(copies[given], node)
    if not node.users:
        graph.erase_node(node)
    return made


def _own(argument: Any) -> Any:
    """An argument that may be changed: lists in graphs may not."""
    return list(argument) if isinstance(argument, list) else argument


def _labelled(new: fx.Node, old: fx.Node) -> None:
    if old.meta.get("label") and not new.meta.get("label"):
        new.meta["label"] = old.meta["label"]
