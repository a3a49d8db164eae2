"""`part`: products and convolutions of concatenated values, taken apart.

A cell that concatenates input and state then has the same inside as one with two products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import ValueClass, classes

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default)


def part(loop: Loop) -> Loop:
    """Replace [x, h] W by x W1 + h W2, where W is an invariant and only some of the concatenated values depend on a
    state; W is a matrix, or the weight of a convolution whose channels are concatenated.

    The product of the others then leaves the cycle. A Loop without such products is returned as it is.
    """
    if not any(_concatenated(node) for node in loop.nodes):
        return loop
    draft = Draft(loop)
    fixed = {draft.copies[node] for node, kind in classes(loop).items() if kind is ValueClass.FIXED}
    dependent = _state_dependent(draft)
    for node in list(draft.graph.nodes):
        pieces = _concatenated(node)
        mixed = len({piece in dependent for piece in pieces}) == 2
        if mixed and _factors(node)[1] in fixed:
            with draft.before(node):
                draft.replace(node, _sum_of_products(draft, node, pieces, dependent))
    return draft.close()


def _factors(node: fx.Node) -> tuple[Any, Any]:
    """The rows, and the matrix or the weight."""
    factors = arguments(node)[:2] if node.target is aten.convolution.default else arguments(node)[-2:]
    return factors[0], factors[1]


def _concatenated(node: fx.Node) -> list[fx.Node]:
    """The values whose concatenation along features is the left factor of a product, or whose channels, concatenated,
    are what a convolution without groups reads; [] for other nodes."""
    if node.kwargs or node.target not in (*PRODUCTS, aten.convolution.default):
        return []
    row = _factors(node)[0]
    if node.target is aten.convolution.default:
        transposed, groups = arguments(node)[6], arguments(node)[8]
        if transposed or groups != 1:
            return []
    if row.target is not aten.cat.default or len(row.args) < 2 or row.args[1] not in (1, 1 - row.meta["val"].dim()):
        return []
    return list(row.args[0])


def _state_dependent(draft: Draft) -> set[fx.Node]:
    """The values that depend on a state."""
    dependent = {node for port, node in draft.inputs if port.kind == "state"}
    for node in draft.graph.nodes:
        if dependent & set(node.all_input_nodes):
            dependent.add(node)
    return dependent


def _sum_of_products(draft: Draft, node: fx.Node, pieces: list[fx.Node], dependent: set[fx.Node]) -> fx.Node:
    """The sum of the products of all pieces, each with its part of the matrix; the pieces in `dependent` come last.

    The bias of an `addmm` comes first, that of a convolution with its first piece.
    """
    convolution = node.target is aten.convolution.default
    matrix, axis = _factors(node)[1], 1 if convolution else 0
    widths = [piece.meta["val"].shape[1] for piece in pieces]
    starts = [sum(widths[:index]) for index in range(len(pieces))]
    ordered = sorted(zip(pieces, starts, widths, strict=True), key=lambda placed: placed[0] in dependent)
    total: Any = node.args[0] if node.target is aten.addmm.default else None
    for piece, start, width in ordered:
        block = draft.call(aten.slice.Tensor, matrix, axis, start, start + width)
        if convolution:
            bias, *options = arguments(node)[2:]
            product = draft.call(aten.convolution.default, piece, block, bias if total is None else None, *options)
            total = product if total is None else draft.call(aten.add.Tensor, total, product)
        elif total is None:
            total = draft.call(aten.mm.default, piece, block)
        else:
            total = draft.call(aten.addmm.default, total, piece, block)
    return total
