"""Values that are compared with a maximum of themselves: the backward sweep must find the very bits the forward had.

The gradient of amax goes where a value equals the maximum, divided by how many do. A value computed again differs in
its last bit as soon as a product and a sum are rounded once instead of twice; then none equals, and the gradient is
0 / 0. Knows a backward graph; `save` hands these values over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import fx

from leporello.loop.value_classes import is_getitem, is_matrix_product, is_view

aten = torch.ops.aten
COMPARISONS = frozenset(getattr(aten, name).Tensor for name in ("eq", "ne", "ge", "le", "gt", "lt"))
# They round nothing: from the same bits come the same bits.
EXACT = frozenset(
    {
        aten.abs.default,
        aten.neg.default,
        aten.cat.default,
        aten.split.Tensor,
        aten.where.self,
        aten.masked_fill.Scalar,
        aten.masked_fill.Tensor,
        aten.relu.default,
        aten.clamp.default,
        aten.maximum.default,
        aten.minimum.default,
    }
)


def compared(backward: fx.Graph, forward: Collection[fx.Node]) -> frozenset[fx.Node]:
    """What must be handed over: values that the backward graph compares with a maximum, or with what else is gathered
    from many values; of those that come exactly from others, the others.

    forward   the values of the backward graph that the forward graph has too
    """
    found = set[fx.Node]()
    for node in backward.nodes:
        if node.target in COMPARISONS:
            ends = _made_of(node.all_input_nodes)
            if any(map(_gathers, ends)) and all(end in forward for end in ends):
                found |= ends
    return frozenset(found)


def _made_of(values: Iterable[fx.Node]) -> set[fx.Node]:
    """What the values come from exactly, from as far back as can be."""
    waiting = list(values)
    seen, ends = set[fx.Node](), set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen or node.op == "placeholder":
            continue
        seen.add(node)
        if is_view(node) or is_getitem(node) or node.target in EXACT:
            waiting += node.all_input_nodes
        else:
            ends.add(node)
    return ends


def _gathers(node: fx.Node) -> bool:
    """Whether it may be one of many values: anything but pointwise functions and products."""
    return torch.Tag.pointwise not in getattr(node.target, "tags", ()) and not is_matrix_product(node)
