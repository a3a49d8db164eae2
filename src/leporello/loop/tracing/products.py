"""Products of matrices in the form that splits and kernels know: rows along one axis, an invariant as it is.

torch computes `h.view(-1, n, 1, d) @ R` as one product for each row and head, with R copied for every row; here it is
one for each head, over all rows. A product of stacks of one matrix is a product of matrices.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, has_rows, size_of
from leporello.loop.graph import GraphWriter, arguments, call

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default)


def plain_products(graph: fx.Graph, family: FakeTensorFamily) -> None:
    """Rewrite, in place, products of stacks of matrices that have a simpler form."""
    for node in list(graph.nodes):
        if node.target not in (aten.bmm.default, aten.mv.default):
            continue
        with graph.inserting_before(node):
            if node.target is aten.mv.default:
                instead: fx.Node | None = _of_a_vector(graph, family, node)
            else:
                instead = _of_one_matrix(graph, family, node) or _of_heads(graph, family, node)
        if instead is not None:
            instead.meta["line"] = node.meta.get("line")
            node.replace_all_uses_with(instead)
            graph.erase_node(node)


def _of_a_vector(graph: fx.Graph, family: FakeTensorFamily, node: fx.Node) -> fx.Node:
    """[a, k] times [k], as a product of matrices: there the first axis may hold rows and features."""
    left, right = arguments(node)
    product = call(graph, family, aten.mm.default, left, call(graph, family, aten.unsqueeze.default, right, 1))
    return call(graph, family, aten.squeeze.dim, product, 1)


def _of_one_matrix(graph: fx.Graph, family: FakeTensorFamily, node: fx.Node) -> fx.Node | None:
    """[1, a, k] times [1, k, m], without the stack."""
    left, right = arguments(node)
    if not isinstance(node.meta["val"].shape[0], int) or node.meta["val"].shape[0] != 1:
        return None
    left, right = (call(graph, family, aten.squeeze.dim, side, 0) for side in (left, right))
    return call(graph, family, aten.unsqueeze.default, call(graph, family, aten.mm.default, left, right), 0)


def _of_heads(graph: fx.Graph, family: FakeTensorFamily, node: fx.Node) -> fx.Node | None:
    """[rows * n, a, k] times an invariant [n, k, m] that is copied for each row, or the other way round."""
    left, right = arguments(node)
    write = _ProductWriter(graph, family)
    if _is_copied(right) and _is_of_rows(left):
        return write.by_heads(left, write.invariant_of(right))
    if _is_copied(left) and _is_of_rows(right):
        turned = write(aten.transpose.int, right, 1, 2), write(aten.transpose.int, write.invariant_of(left), 1, 2)
        product = write(aten.transpose.int, write.by_heads(*turned), 1, 2)
        return write(aten.clone.default, product, memory_format=torch.contiguous_format)  # as views of it expect
    return None


def _expanded(node: fx.Node) -> fx.Node:
    """The operator that a value is a view or a copy of."""
    while node.target in _VIEWS:
        node = arguments(node)[0]
    return node


def _is_copied(node: fx.Node) -> bool:
    """Whether a stack [rows * n, k, m] holds an invariant [n, k, m], or [1, n, k, m], once for each row."""
    expand = _expanded(node)
    if expand.target is not aten.expand.default or has_rows(arguments(expand)[0].meta["val"]):
        return False
    shape, stack = expand.meta["val"].shape, node.meta["val"].shape
    if clean_row_axis(expand.meta["val"]) != 0 or not all(isinstance(size, int) for size in shape[1:]):
        return False
    return len(shape) > 2 and str(shape[-2:]) == str(stack[1:])


def _is_of_rows(node: fx.Node) -> bool:
    return has_rows(node.meta["val"]) and not _is_copied(node)


class _ProductWriter(GraphWriter):
    """Adds products of stacks of matrices to a graph."""

    def invariant_of(self, copied: fx.Node) -> fx.Node:
        """What a stack holds once for each row, [n, k, m]."""
        expand = _expanded(copied)
        source, shape = arguments(expand)[0], [int(size) for size in expand.meta["val"].shape[1:]]
        if source.meta["val"].dim() > len(shape):
            source = self(aten.squeeze.dim, source, 0)
        if list(source.meta["val"].shape) == shape and len(shape) == 3:
            return source
        return self.in_shape(self(aten.expand.default, source, shape), [math.prod(shape[:-2]), *shape[-2:]])

    def by_heads(self, left: fx.Node, matrix: fx.Node) -> fx.Node:
        """[rows * n, a, k] times [n, k, m], as a product for each of n * a heads over all rows."""
        n, k, m = (int(size) for size in matrix.meta["val"].shape)
        a = size_of(left.meta["val"].shape[1])
        apart = self.in_shape(left, [self.rows, n * a, k])
        heads = self(aten.permute.default, apart, [1, 0, 2])
        if a > 1:
            matrix = self(aten.expand.default, self(aten.unsqueeze.default, matrix, 1), [n, a, k, m])
            matrix = self.in_shape(matrix, [n * a, k, m])
        product = self(aten.permute.default, self(aten.bmm.default, heads, matrix), [1, 0, 2])
        stack = self.rows if n == 1 else self(operator.mul, self.rows, n)
        return self.in_shape(product, [stack, a, m])
