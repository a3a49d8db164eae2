"""The rewrite `associate`: sums and products on a cycle, re-associated so that less of them depends on the state.

`(g a) b` becomes `g (a b)`, and `(h W + b) + x` becomes `h W + (b + x)`: what is in brackets does not depend on the
state and is computed for all steps at once. The derivatives of tanh and sigmoid are products too, so a backward step
has little more than one multiplication per value. Equal up to rounding; real dtypes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.value_classes import values_on_cycles

aten = torch.ops.aten


@dataclass(frozen=True)
class _Product:
    """A value on a cycle, as another value on the cycle times factors that are not on it."""

    base: fx.Node
    factors: tuple[Any, ...]  # nodes, numbers, or functions that emit a factor


class _Emitter:
    """Adds operators to a draft; equal calls give the same node."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.nodes: dict[Any, fx.Node] = {}

    def __call__(self, target: Any, *args: Any, **options: Any) -> fx.Node:
        key = (target, args, *options.items())
        if key not in self.nodes:
            self.nodes[key] = self.draft.call(target, *args, **options)
        return self.nodes[key]


def associate(loop: Loop) -> Loop:
    """The Loop with the sums and products on its cycles re-associated."""
    draft = Draft(loop)
    cyclic = {draft.copies[node] for node in values_on_cycles(loop)}
    for rewrite in (_merge_products, _merge_sums, _fuse_multiply_add):
        rewrite(draft, cyclic)
        cyclic = {node for node in cyclic if node.graph is draft.graph}
    return draft.close()


def _merge_products(draft: Draft, cyclic: set[fx.Node]) -> None:
    """Every chain of multiplications on a cycle becomes one, by the product of its factors.

    This and the next two change the draft.

    cyclic   the values on cycles; new ones are added
    """
    known: dict[fx.Node, _Product] = {}
    emit = _Emitter(draft)
    for node in list(draft.graph.nodes):
        if node not in cyclic:
            continue
        product = _as_product(node, cyclic) or _as_sum_of_products(node, known)
        if product is None:
            continue
        earlier = known.get(product.base) if node.target is not aten.add.Tensor else None
        known[node] = _Product(earlier.base, earlier.factors + product.factors) if earlier else product
    for node, product in known.items():
        plain = node.target is aten.mul.Tensor and len(product.factors) == 1
        if not plain and not _only_feeds_products(node, known, draft):
            with draft.before(node):
                scaled = draft.call(aten.mul.Tensor, product.base, _factor(emit, product.factors, _dtype(node)))
            cyclic.add(scaled)
            draft.replace(node, scaled)


def _only_feeds_products(node: fx.Node, known: dict[fx.Node, _Product], draft: Draft) -> bool:
    """Whether the value itself is not needed: only other products read it."""
    return all(user in known for user in node.users) and not any(result is node for _, result in draft.outputs)


def _as_product(node: fx.Node, cyclic: set[fx.Node]) -> _Product | None:
    """A multiplication, a negation or the derivative of an activation as a `_Product`; None for other operators."""
    if not _is_real(node):
        return None
    if node.target is aten.mul.Tensor:
        for base, factor in (arguments(node), arguments(node)[::-1]):
            on_cycle = isinstance(base, fx.Node) and base in cyclic
            if on_cycle and not (isinstance(factor, fx.Node) and factor in cyclic) and _alike(base, node):
                return _Product(base, (factor,))
    if node.target is aten.neg.default:
        return _Product(arguments(node)[0], (-1,))
    derivative = _DERIVATIVES.get(node.target)
    if derivative is not None:
        base, value, *rest = arguments(node)
        if base in cyclic and value not in cyclic:
            return _Product(base, (derivative(value, *rest),))
    return None


def _as_sum_of_products(node: fx.Node, known: dict[fx.Node, _Product]) -> _Product | None:
    """A sum g a + g b of products with one base, as the product g (a + b); None for other operators."""
    if node.target is not aten.add.Tensor or node.kwargs or not _is_real(node):
        return None
    left, right = (known.get(argument) if isinstance(argument, fx.Node) else None for argument in node.args)
    if left is None or right is None or left.base is not right.base or not _alike(left.base, node):
        return None
    first, second, dtype = left.factors, right.factors, _dtype(node)

    def total(emit: _Emitter) -> Any:
        terms = [_cast(emit, _factor(emit, factors, dtype), dtype) for factors in (first, second)]
        return emit(aten.add.Tensor, *terms) if any(isinstance(term, fx.Node) for term in terms) else sum(terms)

    return _Product(left.base, (total,))


EmitFactor = Callable[[_Emitter], Any]


def _tanh_derivative(value: fx.Node) -> EmitFactor:
    return lambda emit: emit(aten.rsub.Scalar, emit(aten.mul.Tensor, value, value), 1)


def _sigmoid_derivative(value: fx.Node) -> EmitFactor:
    return lambda emit: emit(aten.mul.Tensor, value, emit(aten.rsub.Scalar, value, 1))


