"""The rewrite `add_in_products`: a vector added to a matrix product becomes part of the product.

`b + x W` is one operator of torch then, which rounds once. On a cycle kernels add it as well as any other value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import values_on_cycles

aten = torch.ops.aten


def add_in_products(loop: Loop) -> Loop | None:
    """The Loop with `addmm` in the place of such sums off its cycles; None where there are none."""
    draft = Draft(loop)
    cyclic = {draft.copies[node] for node in values_on_cycles(loop)}
    results = {node for _, node in draft.outputs}
    changed = False
    for node in list(draft.graph.nodes):
        if node.target is not aten.add.Tensor or node.kwargs or node in cyclic:
            continue
        for added, product in (arguments(node), arguments(node)[::-1]):
            if _is_vector(added) and _is_product_of_rows(product) and product not in cyclic | results:
                if len(product.users) == 1 and _alike(added, product, node):
                    with draft.before(node):
                        draft.replace(node, draft.call(aten.addmm.default, added, *arguments(product)))
                    changed = True
                break
    return draft.close() if changed else None


def _is_vector(value: Any) -> bool:
    """Whether a value has one axis, of features."""
    return isinstance(value, fx.Node) and value.meta["val"].dim() == 1 and not has_rows(value.meta["val"])


def _is_product_of_rows(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.target is aten.mm.default and has_rows(value.meta["val"])


def _alike(added: fx.Node, product: fx.Node, total: fx.Node) -> bool:
    """Whether the vector has the product's columns, and all have one dtype."""
    values = [node.meta["val"] for node in (added, product, total)]
    same_columns = values[0].shape[0] == values[1].shape[1]
    return bool(same_columns) and len({value.dtype for value in values}) == 1
