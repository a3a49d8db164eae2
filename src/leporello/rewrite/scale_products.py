"""The rewrite `scale_products`: x (w s) becomes (x w) s, where w is a matrix that is stored in a narrower type.

A quantised matrix is `stored.to(float) * scale`, with one scale for each output. The product reads the stored numbers
as they are, and its result is scaled, so that the matrix never exists in the wider type. Views of the matrix, such as a
transpose or the rows of one gate, become views of the stored numbers and of the scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import NARROWER, ValueClass, classes

aten = torch.ops.aten
# product -> the position of its left factor among the arguments
PRODUCTS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}
VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.slice.Tensor,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.select.int,
}


def scale_products(loop: Loop) -> Loop | None:
    """The Loop with stored matrices in its products; None where there is none."""
    if not any(_is_cast(node) for node in loop.nodes):
        return None
    draft = Draft(loop)
    fixed = {draft.copies[node] for node, kind in classes(loop).items() if kind is ValueClass.FIXED}
    for node in [node for node in draft.graph.nodes if node.target in PRODUCTS and not node.kwargs]:
        first = PRODUCTS[node.target]
        for place in (first + 1, first):
            if arguments(node)[place] in fixed:
                _replace(draft, node, first, place)
                break
    return draft.close()


def _is_cast(node: fx.Node) -> bool:
    """Whether it converts a matrix from a narrower type."""
    return (
        node.target is aten._to_copy.default
        and set(node.kwargs) <= {"dtype"}
        and node.meta["val"].dtype == torch.float32
        and node.all_input_nodes[0].meta["val"].dtype in NARROWER
    )


def _replace(draft: Draft, node: fx.Node, first: int, place: int) -> None:
    """Replace a product, if its factor at that place is a view of a stored matrix, scaled or not."""
    views: list[fx.Node] = []
    matrix = arguments(node)[place]
    while matrix.target in VIEWS:
        views.append(matrix)
        matrix = arguments(matrix)[0]
    scale: fx.Node | None = None
    if matrix.target is aten.mul.Tensor and isinstance(arguments(matrix)[1], fx.Node):
        matrix, scale = arguments(matrix)[:2]
        if scale.meta["val"].dim() != matrix.meta["val"].dim():
            return
    if not _is_cast(matrix):
        return
    inner = -2 if place == first + 1 else -1
    with draft.before(node):
        stored = _viewed(draft, arguments(matrix)[0], views)
        scales = None if scale is None else _viewed(draft, scale, views)
        if scales is not None and scales.meta["val"].shape[inner] != 1:
            return
        factor = draft.call(aten._to_copy.default, stored, dtype=torch.float32)
        factors = [factor if at == place else arguments(node)[at] for at in (first, first + 1)]
        product = draft.call(aten.bmm.default if node.meta["val"].dim() == 3 else aten.mm.default, *factors)
        if scales is not None:
            product = draft.call(aten.mul.Tensor, product, scales)
        if first:
            product = draft.call(aten.add.Tensor, arguments(node)[0], product)
        product.meta["line"] = node.meta.get("line")
    if node.meta.get("label"):
        product.meta["label"] = node.meta["label"]
    draft.replace(node, product)


def _viewed(draft: Draft, value: fx.Node, views: list[fx.Node]) -> fx.Node:
    """The same views, innermost last in the list, of another value; a part along an axis of size 1 is all of it."""
    for view in reversed(views):
        operands: tuple[Any, ...] = arguments(view)[1:]
        if view.target is aten.slice.Tensor and value.meta["val"].shape[operands[0] if operands else 0] == 1:
            continue
        if view.target is aten.select.int and value.meta["val"].shape[operands[0]] == 1:
            operands = (operands[0], 0)
        target: Any = view.target
        value = draft.call(target, value, *operands)
    return value
