"""Composite operators with a rule of our own: what each is made of. Rules are tables.

A rule takes the operator and gives a function of its arguments, None where it does not fit. Knows ATen's operators;
knows nothing of graphs or memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.kernel.fx_nodes import dims, row_axis, short
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


# ---- convolutions over features as sums of products over windows; large ones are left to torch, which is faster

aten = torch.ops.aten

MOST = 1 << 16


def _is_small(value: fx.Node, weight: fx.Node, given: fx.Node) -> bool:
    """Whether rows stand first, the weight is one for all rows, and the products are few."""
    if row_axis(value) != 0 or row_axis(weight) is not None or row_axis(given) != 0:
        return False
    sizes = [size or 1 for size in (*dims(given), *dims(weight)[1:])]
    return math.prod(sizes) <= MOST


def _windows(value: Tensor, sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """[..., axes] -> [..., places of the windows, places within a window]."""
    for place, (size, step, apart) in enumerate(zip(sizes, stride, dilation, strict=True)):
        value = aten.unfold.default(value, 2 + place, (size - 1) * apart + 1, step)
        value = aten.slice.Tensor(value, value.dim() - 1, 0, value.shape[-1], apart)
    return value


def _of_windows(value: Tensor, weight: Tensor, stride: Any, dilation: Any, groups: int) -> Tensor:
    """[rows, channels in, axes] with [channels out, channels in of a group, window] -> [rows, channels out, axes]."""
    count, rows = weight.dim() - 2, value.shape[0]
    out, own = weight.shape[0], weight.shape[1]
    found = _windows(value, weight.shape[2:], stride, dilation)
    places, within = list(found.shape[2 : 2 + count]), list(weight.shape[2:])
    # [rows, group, 1, channels in, places, within] with [group, channels out, channels in, 1, within]
    found = reshaped(found, [rows, groups, 1, own, *places, *within])
    weight = aten.view.default(weight, [1, groups, out // groups, own, *[1] * count, *within])
    axes = [3, *range(4 + count, 4 + 2 * count)]
    summed = aten.sum.dim_IntList(aten.mul.Tensor(found, weight), axes)
    return reshaped(summed, [rows, out, *places])


def _edges(before: Sequence[int], behind: Sequence[int]) -> list[int]:
    """Widths of borders as padding takes them, the last axis first."""
    return [width for both in reversed(list(zip(before, behind, strict=True))) for width in both]


def _convolved(node: fx.Node) -> Callable[..., Any] | None:
    value, weight, _, _, _, _, transposed, _, _ = arguments(node)
    if transposed or not _is_small(value, weight, node):
        return None

    def rule(value: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> Tensor:
        found = _of_windows(
            aten.constant_pad_nd.default(value, _edges(padding, padding)), weight, stride, dilation, rest[-1]
        )
        count = weight.dim() - 2
        return found if bias is None else aten.add.Tensor(found, aten.view.default(bias, [-1, *[1] * count]))

    return rule


def _convolved_backward(node: fx.Node) -> Callable[..., Any] | None:
    """The gradient of what was convolved; weights get theirs outside, where rows may be summed.

    A convolution of the gradient, with noughts between its values where the stride was more than one, and the windows
    turned round.
    """
    gradient, value, weight, *_, transposed, _, _, mask = arguments(node)
    if transposed or mask[1] or mask[2] or not _is_small(gradient, weight, value):
        return None

    def rule(
        gradient: Tensor,
        value: Tensor,
        weight: Tensor,
        biases: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        *rest: Any,
    ) -> tuple[Tensor, None, None]:
        count, groups = weight.dim() - 2, rest[2]
        for place, step in enumerate(stride):
            axis = 2 + place
            if step > 1:
                size = gradient.shape[axis]
                whole = [*gradient.shape[:axis], (size - 1) * step + 1, *gradient.shape[axis + 1 :]]
                room = aten.full.default(whole, 0, dtype=gradient.dtype, device=gradient.device)
                gradient = aten.slice_scatter.default(room, gradient, axis, 0, whole[axis], step)
        reach = [(size - 1) * apart for size, apart in zip(weight.shape[2:], dilation, strict=True)]
        before = [r - p for r, p in zip(reach, padding, strict=True)]
        behind = [
            wanted + r - b - size
            for wanted, r, b, size in zip(value.shape[2:], reach, before, gradient.shape[2:], strict=True)
        ]
        gradient = aten.constant_pad_nd.default(gradient, _edges(before, behind))
        out, own, window = weight.shape[0], weight.shape[1], list(weight.shape[2:])
        weight = aten.flip.default(weight, list(range(2, 2 + count)))
        weight = reshaped(weight, [groups, out // groups, own, *window])
        weight = reshaped(aten.transpose.int(weight, 1, 2), [groups * own, out // groups, *window])
        return _of_windows(gradient, weight, [1] * count, dilation, groups), None, None

    return rule


CONVOLUTIONS: dict[str, Callable[[fx.Node], Callable[..., Any] | None]] = {
    "convolution": _convolved,
    "convolution_backward": _convolved_backward,
}
