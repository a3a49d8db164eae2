"""Scatter, indexed assignment, sort and top-k, as sums and searches over all positions.

A block of a kernel never writes to a computed position. So every target element searches the sources for those that go
to it: as many comparisons as there are pairs of both. Sorts of more than MAX_SORT_LENGTH values have no rule, and
kernels refuse them. What a rule is: decomposition_rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from leporello.kernel.decomposition_rules import DecompositionRule, reshaped
from leporello.kernel.lowering_context import dims, short
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments

aten = torch.ops.aten

MAX_SORT_LENGTH = 256


def _positions(size: int, axis: int, count: int, like: Tensor) -> Tensor:
    """0, 1, ..., size - 1 along `axis`, as a tensor of `count` axes, the others of size 1; on the device of `like`."""
    numbers = aten.arange.default(size, dtype=torch.int64, device=like.device)
    return aten.view.default(numbers, [size if place == axis else 1 for place in range(count)])


def _choose(condition: Tensor, one: Any, other: Any) -> Tensor:
    """torch.where, whose choices may be Python numbers."""
    return torch.where(condition, one, other)


# ---- scatter


def _scatter(node: fx.Node) -> Callable[..., Any] | None:
    """scatter, scatter_add: `index` says where along an axis each source goes.

    Of several sources for one element, scatter takes the last and scatter_add adds them all. None where there is a
    `reduce`, or `index` and the target differ in the size of another axis.
    """
    target, axis, index = arguments(node)[:3]
    axis = int(axis) % len(dims(index))
    others = [place for place in range(len(dims(index))) if place != axis]
    if "reduce" in node.kwargs or any(dims(target)[place] != dims(index)[place] for place in others):
        return None
    adds = short(node) == "scatter_add"

    def rule(target: Tensor, axis: int, index: Tensor, source: Any) -> Tensor:
        axis, size, count = axis % index.dim(), index.shape[axis], index.dim()
        if isinstance(source, Tensor) and source.shape[axis] != size:
            source = aten.slice.Tensor(source, axis, 0, size)
        if size == 1 and not adds:
            mine = aten.eq.Tensor(index, _positions(target.shape[axis], axis, count, target))
            return _choose(mine, source, target)
        # an axis of targets in front of the axis of sources
        mine = aten.eq.Tensor(
            aten.unsqueeze.default(index, axis), _positions(target.shape[axis], axis, count + 1, target)
        )
        if adds:
            part = _choose(mine, aten.unsqueeze.default(source, axis), 0)
            return aten.add.Tensor(target, aten.sum.dim_IntList(part, [axis + 1]))
        last = aten.amax.default(_choose(mine, _positions(size, axis + 1, count + 1, target), -1), [axis + 1])
        if isinstance(source, Tensor):
            source = aten.gather.default(source, axis, aten.clamp_min.default(last, 0))
        return _choose(aten.ge.Scalar(last, 0), source, target)

    return rule


def _index_add(node: fx.Node) -> Callable[..., Any] | None:
    """index_add: one list of positions along an axis serves all other axes; None where that axis holds the rows."""
    if dims(node)[int(arguments(node)[1]) % len(dims(node))] is None:
        return None

    def rule(target: Tensor, axis: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        axis, count = axis % target.dim(), target.dim()
        mine = aten.eq.Tensor(
            aten.view.default(index, [index.shape[0] if place == axis + 1 else 1 for place in range(count + 1)]),
            _positions(target.shape[axis], axis, count + 1, target),
        )
        part = aten.sum.dim_IntList(_choose(mine, aten.unsqueeze.default(source, axis), 0), [axis + 1])
        return aten.add.Tensor(target, part if alpha == 1 else aten.mul.Tensor(part, alpha))

    return rule


def _index_put(node: fx.Node) -> Callable[..., Any] | None:
    """index_put: target[:, numbers] = values, where integer tensors index adjacent axes.

    Of several values for one element the last is taken; all are added where it accumulates.
    None for a mask, for axes that are not adjacent, for the row axis, and where the indices differ from row to row.
    """
    target, indices = arguments(node)[:2]
    chosen = [axis for axis, numbers in enumerate(indices) if numbers is not None]
    if chosen != list(range(chosen[0], chosen[0] + len(chosen))) or any(
        dims(target)[axis] is None
        or indices[axis].meta["val"].dtype == torch.bool
        or has_rows(indices[axis].meta["val"])
        for axis in chosen
    ):
        return None

    def rule(target: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
        lists = torch.broadcast_tensors(*(numbers for numbers in indices if numbers is not None))
        first, wide, count = chosen[0], lists[0].dim(), target.dim()
        sources = lists[0].numel()
        # [before, numbers, behind] -> [before, 1 for each chosen axis, behind, all numbers]
        shape = [*target.shape[:first], *lists[0].shape, *target.shape[first + len(chosen) :]]
        values = aten.expand.default(values, shape)
        order = [place for place in range(len(shape)) if not first <= place < first + wide]
        values = aten.permute.default(values, [*order, *range(first, first + wide)])
        spread = [1 if axis in chosen else size for axis, size in enumerate(target.shape)]
        values = reshaped(values, [*spread, sources])
        mine = None
        for axis, numbers in zip(chosen, lists, strict=True):
            size = target.shape[axis]
            numbers = reshaped(numbers, [*[1] * count, sources])
            numbers = _choose(aten.lt.Scalar(numbers, 0), aten.add.Scalar(numbers, size), numbers)
            own = aten.eq.Tensor(numbers, _positions(size, axis, count + 1, target))
            mine = own if mine is None else aten.logical_and.default(mine, own)
        assert mine is not None
        if accumulate:
            return aten.add.Tensor(target, aten.sum.dim_IntList(_choose(mine, values, 0), [count]))
        last = aten.amax.default(_choose(mine, _positions(sources, count, count + 1, target), -1), [count], True)
        picked = aten.gather.default(
            aten.expand.default(values, [*target.shape, sources]),
            count,
            aten.expand.default(aten.clamp_min.default(last, 0), [*target.shape, 1]),
        )
        return _choose(aten.ge.Scalar(aten.squeeze.dim(last, count), 0), aten.squeeze.dim(picked, count), target)

    return rule


# ---- order


def _sort(node: fx.Node) -> Callable[..., Any] | None:
    """sort: the elements in order, and their positions. None for the row axis, and for long axes.

    Where equal elements keep their order, an element's rank is the number of elements before it; NaN counts as the
    largest. Otherwise they come in the order of torch.
    """
    source = arguments(node)[0]
    count = len(dims(source))
    options = list(arguments(node)[1:])
    if isinstance(node.kwargs.get("stable"), bool):
        options = [node.kwargs.get("dim", -1), node.kwargs.get("descending", False)]
    axis = int(options[0] if options else -1) % max(count, 1)
    descending = bool(options[1]) if len(options) > 1 else False
    if not count or dims(source)[axis] is None or (dims(source)[axis] or 0) > MAX_SORT_LENGTH:
        return None
    if not node.kwargs.get("stable"):
        places = torch.ops.leporello.descending.default if descending else torch.ops.leporello.ascending.default
        return lambda value, *_, **options: _taken(value, axis, places)

    def rule(value: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
        size = value.shape[axis]
        one, other = aten.unsqueeze.default(value, axis + 1), aten.unsqueeze.default(value, axis)
        # [..., mine, theirs, ...]: whether theirs stands before mine
        mine, theirs = _positions(size, axis, count + 1, value), _positions(size, axis + 1, count + 1, value)
        before = aten.gt.Tensor(other, one) if descending else aten.lt.Tensor(other, one)
        equal = aten.eq.Tensor(other, one)
        if value.is_floating_point():
            mine_is, theirs_is = aten.isnan.default(one), aten.isnan.default(other)
            only = (theirs_is, mine_is) if descending else (mine_is, theirs_is)
            before = aten.logical_or.default(
                before, aten.logical_and.default(only[0], aten.logical_not.default(only[1]))
            )
            equal = aten.logical_or.default(equal, aten.logical_and.default(mine_is, theirs_is))
        before = aten.logical_or.default(before, aten.logical_and.default(equal, aten.lt.Tensor(theirs, mine)))
        rank = aten.sum.dim_IntList(_choose(before, 1, 0), [axis + 1])
        here = aten.eq.Tensor(aten.unsqueeze.default(rank, axis), _positions(size, axis, count + 1, value))
        index = aten.sum.dim_IntList(_choose(here, _positions(size, axis + 1, count + 1, value), 0), [axis + 1])
        return aten.gather.default(value, axis, index), index

    return rule


# The positions of the first elements of the last axis, in the order of torch.topk: of equal elements those that torch
# takes on the CPU, in its order. Kernels follow the same steps.
@torch.library.custom_op("leporello::largest", mutates_args=())
def _largest(value: Tensor, count: int) -> Tensor:
    return value.topk(count, -1).indices


@torch.library.custom_op("leporello::smallest", mutates_args=())
def _smallest(value: Tensor, count: int) -> Tensor:
    return value.topk(count, -1, largest=False).indices


@_largest.register_fake
@_smallest.register_fake
def _(value: Tensor, count: int) -> Tensor:
    return value.new_empty((*value.shape[:-1], count), dtype=torch.int64)


# The positions of all elements of the last axis, in the order of torch.sort.
@torch.library.custom_op("leporello::ascending", mutates_args=())
def _ascending(value: Tensor) -> Tensor:
    return value.sort(-1).indices


@torch.library.custom_op("leporello::descending", mutates_args=())
def _descending(value: Tensor) -> Tensor:
    return value.sort(-1, descending=True).indices


@_ascending.register_fake
@_descending.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value, dtype=torch.int64)


def _topk(node: fx.Node) -> Callable[..., Any] | None:
    """topk, along an axis of features; None along the rows, and where the result is not wanted in order."""
    source, _, *options = arguments(node)
    axis, largest, in_order = tuple(options) + (-1, True, True)[len(options) :]
    count = len(dims(source))
    axis = int(axis) % max(count, 1)
    if not count or not in_order or dims(source)[axis] is None or (dims(source)[axis] or 0) > MAX_SORT_LENGTH:
        return None
    places = torch.ops.leporello.largest.default if largest else torch.ops.leporello.smallest.default
    return lambda value, few, *_: _taken(value, axis, lambda last: places(last, few))


def _taken(value: Tensor, axis: int, places: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The elements along an axis at the positions that a function of the last axis gives, and these positions."""
    last = value.dim() - 1
    index = aten.transpose.int(places(aten.transpose.int(value, axis, last)), axis, last)
    return aten.gather.default(value, axis, index), index


