"""The rewrite `part`: `[x, h] W` becomes `x W1 + h W2`.

A cell that joins its input and its state before one product then has the same inside as one with two products: the
part that does not wait for the state leaves the loop. It lives beside `split`, which needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from leporello.loop.classes import Class, classes
from leporello.loop.draft import Draft
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.loop.loop import Loop

aten = torch.ops.aten


def part(loop: Loop) -> Loop:
    """Where a joined row waits for a state in part only, give every piece its own product."""
    if not any(_joined(node) for node in loop.nodes):
        return loop
    draft = Draft(loop)
    fixed = {draft.copies[node] for node, kind in classes(loop).items() if kind is Class.FIXED}
    waiting = _waiting(draft)
    for node in list(draft.graph.nodes):
        pieces = _joined(node)
        mixed = len({piece in waiting for piece in pieces}) == 2
        if mixed and node.args[-1] in fixed:
            with draft.before(node):
                draft.replace(node, _parted(draft, node, pieces, waiting))
    return draft.close()


def _joined(node: fx.Node) -> list[fx.Node]:
    """The pieces of the row that a product multiplies, [] if it is no product of joined pieces."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return []
    joined = arguments(node)[-2]
    if joined.target is not aten.cat.default or len(joined.args) < 2 or joined.args[1] not in (1, -1):
        return []
    return list(joined.args[0])


def _waiting(draft: Draft) -> set[fx.Node]:
    """Values that wait for a state."""
    found = {node for port, node in draft.inputs if port.kind == "state"}
    for node in draft.graph.nodes:
        if found & set(node.all_input_nodes):
            found.add(node)
    return found


def _parted(draft: Draft, node: fx.Node, pieces: list[fx.Node], waiting: set[fx.Node]) -> fx.Node:
    """The sum of the pieces' products, those that wait for a state last."""
    matrix = arguments(node)[-1]
    widths = [piece.meta["val"].shape[1] for piece in pieces]
    starts = [sum(widths[:index]) for index in range(len(pieces))]
    placed = sorted(zip(pieces, starts, widths, strict=True), key=lambda found: found[0] in waiting)
    total: Any = node.args[0] if node.target is aten.addmm.default else None
    for piece, start, width in placed:
        own = draft.call(aten.slice.Tensor, matrix, 0, start, start + width)
        if total is None:
            total = draft.call(aten.mm.default, piece, own)
        else:
            total = draft.call(aten.addmm.default, total, piece, own)
    return total
