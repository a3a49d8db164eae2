"""Composite operators with a rule of our own: what each is made of. Rules are tables.

A rule takes the operator and gives a function of its arguments, None where it does not fit. Knows ATen's operators;
knows nothing of graphs or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.kernel.shapes import row_axis, short
from leporello.loop.graph import arguments

aten = torch.ops.aten


def reshaped(value: Tensor, shape: Sequence[Any]) -> Tensor:
    """The same values in another shape, however they lie in memory."""
    found: Tensor = aten.view.default(aten.clone.default(value, memory_format=torch.contiguous_format), list(shape))
    return found


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
        inner = gradient if weight is None else aten.mul.Tensor(gradient, weight)
        return _through_norm(inner, value, mean, rate, axes), None, None

    return rule


def _group_normed(node: fx.Node) -> Callable[..., Any] | None:
    if row_axis(arguments(node)[0]) != 0:
        return None

    def rule(
        value: Tensor, weight: Any, bias: Any, rows: Any, channels: int, others: int, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        own = reshaped(value, [value.shape[0], groups, channels // groups * others])
        mean = _averaged(own, [2])
        away = aten.sub.Tensor(own, mean)
        rate = aten.rsqrt.default(aten.add.Tensor(_averaged(aten.mul.Tensor(away, away), [2]), eps))
        found = reshaped(aten.mul.Tensor(away, rate), value.shape)
        each = [1, channels, *[1] * (value.dim() - 2)]
        found = found if weight is None else aten.mul.Tensor(found, aten.view.default(weight, each))
        found = found if bias is None else aten.add.Tensor(found, aten.view.default(bias, each))
        return found, aten.squeeze.dim(mean, 2), aten.squeeze.dim(rate, 2)

    return rule


def _group_normed_backward(node: fx.Node) -> Callable[..., Any] | None:
    mask: Any = node.args[-1]
    if mask[1] or mask[2] or row_axis(arguments(node)[0]) != 0:
        return None

    def rule(
        gradient: Tensor, value: Tensor, mean: Tensor, rate: Tensor, weight: Any, rows: Any, channels: int, others: int,
        groups: int, mask: Any,
    ) -> tuple[Tensor, None, None]:  # fmt: skip
        shape = [value.shape[0], groups, channels // groups * others]
        each = [1, channels, *[1] * (value.dim() - 2)]
        inner = gradient if weight is None else aten.mul.Tensor(gradient, aten.view.default(weight, each))
        mean, rate = aten.unsqueeze.default(mean, 2), aten.unsqueeze.default(rate, 2)
        found = _through_norm(reshaped(inner, shape), reshaped(value, shape), mean, rate, [2])
        return reshaped(found, value.shape), None, None

    return rule


def _through_norm(gradient: Tensor, value: Tensor, mean: Tensor, rate: Tensor, axes: list[int]) -> Tensor:
    """The gradient of what was normed, from that of the normed."""
    normed = aten.mul.Tensor(aten.sub.Tensor(value, mean), rate)
    own = aten.sub.Tensor(gradient, _averaged(gradient, axes))
    along = aten.mul.Tensor(normed, _averaged(aten.mul.Tensor(gradient, normed), axes))
    found: Tensor = aten.mul.Tensor(rate, aten.sub.Tensor(own, along))
    return found


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
        found = aten.div.Tensor(squares, float(max(count - (1 if correction is None else correction), 0)))
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


def _trilinear(node: fx.Node) -> Callable[..., Any]:
    """Three values multiplied, each with axes of its own, and summed."""

    def rule(
        one: Tensor, two: Tensor, three: Tensor, first: Any, second: Any, third: Any, summed: Any, unrolled: int = 1
    ) -> Tensor:
        found = None
        for value, axes in ((one, first), (two, second), (three, third)):
            for axis in axes:
                value = aten.unsqueeze.default(value, axis)
            found = value if found is None else aten.mul.Tensor(found, value)
        return aten.sum.dim_IntList(found, summed)

    return rule


COMPOSITES: dict[str, Callable[[fx.Node], Callable[..., Any] | None]] = {
    "addmm": _added,
    "baddbmm": _added,
    "bmm": _of_rows,
    "_trilinear": _trilinear,
    "mean": _mean,
    "native_layer_norm": _normed,
    "native_layer_norm_backward": _normed_backward,
    "native_group_norm": _group_normed,
    "native_group_norm_backward": _group_normed_backward,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "max": _extreme,
    "min": _extreme,
    "var": _varied,
    "var_mean": _varied,
}
