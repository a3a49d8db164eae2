"""Composite operators by rules of our own: products with a bias, norms, softmax, variances, convolutions.

A rule takes the operator and gives a function that computes it from others, on the operator's arguments; None where it
does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.kernel.lowering_context import dims, row_axis, short
from leporello.loop.graph import arguments

aten = torch.ops.aten

DecompositionRule = Callable[[fx.Node], Callable[..., Any] | None]


def reshaped(value: Tensor, shape: Sequence[Any]) -> Tensor:
    """The same elements in another shape, whatever the strides; in a kernel neither view nor copy costs anything."""
    contiguous = aten.clone.default(value, memory_format=torch.contiguous_format)
    view: Tensor = aten.view.default(contiguous, list(shape))
    return view


def _add_product(node: fx.Node) -> Callable[..., Any]:
    """addmm, baddbmm: b + x W as a product and a sum."""
    product = aten.mm.default if short(node) == "addmm" else aten.bmm.default

    def rule(bias: Tensor, one: Tensor, other: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
        value = product(one, other)
        value = value if alpha == 1 else aten.mul.Tensor(value, alpha)
        return aten.add.Tensor(value, bias if beta == 1 else aten.mul.Tensor(bias, beta))

    return rule


def _bmm_of_rows(node: fx.Node) -> Callable[..., Any] | None:
    """bmm along the row axis, as a sum of products: a `Product` of a kernel needs an invariant matrix."""
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


def _mean_over(value: Tensor, axes: Any) -> Tensor:
    """The mean over some axes, which stay with size 1."""
    count = 1
    for axis in axes:
        count *= value.shape[axis]
    return aten.mul.Tensor(aten.sum.dim_IntList(value, axes, True), 1.0 / count)


def _layer_norm(node: fx.Node) -> Callable[..., Any]:
    def rule(value: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        axes = list(range(value.dim() - len(shape), value.dim()))
        mean = _mean_over(value, axes)
        centred = aten.sub.Tensor(value, mean)
        rate = aten.rsqrt.default(aten.add.Tensor(_mean_over(aten.mul.Tensor(centred, centred), axes), eps))
        normed = aten.mul.Tensor(centred, rate)
        normed = normed if weight is None else aten.mul.Tensor(normed, weight)
        normed = normed if bias is None else aten.add.Tensor(normed, bias)
        kinds = [
            one.dtype for one in node.meta["val"]
        ]  # of 16 bits torch has mean and rate in float32, on some devices
        return _in_type(normed, kinds[0]), _in_type(mean, kinds[1]), _in_type(rate, kinds[2])

    return rule


def _in_type(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value if value.dtype == dtype else aten._to_copy.default(value, dtype=dtype)


def _layer_norm_backward(node: fx.Node) -> Callable[..., Any] | None:
    """The gradient of the argument alone; None where those of gain and shift, sums over rows, are asked for."""
    mask: Any = node.args[-1]
    if mask[1] or mask[2]:
        return None

    def rule(
        gradient: Tensor, value: Tensor, shape: Any, mean: Tensor, rate: Tensor, weight: Any, bias: Any, mask: Any
    ) -> tuple[Tensor, None, None]:
        axes = list(range(value.dim() - len(shape), value.dim()))
        inner = gradient if weight is None else aten.mul.Tensor(gradient, weight)
        return _in_type(_gradient_through_norm(inner, value, mean, rate, axes), gradient.dtype), None, None

    return rule


def _group_norm(node: fx.Node) -> Callable[..., Any] | None:
    if row_axis(arguments(node)[0]) != 0:
        return None

    def rule(
        value: Tensor, weight: Any, bias: Any, rows: Any, channels: int, others: int, groups: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        grouped = reshaped(value, [value.shape[0], groups, channels // groups * others])
        mean = _mean_over(grouped, [2])
        centred = aten.sub.Tensor(grouped, mean)
        rate = aten.rsqrt.default(aten.add.Tensor(_mean_over(aten.mul.Tensor(centred, centred), [2]), eps))
        normed = reshaped(aten.mul.Tensor(centred, rate), value.shape)
        per_channel = [1, channels, *[1] * (value.dim() - 2)]
        normed = normed if weight is None else aten.mul.Tensor(normed, aten.view.default(weight, per_channel))
        normed = normed if bias is None else aten.add.Tensor(normed, aten.view.default(bias, per_channel))
        return normed, aten.squeeze.dim(mean, 2), aten.squeeze.dim(rate, 2)

    return rule


def _group_norm_backward(node: fx.Node) -> Callable[..., Any] | None:
    mask: Any = node.args[-1]
    if mask[1] or mask[2] or row_axis(arguments(node)[0]) != 0:
        return None

    def rule(
        gradient: Tensor, value: Tensor, mean: Tensor, rate: Tensor, weight: Any, rows: Any, channels: int, others: int,
        groups: int, mask: Any,
    ) -> tuple[Tensor, None, None]:  # fmt: skip
        shape = [value.shape[0], groups, channels // groups * others]
        per_channel = [1, channels, *[1] * (value.dim() - 2)]
        inner = gradient if weight is None else aten.mul.Tensor(gradient, aten.view.default(weight, per_channel))
        mean, rate = aten.unsqueeze.default(mean, 2), aten.unsqueeze.default(rate, 2)
        grouped = _gradient_through_norm(reshaped(inner, shape), reshaped(value, shape), mean, rate, [2])
        return reshaped(grouped, value.shape), None, None

    return rule


def _gradient_through_norm(gradient: Tensor, value: Tensor, mean: Tensor, rate: Tensor, axes: list[int]) -> Tensor:
    """The gradient of a norm's argument, from that of its result before gain and shift.

    rate   1 / sqrt(variance + eps); like the mean, with size 1 along the normed axes
    """
    normed = aten.mul.Tensor(aten.sub.Tensor(value, mean), rate)
    centred = aten.sub.Tensor(gradient, _mean_over(gradient, axes))
    along = aten.mul.Tensor(normed, _mean_over(aten.mul.Tensor(gradient, normed), axes))
    result: Tensor = aten.mul.Tensor(rate, aten.sub.Tensor(centred, along))
    return result


def _softmax(node: fx.Node) -> Callable[..., Any]:
    logs = short(node) == "_log_softmax"

    def rule(value: Tensor, axis: int, half: bool) -> Tensor:
        shifted = aten.sub.Tensor(value, aten.amax.default(value, [axis], True))
        powers = aten.exp.default(shifted)
        total = aten.sum.dim_IntList(powers, [axis], True)
        return aten.sub.Tensor(shifted, aten.log.default(total)) if logs else aten.div.Tensor(powers, total)

    return rule


def _softmax_backward(node: fx.Node) -> Callable[..., Any]:
    logs = short(node) == "_log_softmax_backward_data"

    def rule(gradient: Tensor, result: Tensor, axis: int, dtype: Any) -> Tensor:
        if logs:
            total = aten.sum.dim_IntList(gradient, [axis], True)
            return aten.sub.Tensor(gradient, aten.mul.Tensor(aten.exp.default(result), total))
        inner = aten.mul.Tensor(gradient, result)
        return aten.sub.Tensor(inner, aten.mul.Tensor(result, aten.sum.dim_IntList(inner, [axis], True)))

    return rule


def _variance(node: fx.Node) -> Callable[..., Any]:
    both = short(node) == "var_mean"

    def rule(value: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
        axes = list(range(value.dim())) if dim is None else [axis % value.dim() for axis in dim]
        count = 1
        for axis in axes:
            count *= value.shape[axis]
        mean = _mean_over(value, axes)
        centred = aten.sub.Tensor(value, mean)
        squares = aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), axes, keepdim)
        variance = aten.div.Tensor(squares, float(max(count - (1 if correction is None else correction), 0)))
        if not both:
            return variance
        return variance, mean if keepdim else aten.squeeze.dims(mean, axes)

    return rule


def _extreme(node: fx.Node) -> Callable[..., Any] | None:
    """max, min along an axis: the largest or smallest element, and its position; None for their other overloads."""
    if len(node.args) < 2 or not isinstance(node.args[1], int):
        return None
    largest = short(node) == "max"
    value, position = (aten.amax, aten.argmax) if largest else (aten.amin, aten.argmin)

    def rule(source: Tensor, axis: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return value.default(source, [axis], keepdim), position.default(source, axis, keepdim)

    return rule


def _trilinear(node: fx.Node) -> Callable[..., Any]:
    """_trilinear: three values, each given the axes of size 1 that ATen lists, are multiplied and summed."""

    def rule(
        one: Tensor, two: Tensor, three: Tensor, first: Any, second: Any, third: Any, summed: Any, unrolled: int = 1
    ) -> Tensor:
        product = None
        for value, axes in ((one, first), (two, second), (three, third)):
            for axis in axes:
                value = aten.unsqueeze.default(value, axis)
            product = value if product is None else aten.mul.Tensor(product, value)
        return aten.sum.dim_IntList(product, summed)

    return rule


COMPOSITES: dict[str, DecompositionRule] = {
    "addmm": _add_product,
    "baddbmm": _add_product,
    "bmm": _bmm_of_rows,
    "_trilinear": _trilinear,
    "mean": _mean,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "max": _extreme,
    "min": _extreme,
    "var": _variance,
    "var_mean": _variance,
}


# ---- convolutions over features, as sums of products over windows


MAX_CONVOLUTION_PRODUCTS = 1 << 16  # of one row; kernels refuse larger ones, which torch computes faster


def _is_small(value: fx.Node, weight: fx.Node, result: fx.Node) -> bool:
    """Whether a convolution has rows as its first axis, one weight for all rows, and few products."""
    if row_axis(value) != 0 or row_axis(weight) is not None or row_axis(result) != 0:
        return False
    sizes = [size or 1 for size in (*dims(result), *dims(weight)[1:])]
    return math.prod(sizes) <= MAX_CONVOLUTION_PRODUCTS


def _windows(value: Tensor, sizes: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """[rows, channels, axes] -> [rows, channels, positions of the windows, positions within a window]."""
    for place, (size, step, apart) in enumerate(zip(sizes, stride, dilation, strict=True)):
        value = aten.unfold.default(value, 2 + place, (size - 1) * apart + 1, step)
        value = aten.slice.Tensor(value, value.dim() - 1, 0, value.shape[-1], apart)
    return value


def _sum_over_windows(value: Tensor, weight: Tensor, stride: Any, dilation: Any, groups: int) -> Tensor:
    """[rows, channels in, axes] with [channels out, channels in of a group, window] -> [rows, channels out, axes]."""
    count, rows = weight.dim() - 2, value.shape[0]
    out, channels = weight.shape[0], weight.shape[1]  # channels of one group
    windows = _windows(value, weight.shape[2:], stride, dilation)
    places, within = list(windows.shape[2 : 2 + count]), list(weight.shape[2:])
    # [rows, group, 1, channels in, places, within] with [group, channels out, channels in, 1, within]
    windows = reshaped(windows, [rows, groups, 1, channels, *places, *within])
    weight = aten.view.default(weight, [1, groups, out // groups, channels, *[1] * count, *within])
    axes = [3, *range(4 + count, 4 + 2 * count)]
    summed = aten.sum.dim_IntList(aten.mul.Tensor(windows, weight), axes)
    return reshaped(summed, [rows, out, *places])


def _edges(before: Sequence[int], behind: Sequence[int]) -> list[int]:
    """Widths of borders in the order of `constant_pad_nd`: the last axis first, before and behind of each."""
    return [width for both in reversed(list(zip(before, behind, strict=True))) for width in both]


def _convolved(value: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    padded = aten.constant_pad_nd.default(value, _edges(padding, padding))
    return _sum_over_windows(padded, weight, stride, dilation, groups)


def _transposed(
    value: Tensor, weight: Tensor, sizes: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """What a convolution of this weight passes back: [rows, channels out, ...] -> [rows, channels in, *sizes].

    It is a convolution of the value, with zeros between its elements where the stride was more than one, with the
    windows reversed.
    """
    count = weight.dim() - 2
    for place, step in enumerate(stride):
        axis = 2 + place
        if step > 1:
            size = value.shape[axis]
            whole = [*value.shape[:axis], (size - 1) * step + 1, *value.shape[axis + 1 :]]
            room = aten.full.default(whole, 0, dtype=value.dtype, device=value.device)
            value = aten.slice_scatter.default(room, value, axis, 0, whole[axis], step)
    reach = [(size - 1) * apart for size, apart in zip(weight.shape[2:], dilation, strict=True)]
    before = [r - p for r, p in zip(reach, padding, strict=True)]
    behind = [wanted + r - b - size for wanted, r, b, size in zip(sizes, reach, before, value.shape[2:], strict=True)]
    value = aten.constant_pad_nd.default(value, _edges(before, behind))
    out, channels, window = weight.shape[0], weight.shape[1], list(weight.shape[2:])
    weight = aten.flip.default(weight, list(range(2, 2 + count)))
    weight = reshaped(weight, [groups, out // groups, channels, *window])
    weight = reshaped(aten.transpose.int(weight, 1, 2), [groups * channels, out // groups, *window])
    return _sum_over_windows(value, weight, [1] * count, dilation, groups)


def _convolution(node: fx.Node) -> Callable[..., Any] | None:
    value, weight, _, stride, padding, dilation, transposed, _, groups = arguments(node)
    if not _is_small(value, weight, node):
        return None
    sizes = [size or 1 for size in dims(node)[2:]]

    def rule(value: Tensor, weight: Tensor, bias: Any, *_: Any) -> Tensor:
        if transposed:
            result = _transposed(value, weight, sizes, stride, padding, dilation, groups)
        else:
            result = _convolved(value, weight, stride, padding, dilation, groups)
        count = weight.dim() - 2
        return result if bias is None else aten.add.Tensor(result, aten.view.default(bias, [-1, *[1] * count]))

    return rule


def _convolution_backward(node: fx.Node) -> Callable[..., Any] | None:
    """The gradient of the argument alone; None where those of weight and bias are wanted, sums over rows."""
    gradient, value, weight, _, stride, padding, dilation, transposed, _, groups, mask = arguments(node)
    if mask[1] or mask[2] or not _is_small(gradient, weight, value):
        return None

    def rule(gradient: Tensor, value: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        if transposed:
            return _convolved(gradient, weight, stride, padding, dilation, groups), None, None
        return _transposed(gradient, weight, value.shape[2:], stride, padding, dilation, groups), None, None

    return rule


CONVOLUTIONS: dict[str, DecompositionRule] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