# ---- known positions


def _roll(node: fx.Node) -> Callable[..., Any] | None:
    """roll: the end is put in front of the beginning; None along the row axis, and where no axis is given."""
    axes = arguments(node)[2] if len(arguments(node)) > 2 else []
    if not axes or any(dims(node)[axis] is None for axis in axes):
        return None

    def rule(value: Tensor, shifts: Any, axes: Any) -> Tensor:
        for shift, axis in zip(shifts, axes, strict=True):
            size = value.shape[axis]
            cut = size - shift % size if size else 0
            if cut != size:
                ends = aten.slice.Tensor(value, axis, cut, size), aten.slice.Tensor(value, axis, 0, cut)
                value = aten.cat.default(list(ends), axis)
        return value

    return rule


def _unguarded(node: fx.Node) -> Callable[..., Any]:
    """The operator with bounds checks that an unsafe one stands for."""
    return {"_unsafe_index": aten.index.Tensor, "_unsafe_index_put": aten.index_put.default}[short(node)]


SCATTER_AND_SORT: dict[str, DecompositionRule] = {
    "scatter": _scatter,
    "scatter_add": _scatter,
    "index_add": _index_add,
    "index_put": _index_put,
    "sort": _sort,
    "topk": _topk,
    "roll": _roll,
    "_unsafe_index": _unguarded,
    "_unsafe_index_put": _unguarded,
}
