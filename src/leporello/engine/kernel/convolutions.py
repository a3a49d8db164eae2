"""Convolutions over features as sums of products over windows.

Fine for the small ones of a step; those of more than MOST products a row are left to torch's own, which are faster.
Knows ATen's operators; knows nothing of graphs or memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.engine.kernel.composites import reshaped
from leporello.engine.kernel.shapes import dims, row_axis
from leporello.loop.graph import arguments

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
