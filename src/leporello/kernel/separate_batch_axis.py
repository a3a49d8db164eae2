"""Rows apart: a graph in which no axis is rows times features.

`nn.Linear` on [rows, heads, features], attention and einsum look at rows and heads as one axis, multiply, and part them
again. Here each such axis stays parted into its factors: products become products of heads with one matrix, or sums of
products. Knows graphs and ATen's operators; where one does something else to such an axis, the value stays as it was
and is refused by name later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.kernel.expressions import BINARY, POINTWISE, REDUCTIONS, UNARY
from leporello.kernel.fx_nodes import short
from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, has_rows
from leporello.loop.graph import arguments, call, copied

aten = torch.ops.aten

Factors = tuple[int | None, ...]  # of one axis, None for the rows
Layout = tuple[Factors, ...]  # of all axes
SAME = {"clone", "alias", "detach", "stop", "_to_copy", "convert_element_type", "contiguous"}
SHAPED = {"view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"}


def rows_apart(graph: fx.Graph, family: FakeTensorFamily) -> fx.Graph:
    """A copy of a graph with every axis of rows and features parted, as far as can be."""
    graph, _ = copied(graph)
    parting = _Parting(graph, family)
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        parting.treat(node)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


class _Parting:
    """A graph while it is changed.

    parted   for a value with such an axis: the value with its factors as axes, and which axis is made of which
    """

    def __init__(self, graph: fx.Graph, family: FakeTensorFamily) -> None:
        self.graph, self.family = graph, family
        self.rows = next(iter(graph.nodes))
        self.parted: dict[fx.Node, tuple[fx.Node, Layout]] = {}

    def treat(self, node: fx.Node) -> None:
        value = node.meta["val"]
        merged = isinstance(value, Tensor) and has_rows(value) and clean_row_axis(value) is None
        if not merged and not any(source in self.parted for source in node.all_input_nodes):
            return
        rule = next((rule for names, rule in RULES if short(node) in names), None)
        if rule is None or not isinstance(value, Tensor):
            return
        with self.graph.inserting_before(node):
            found = rule(self, node)
        if found is None:
            return
        new, layout = found
        new.meta["label"], new.meta["line"] = node.meta.get("label"), node.meta.get("line")
        if merged:
            self.parted[node] = found
            return
        with self.graph.inserting_before(node):
            if any(len(factors) != 1 for factors in layout):
                new = self.call(aten.view.default, new, self.sizes(layout))
        node.replace_all_uses_with(new)

    def call(self, target: Callable[..., Any], *args: Any, **options: Any) -> fx.Node:
        return call(self.graph, self.family, target, *args, **options)

    def form(self, node: fx.Node) -> tuple[fx.Node, Layout] | None:
        """A value with its factors as axes; None where rows and features could not be parted."""
        if node in self.parted:
            return self.parted[node]
        value = node.meta["val"]
        rows = clean_row_axis(value)
        if has_rows(value) and rows is None:
            return None
        return node, tuple((None,) if axis == rows else (int(size),) for axis, size in enumerate(value.shape))

    def sizes(self, layout: Layout) -> list[Any]:
        """One size per axis; no axis is rows and features."""
        return [self.rows if factors == (None,) else math.prod(size or 1 for size in factors) for factors in layout]

    def viewed(self, node: fx.Node, factors: Sequence[int | None]) -> fx.Node:
        """A value in another shape, features only parted and joined."""
        return self.call(aten.view.default, self.plain(node), [self.rows if f is None else f for f in factors])

    def plain(self, node: fx.Node) -> fx.Node:
        return self.call(aten.clone.default, node, memory_format=torch.contiguous_format)

    def like(self, form: tuple[fx.Node, Layout], layout: Layout) -> fx.Node | None:
        """A value made ready to meet others of this layout: its axes parted as theirs, ones where it has none."""
        node, own = form
        shape: list[int | None] = []
        for factors, wanted in zip(own, layout[len(layout) - len(own) :], strict=True):
            if factors == wanted:
                shape += wanted
            elif factors == (1,):
                shape += [1] * len(wanted)
            elif (
                None in factors or None in wanted or math.prod(map(_number, factors)) != math.prod(map(_number, wanted))
            ):
                return None
            else:
                shape += wanted
        return node if tuple(shape) == _flat(own) else self.viewed(node, shape)


def _number(size: int | None) -> int:
    return 1 if size is None else size


def _flat(layout: Sequence[Factors]) -> Factors:
    return tuple(size for factors in layout for size in factors)


# ---- rules: a value of the same meaning with its factors as axes, and its layout; None where none fits


def _viewed(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    form = parting.form(arguments(node)[0])
    if form is None:
        return None
    source, layout = form
    waiting, found = [size for size in _flat(layout) if size != 1], []
    for size in node.meta["val"].shape:
        factors = _taken(waiting, size, parting.family.rows)
        if factors is None:
            return None
        found.append(factors)
    if waiting:
        return None
    new = parting.viewed(source, _flat(found))
    return new, tuple(found)


def _taken(waiting: list[int | None], size: Any, rows: Any) -> Factors | None:
    """Take the factors of one axis off those that are left; a feature may have to be parted."""
    many = not isinstance(size, int)
    left = _multiple(size, rows) if many else size
    found: list[int | None] = []
    while waiting and (left != 1 or many):
        first = waiting.pop(0)
        if first is None:
            if not many:
                return None
            many = False
        elif left % first == 0:
            left //= first
        elif first % left == 0 and left > 1:
            waiting.insert(0, first // left)
            first, left = left, 1
        else:
            return None
        found.append(first)
    if left != 1 or many:
        return None
    return tuple(found) or (1,)


def _multiple(size: Any, rows: Any) -> int:
    """How many times the rows a size is."""
    return int((size.node.expr / rows.node.expr).simplify())


def _pointwise(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    forms = [parting.form(source) for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    whole = [form for form in forms if form is not None and len(form[1]) == node.meta["val"].dim()]
    layout = next((form[1] for form in whole if any(None in f and len(f) > 1 for f in form[1])), None)
    if layout is None or None in forms:
        return None
    sources = [source for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    instead = {source: parting.like(form, layout) for source, form in zip(sources, forms, strict=True) if form}
    if None in instead.values():
        return None
    args, options = fx.map_arg((node.args, node.kwargs), lambda source: instead.get(source, source))
    new = parting.call(node.target, *args, **options)  # type: ignore[arg-type]
    shape, found, place = new.meta["val"].shape, [], 0
    for factors in layout:
        own = shape[place : place + len(factors)]
        found.append(tuple(None if not isinstance(size, int) else size for size in own))
        place += len(factors)
    return new, tuple(found)


def _reduced(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    form = parting.form(arguments(node)[0])
    asked = arguments(node)[1] if len(arguments(node)) > 1 else None
    if form is None or asked is None or asked == []:
        return None
    source, layout = form
    one = not isinstance(asked, (list, tuple))
    axes = [axis % len(layout) for axis in ([asked] if one else asked)]
    kept = bool(arguments(node)[2]) if len(arguments(node)) > 2 else bool(node.kwargs.get("keepdim", False))
    if any(None in layout[axis] for axis in axes) or (one and len(layout[axes[0]]) != 1):
        return None
    starts = [sum(map(len, layout[:axis])) for axis in range(len(layout))]
    places = [starts[axis] + place for axis in axes for place in range(len(layout[axis]))]
    new = parting.call(node.target, source, places[0] if one else places, kept, **node.kwargs)  # type: ignore[arg-type]
    found = [((1,) * len(f) if axis in axes else f) for axis, f in enumerate(layout) if kept or axis not in axes]
    return new, tuple(found)


def _permuted(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    form = parting.form(arguments(node)[0])
    if form is None:
        return None
    source, layout = form
    order = list(range(len(layout)))
    if short(node) == "permute":
        order = [axis % len(layout) for axis in arguments(node)[1]]
    else:
        one, other = arguments(node)[1:3] if short(node) == "transpose" else (0, -1)
        order[one], order[other] = order[other], order[one]
    starts = [sum(map(len, layout[:axis])) for axis in range(len(layout))]
    places = [starts[axis] + place for axis in order for place in range(len(layout[axis]))]
    return parting.call(aten.permute.default, source, places), tuple(layout[axis] for axis in order)


def _unsqueezed(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    form = parting.form(arguments(node)[0])
    if form is None:
        return None
    source, layout = form
    axis = arguments(node)[1] % (len(layout) + 1)
    new = parting.call(aten.unsqueeze.default, source, sum(map(len, layout[:axis])))
    return new, (*layout[:axis], (1,), *layout[axis:])


def _expanded(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    form = parting.form(arguments(node)[0])
    if form is None:
        return None
    source, layout = form
    sizes = node.meta["val"].shape
    new = sizes[: len(sizes) - len(layout)]
    found: list[Factors] = [(size,) for size in new]
    for factors, size in zip(layout, sizes[len(new) :], strict=True):
        found.append((size,) if factors == (1,) else factors)
    if not all(isinstance(size, int) or size is None for size in _flat(found)):
        return None  # spread over rows
    wanted = [parting.rows if size is None else size for size in _flat(found)]
    return parting.call(aten.expand.default, source, wanted), tuple(found)


def _multiplied(parting: _Parting, node: fx.Node) -> tuple[fx.Node, Layout] | None:
    """mm, bmm: rows and heads with a matrix that is one for all, or two values of a row."""
    forms = [parting.form(argument) for argument in arguments(node)]
    if forms[0] is None or forms[1] is None:
        return None
    (left, one), (right, other) = forms[0], forms[1]
    if short(node) == "mm" and None not in _flat(other):
        return _by_matrix(parting, left, one, right, other[1])
    if short(node) == "mm" and None not in _flat(one):
        turned = parting.call(
            aten.permute.default, right, [*range(len(other[0]), len(_flat(other))), *range(len(other[0]))]
        )
        matrix = parting.call(aten.permute.default, left, [1, 0])
        found = _by_matrix(parting, turned, (other[1], other[0]), matrix, one[0])
        new, layout = found
        count = len(layout[0])
        return parting.call(aten.permute.default, new, [count, *range(count)]), (layout[1], layout[0])
    if short(node) == "bmm" and one[0] == other[0] and all(len(f) == 1 for f in (*one[1:], *other[1:])):
        count = len(one[0])  # [..., n, k] and [..., k, m]: a sum over k
        products = parting.call(
            aten.mul.Tensor,
            parting.call(aten.unsqueeze.default, left, count + 2),
            parting.call(aten.unsqueeze.default, right, count),
        )
        return parting.call(aten.sum.dim_IntList, products, [count + 1]), (one[0], one[1], other[2])
    return None


def _by_matrix(
    parting: _Parting, left: fx.Node, layout: Layout, matrix: fx.Node, outer: Factors
) -> tuple[fx.Node, Layout]:
    """[rows and heads, k] with [k, n]: every head with the same matrix."""
    front = layout[0]
    heads = [place for place, size in enumerate(front) if size is not None]
    count, inner = math.prod(_number(front[place]) for place in heads), math.prod(map(_number, layout[1]))
    order = [*heads, front.index(None)]
    turned = parting.call(aten.permute.default, left, [*order, *range(len(front), len(front) + len(layout[1]))])
    factor = parting.viewed(turned, [count, None, inner])
    spread = parting.call(
        aten.expand.default, parting.call(aten.unsqueeze.default, matrix, 0), [count, *matrix.meta["val"].shape]
    )
    product = parting.call(aten.bmm.default, factor, spread)
    parts = parting.viewed(product, [*(front[place] for place in heads), None, *outer])
    back = [order.index(place) for place in range(len(front))]
    return parting.call(aten.permute.default, parts, [*back, *range(len(front), len(front) + len(outer))]), (
        front,
        outer,
    )


RULES: list[tuple[set[str], Callable[[_Parting, fx.Node], tuple[fx.Node, Layout] | None]]] = [
    (SHAPED, _viewed),
    ({*UNARY, *BINARY, *POINTWISE, *SAME}, _pointwise),
    (REDUCTIONS, _reduced),
    ({"permute", "transpose", "t"}, _permuted),
    ({"unsqueeze"}, _unsqueezed),
    ({"expand"}, _expanded),
    ({"mm", "bmm"}, _multiplied),
]