# The derivative of an activation, from its result y: tanh' = 1 - y², sigmoid' = y (1 - y).
# Not relu: its derivative selects rather than multiplies, and 0 times an infinite gradient would be NaN.
_DERIVATIVES: dict[Any, Callable[..., EmitFactor]] = {
    aten.tanh_backward.default: _tanh_derivative,
    aten.sigmoid_backward.default: _sigmoid_derivative,
}


def _factor(emit: _Emitter, factors: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """The product of all factors, constants last: a node, or a number where all are constants.

    dtype   of the value they multiply, to which factors are cast (a mask has another dtype)
    """
    values = [factor(emit) if callable(factor) else factor for factor in factors]
    nodes = [value for value in values if isinstance(value, fx.Node)]
    scale = math.prod(value for value in values if not isinstance(value, fx.Node))
    if not nodes:
        return scale
    if len(values) > 1:
        nodes = [_cast(emit, node, dtype) for node in nodes]
    total = nodes[0]
    for node in nodes[1:]:
        total = emit(aten.mul.Tensor, total, node)
    return total if scale == 1 else emit(aten.mul.Tensor, total, scale)


def _cast(emit: _Emitter, factor: Any, dtype: torch.dtype) -> Any:
    if not isinstance(factor, fx.Node) or _dtype(factor) == dtype:
        return factor
    return emit(aten._to_copy.default, factor, dtype=dtype)


def _merge_sums(draft: Draft, cyclic: set[fx.Node]) -> None:
    """Terms that are not on the cycle are added up first; a matrix product on the cycle is added to their sum."""
    for node in list(draft.graph.nodes):
        if node not in cyclic or node.target is not aten.add.Tensor or node.kwargs or not _is_real(node):
            continue
        for product, term in (arguments(node), arguments(node)[::-1]):
            on_cycle = isinstance(product, fx.Node) and product in cyclic and len(product.users) == 1
            if not on_cycle or not isinstance(term, fx.Node) or term in cyclic or not _alike(product, node):
                continue
            with draft.before(node):
                total = _product_plus(draft, product, term)
            if total is not None:
                cyclic.add(total)
                draft.replace(node, total)
                break


def _product_plus(draft: Draft, product: fx.Node, term: fx.Node) -> fx.Node | None:
    """The sum of a matrix product on the cycle and a term that is not on it, with one operator on the cycle; None where
    the value on the cycle is no matrix product."""
    if product.kwargs:
        return None
    if product.target is aten.mm.default and (_alike(term, product) or _is_bias(term, product)):
        return draft.call(aten.addmm.default, term, *product.args)
    if product.target is aten.addmm.default:
        return draft.call(aten.addmm.default, _sum_of_terms(draft, product.args[0], term), *product.args[1:])
    return None


def _sum_of_terms(draft: Draft, bias: Any, term: fx.Node) -> fx.Node:
    """The sum of two terms that are not on the cycle; two biases are added before they are broadcast over rows."""
    biased = term.target is aten.addmm.default and not term.kwargs and len(term.users) == 1
    if biased and _alike(bias, arguments(term)[0]):
        return draft.call(aten.addmm.default, draft.call(aten.add.Tensor, bias, term.args[0]), *term.args[1:])
    return draft.call(aten.add.Tensor, bias, term)


def _is_bias(term: fx.Node, product: fx.Node) -> bool:
    """Whether a term is a vector that is added to every row of a product."""
    a, b = term.meta["val"], product.meta["val"]
    return a.dim() == 1 and a.dtype == b.dtype and str(a.shape[0]) == str(b.shape[1])


def _fuse_multiply_add(draft: Draft, cyclic: set[fx.Node]) -> None:
    """A product that is read by one sum only becomes a multiply-add, one operator."""
    for node in list(draft.graph.nodes):
        if node not in cyclic or node.target is not aten.add.Tensor or node.kwargs or not _is_real(node):
            continue
        for term, product in (arguments(node), arguments(node)[::-1]):
            if isinstance(term, fx.Node) and term is not product and _only_feeds_sum(draft, product, node, cyclic):
                with draft.before(node):
                    total = draft.call(aten.addcmul.default, term, *product.args)
                if _alike(total, node):
                    cyclic.add(total)
                    draft.replace(node, total)
                    break


def _only_feeds_sum(draft: Draft, product: Any, total: fx.Node, cyclic: set[fx.Node]) -> bool:
    """Whether it is a product on a cycle that nothing but this sum reads, of values of the sum's dtype."""
    if not isinstance(product, fx.Node) or product not in cyclic or product.target is not aten.mul.Tensor:
        return False
    read_elsewhere = len(product.users) > 1 or any(node is product for _, node in draft.outputs)
    dtype = total.meta["val"].dtype
    return not read_elsewhere and all(
        isinstance(a, fx.Node) and a.meta["val"].dtype == dtype for a in arguments(product)
    )


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _is_real(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].dtype.is_floating_point


def _alike(first: fx.Node, second: fx.Node) -> bool:
    """Whether two values have the same shape and dtype, so that neither is broadcast or cast."""
    a, b = first.meta["val"], second.meta["val"]
    return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.dim() == b.dim() and str(a.shape) == str(b.shape)
