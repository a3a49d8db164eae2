"""Separates the batch axis from feature axes: a graph in which no axis is rows times features.

`nn.Linear` on [rows, heads, features], attention and einsum view rows and heads as one merged axis, multiply, and split
it again. Here each such axis stays split into its factors: products become products of heads with one matrix, or sums
of products. Where an operator does something else to a merged axis, the value stays as it was, and lowering refuses it
by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.kernel.expressions import POINTWISE, PRODUCTS, REDUCTIONS
from leporello.kernel.lowering_context import short
from leporello.kernel.views import SPLITS
from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, has_row_symbol, has_rows, size_of
from leporello.loop.graph import arguments, call, copied
from leporello.loop.sizes import AnySize

aten = torch.ops.aten

Factors = tuple[AnySize | None, ...]  # the sizes that one axis is the product of; None for the rows
AxisFactors = tuple[Factors, ...]  # of all axes of a value
Factored = tuple[fx.Node, AxisFactors]  # a value with every factor as an axis, and which axes of the original they make
COPIES = {"clone", "alias", "detach", "stop", "contiguous"}
RESHAPES = {"view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten"}


def separate_batch_axis(graph: fx.Graph, family: FakeTensorFamily) -> fx.Graph:
    """A copy of a graph in which each axis that merges rows and features is split, as far as possible.

    graph    its first placeholder is the number of rows
    family   the fake tensors with which it was traced
    """
    graph, _ = copied(graph)
    separation = _Separation(graph, family)
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        separation.visit(node)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


class _Separation:
    """A graph while its merged axes are split, in place.

    rows       the node of the number of rows, an argument of views
    factored   for each value with a merged axis, the same value with every factor as an axis of its own
    """

    def __init__(self, graph: fx.Graph, family: FakeTensorFamily) -> None:
        self.graph, self.family = graph, family
        self.rows = next(iter(graph.nodes))
        self.factored: dict[fx.Node, Factored] = {}

    def visit(self, node: fx.Node) -> None:
        """Note the split form of a value with a merged axis; replace a value without one that is made of such values.

        A value that no rule fits stays as it is.
        """
        value = node.meta["val"]
        merged = isinstance(value, Tensor) and has_rows(value) and clean_row_axis(value) is None
        if not merged and not any(source in self.factored for source in node.all_input_nodes):
            return
        rule = next((rule for names, rule in AXIS_RULES if short(node) in names), None)
        if rule is None or not isinstance(value, Tensor):
            return
        with self.graph.inserting_before(node):
            result = rule(self, node)
        if result is None:
            return
        new, axes = result
        new.meta["label"], new.meta["line"] = node.meta.get("label"), node.meta.get("line")
        if merged:
            self.factored[node] = result
            return
        with self.graph.inserting_before(node):
            if any(len(factors) != 1 for factors in axes):
                new = self.call(aten.view.default, new, self.sizes(axes))
        node.replace_all_uses_with(new)

    def call(self, target: Callable[..., Any], *args: Any, **options: Any) -> fx.Node:
        return call(self.graph, self.family, target, *args, **options)

    def factors_of(self, node: fx.Node) -> Factored | None:
        """A value with its factors as axes, which is the value itself where none is merged; None if not split."""
        if node in self.factored:
            return self.factored[node]
        value = node.meta["val"]
        rows = clean_row_axis(value)
        if has_rows(value) and rows is None:
            return None
        return node, tuple((None,) if axis == rows else (size_of(size),) for axis, size in enumerate(value.shape))

    def sizes(self, axes: AxisFactors) -> list[Any]:
        """The shape of a value without a merged axis, as arguments of a view: the node `rows` for the rows."""
        return [self.rows if factors == (None,) else math.prod(size or 1 for size in factors) for factors in axes]

    def viewed(self, node: fx.Node, factors: Sequence[AnySize | None]) -> fx.Node:
        """A value in the shape `factors`, None for the rows: features are merged and split, the rows stay one axis."""
        contiguous = self.call(aten.clone.default, node, memory_format=torch.contiguous_format)
        return self.call(aten.view.default, contiguous, [self.rows if f is None else f for f in factors])

    def broadcastable(self, value: Factored, axes: AxisFactors) -> fx.Node | None:
        """A value with its axes split as `axes` are, so that it broadcasts to them; None where that cannot be."""
        node, present = value
        shape: list[AnySize | None] = []
        for factors, wanted in zip(present, axes[len(axes) - len(present) :], strict=True):
            if factors == wanted:
                shape += wanted
            elif _is_one(factors):
                shape += [1] * len(wanted)
            elif None in factors or None in wanted or _product(factors) != _product(wanted):
                return None
            else:
                shape += wanted
        return node if tuple(shape) == _flat(present) else self.viewed(node, shape)


def _product(factors: Factors) -> AnySize:
    """The product of the features among some factors; rows count as 1."""
    return math.prod(1 if size is None else size for size in factors)


def _is_one(factors: Factors) -> bool:
    """Whether an axis has one element, as a mean that keeps its axes has."""
    return all(factor == 1 for factor in factors)


def _flat(axes: Sequence[Factors]) -> Factors:
    return tuple(size for factors in axes for size in factors)


def _positions(axes: AxisFactors, chosen: Sequence[int]) -> list[int]:
    """Where the factors of the axes `chosen` are among the factors of all axes."""
    starts = [sum(map(len, axes[:axis])) for axis in range(len(axes))]
    return [starts[axis] + place for axis in chosen for place in range(len(axes[axis]))]


# ---- rules: the same value with its factors as axes; None where no such value is known


def _reshape(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    if value is None:
        return None
    source, axes = value
    remaining, new_axes = [size for size in _flat(axes) if size != 1], []
    for size in node.meta["val"].shape:
        factors = _take_factors(remaining, size, separation.family)
        if factors is None:
            return None
        new_axes.append(factors)
    if remaining:
        return None
    return separation.viewed(source, _flat(new_axes)), tuple(new_axes)


def _take_factors(remaining: list[AnySize | None], size: Any, family: FakeTensorFamily) -> Factors | None:
    """Take the factors of an axis of this size off the front of `remaining`, in place; None where they do not fit.

    A feature is split where the axis needs only a part of it.

    size   of a fake tensor of the family
    """
    needs_rows = not isinstance(size, int) and has_row_symbol(size)
    rest = family.per_row(size) if needs_rows else size_of(size)
    if rest is None:
        return None
    factors: list[AnySize | None] = []
    while remaining and (rest != 1 or needs_rows):
        first = remaining.pop(0)
        if first is None:
            if not needs_rows:
                return None
            needs_rows = False
        elif rest % first == 0:
            rest //= first
        elif first % rest == 0 and rest > 1:
            remaining.insert(0, first // rest)
            first, rest = rest, 1
        else:
            return None
        factors.append(first)
    if rest != 1 or needs_rows:
        return None
    return tuple(factors) or (1,)


def _pointwise(separation: _Separation, node: fx.Node) -> Factored | None:
    sources = [source for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    values = [separation.factors_of(source) for source in sources]
    full = [value[1] for value in values if value is not None and len(value[1]) == node.meta["val"].dim()]
    merged = [axes for axes in full if any(None in factors and len(factors) > 1 for factors in axes)]
    if not merged or None in values:
        return None
    axes = tuple(next((f for f in column if not _is_one(f)), (1,)) for column in zip(*merged, *full, strict=True))
    replacements = {
        source: separation.broadcastable(value, axes) for source, value in zip(sources, values, strict=True) if value
    }
    if None in replacements.values():
        return None
    args, options = fx.map_arg((node.args, node.kwargs), lambda source: replacements.get(source, source))
    new = separation.call(node.target, *args, **options)  # type: ignore[arg-type]
    row = clean_row_axis(new.meta["val"])
    shape = iter([None if axis == row else size_of(size) for axis, size in enumerate(new.meta["val"].shape)])
    return new, tuple(tuple(next(shape) for _ in factors) for factors in axes)


def _reduction(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    argument = arguments(node)[1] if len(arguments(node)) > 1 else None
    if value is None or argument is None or argument == []:
        return None
    source, axes = value
    single = not isinstance(argument, (list, tuple))
    reduced = [axis % len(axes) for axis in ([argument] if single else argument)]
    keepdim = bool(arguments(node)[2]) if len(arguments(node)) > 2 else bool(node.kwargs.get("keepdim", False))
    if any(None in axes[axis] for axis in reduced) or (single and len(axes[reduced[0]]) != 1):
        return None
    places = _positions(axes, reduced)
    new = separation.call(node.target, source, places[0] if single else places, keepdim, **node.kwargs)  # type: ignore[arg-type]
    kept = [(axis, factors) for axis, factors in enumerate(axes) if keepdim or axis not in reduced]
    return new, tuple((1,) * len(factors) if axis in reduced else factors for axis, factors in kept)


def _permute(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    if value is None:
        return None
    source, axes = value
    order = list(range(len(axes)))
    if short(node) == "permute":
        order = [axis % len(axes) for axis in arguments(node)[1]]
    else:
        one, other = arguments(node)[1:3] if short(node) == "transpose" else (0, -1)
        order[one], order[other] = order[other], order[one]
    new = separation.call(aten.permute.default, source, _positions(axes, order))
    return new, tuple(axes[axis] for axis in order)


def _unsqueeze(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    if value is None:
        return None
    source, axes = value
    axis = arguments(node)[1] % (len(axes) + 1)
    new = separation.call(aten.unsqueeze.default, source, sum(map(len, axes[:axis])))
    return new, (*axes[:axis], (1,), *axes[axis:])


def _squeeze(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    if value is None or len(arguments(node)) < 2:
        return None
    source, axes = value
    argument = arguments(node)[1]
    wanted = {axis % len(axes) for axis in (argument if isinstance(argument, (list, tuple)) else [argument])}
    gone = [axis for axis in wanted if axes[axis] == (1,)]
    new = separation.call(aten.squeeze.dims, source, _positions(axes, gone))
    return new, tuple(factors for axis, factors in enumerate(axes) if axis not in gone)


def _expand(separation: _Separation, node: fx.Node) -> Factored | None:
    value = separation.factors_of(arguments(node)[0])
    if value is None:
        return None
    source, axes = value
    sizes = node.meta["val"].shape
    leading = sizes[: len(sizes) - len(axes)]
    if any(not isinstance(size, int) and has_row_symbol(size) for size in leading):
        return None  # expanded over rows
    new_axes: list[Factors] = [(size_of(size),) for size in leading]
    for factors, size in zip(axes, sizes[len(leading) :], strict=True):
        if factors == (1,) and not isinstance(size, int) and has_row_symbol(size):
            return None
        new_axes.append((size_of(size),) if factors == (1,) else factors)
    shape = [separation.rows if size is None else size for size in _flat(new_axes)]
    return separation.call(aten.expand.default, source, shape), tuple(new_axes)


def _multiply(separation: _Separation, node: fx.Node) -> Factored | None:
    """mm of rows and heads with one invariant matrix, on either side; bmm along a merged axis, as a sum of products."""
    one, other = (separation.factors_of(argument) for argument in arguments(node))
    if one is None or other is None:
        return None
    (left, left_axes), (right, right_axes) = one, other
    if short(node) == "mm" and None not in _flat(right_axes):
        return _by_matrix(separation, left, left_axes, right, right_axes[1])
    if short(node) == "mm" and None not in _flat(left_axes):
        order = [*range(len(right_axes[0]), len(_flat(right_axes))), *range(len(right_axes[0]))]
        transposed = separation.call(aten.permute.default, right, order)
        matrix = separation.call(aten.permute.default, left, [1, 0])
        new, axes = _by_matrix(separation, transposed, (right_axes[1], right_axes[0]), matrix, left_axes[0])
        count = len(axes[0])
        return separation.call(aten.permute.default, new, [count, *range(count)]), (axes[1], axes[0])
    features = (*left_axes[1:], *right_axes[1:])
    if short(node) == "bmm" and left_axes[0] == right_axes[0] and all(len(factors) == 1 for factors in features):
        count = len(left_axes[0])  # [..., n, k] and [..., k, m]: a sum over k
        products = separation.call(
            aten.mul.Tensor,
            separation.call(aten.unsqueeze.default, left, count + 2),
            separation.call(aten.unsqueeze.default, right, count),
        )
        new_axes = (left_axes[0], left_axes[1], right_axes[2])
        return separation.call(aten.sum.dim_IntList, products, [count + 1]), new_axes
    return None


def _by_matrix(separation: _Separation, left: fx.Node, axes: AxisFactors, matrix: fx.Node, outer: Factors) -> Factored:
    """Add [rows and heads, k] times [k, n] to the graph, as a bmm with the heads in front; all share the matrix.

    left    the value with its factors as axes, `axes` the factors of its two axes
    outer   the factors of n
    """
    front = axes[0]
    heads = [place for place, size in enumerate(front) if size is not None]
    count, inner = _product(front), _product(axes[1])
    order = [*heads, front.index(None)]
    heads_first = separation.call(aten.permute.default, left, [*order, *range(len(front), len(front) + len(axes[1]))])
    factor = separation.viewed(heads_first, [count, None, inner])
    expanded = separation.call(
        aten.expand.default, separation.call(aten.unsqueeze.default, matrix, 0), [count, *matrix.meta["val"].shape]
    )
    product = separation.call(aten.bmm.default, factor, expanded)
    parts = separation.viewed(product, [*(front[place] for place in heads), None, *outer])
    back = [order.index(place) for place in range(len(front))]
    new = separation.call(aten.permute.default, parts, [*back, *range(len(front), len(front) + len(outer))])
    return new, (front, outer)


def _slice(separation: _Separation, node: fx.Node) -> Factored | None:
    given = arguments(node)
    return _of_one_axis(separation, given[0], given[1] if len(given) > 1 else 0, aten.slice.Tensor, *given[2:])


def _select(separation: _Separation, node: fx.Node) -> Factored | None:
    return _of_one_axis(separation, *arguments(node)[:2], aten.select.int, arguments(node)[2])


def _part(separation: _Separation, node: fx.Node) -> Factored | None:
    """One of the results of an operator that takes a value apart."""
    split, number = arguments(node)
    given, name = arguments(split), short(split).removeprefix("unsafe_")
    if name not in SPLITS:
        return None
    place = 1 if name == "unbind" else 2
    axis = given[place] if len(given) > place else 0
    if name == "unbind":
        return _of_one_axis(separation, given[0], axis, aten.select.int, number)
    sizes = [part.shape[axis] for part in split.meta["val"][: number + 1]]
    return _of_one_axis(separation, given[0], axis, aten.slice.Tensor, sum(sizes[:-1]), sum(sizes))


def _of_one_axis(
    separation: _Separation, node: fx.Node, axis: int, target: Callable[..., Any], *options: Any
) -> Factored | None:
    """A slice of a value along an axis of features, or one element of it."""
    value = separation.factors_of(node)
    if value is None:
        return None
    source, axes = value
    axis %= len(axes)
    if len(axes[axis]) != 1 or None in axes[axis]:
        return None
    (place,) = _positions(axes, [axis])
    new = separation.call(target, source, place, *options)
    size = () if target is aten.select.int else ((size_of(new.meta["val"].shape[place]),),)
    return new, (*axes[:axis], *size, *axes[axis + 1 :])


def _join(separation: _Separation, node: fx.Node) -> Factored | None:
    """cat of values that differ along one axis of features, stack; their other axes have the same factors."""
    values = [separation.factors_of(source) for source in arguments(node)[0]]
    found = [value for value in values if value is not None]
    if not found or None in values:
        return None
    sources, shapes = zip(*found, strict=True)
    count = node.meta["val"].dim()
    axis = (arguments(node)[1] if len(arguments(node)) > 1 else 0) % count
    joined = int(len(shapes[0]) == count)  # 0: along a new axis
    others = {(*axes[:axis], *axes[axis + joined :]) for axes in shapes}
    if len(others) != 1 or any(len(factors) != 1 or None in factors for a in shapes for factors in a[axis:][:joined]):
        return None
    place = sum(map(len, shapes[0][:axis]))
    new = separation.call(node.target, sources, place)  # type: ignore[arg-type]
    return new, (*shapes[0][:axis], (size_of(new.meta["val"].shape[place]),), *shapes[0][axis + joined :])


def _scatter(separation: _Separation, node: fx.Node) -> Factored | None:
    """A value written into zeros along an axis of features, as the gradient of a slice is."""
    zeros, written, *options = arguments(node)
    value = separation.factors_of(written)
    if value is None or short(zeros) != "new_zeros":
        return None
    source, axes = value
    axis = options[0] % zeros.meta["val"].dim()
    size = size_of(zeros.meta["val"].shape[axis])
    kept = int(len(axes) == zeros.meta["val"].dim())  # 0: of one element
    if size is None or any(len(factors) != 1 or None in factors for factors in axes[axis:][:kept]):
        return None
    place = sum(map(len, axes[:axis]))
    full = (*axes[:axis], (size,), *axes[axis + kept :])
    shape = [separation.rows if factor is None else factor for factor in _flat(full)]
    base = separation.call(aten.new_zeros.default, source, shape)
    return separation.call(node.target, base, source, place, *options[1:]), full  # type: ignore[arg-type]


AXIS_RULES: list[tuple[set[str], Callable[[_Separation, fx.Node], Factored | None]]] = [
    (RESHAPES, _reshape),
    ({*POINTWISE, *COPIES}, _pointwise),
    (REDUCTIONS, _reduction),
    ({"permute", "transpose", "t"}, _permute),
    ({"unsqueeze"}, _unsqueeze),
    ({"squeeze"}, _squeeze),
    ({"expand"}, _expand),
    ({"slice"}, _slice),
    ({"select"}, _select),
    ({"getitem"}, _part),
    ({"cat", "stack"}, _join),
    ({"slice_scatter", "select_scatter"}, _scatter),
    (PRODUCTS, _multiply),
]
