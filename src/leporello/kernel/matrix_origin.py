"""The invariant that a matrix of a product is a view of: transposed, the same one for all heads, or stored narrower."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from leporello.kernel.lowering_context import short
from leporello.loop.graph import arguments
from leporello.loop.value_classes import is_stored_narrower

MatrixAxes = tuple[int | None, int, int]  # head, inner and outer axis of a matrix; no head where all share one


def origin_of(matrix: fx.Node, axes: MatrixAxes) -> tuple[fx.Node, MatrixAxes]:
    """The value that a matrix is a view of, and its axes there; the matrix itself where it is none.

    axes   of the matrix; they may count from the end
    """
    count = matrix.meta["val"].dim()
    axes = _mapped(axes, lambda axis: axis % count)
    while matrix.op == "call_function" and short(matrix) in _AXES_BEFORE:
        before = _AXES_BEFORE[short(matrix)](matrix, axes)
        if before is None:
            break
        matrix, axes = arguments(matrix)[0], before
    return matrix, axes


def _mapped(axes: MatrixAxes, function: Callable[[int], int]) -> MatrixAxes:
    head, inner, outer = axes
    return None if head is None else function(head), function(inner), function(outer)


def _permuted(node: fx.Node, axes: MatrixAxes) -> MatrixAxes | None:
    order = list(range(node.meta["val"].dim()))
    if short(node) == "permute":
        order = [axis % len(order) for axis in arguments(node)[1]]
    else:
        one, other = arguments(node)[1:3] if short(node) == "transpose" else (0, -1)
        order[one], order[other] = order[other], order[one]
    return _mapped(axes, order.__getitem__)


def _expanded(node: fx.Node, axes: MatrixAxes) -> MatrixAxes | None:
    """Where the heads alone are copies."""
    shape, before = node.meta["val"].shape, arguments(node)[0].meta["val"].shape
    if len(shape) != len(before):
        return None
    changed = {axis for axis, (size, old) in enumerate(zip(shape, before, strict=True)) if str(size) != str(old)}
    head, inner, outer = axes
    return (None if head in changed else head, inner, outer) if changed <= {head} else None


def _unsqueezed(node: fx.Node, axes: MatrixAxes) -> MatrixAxes | None:
    """Where the new axis is none of the matrix: that of heads which share it."""
    new = arguments(node)[1] % node.meta["val"].dim()
    return None if new in axes else _mapped(axes, lambda axis: axis - (axis > new))


# From the axes of a view to those of its argument; None where it cannot be looked through.
_AXES_BEFORE: dict[str, Callable[[fx.Node, MatrixAxes], MatrixAxes | None]] = {
    "permute": _permuted,
    "transpose": _permuted,
    "t": _permuted,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "_to_copy": lambda node, axes: axes if is_stored_narrower(node) else None,
}
