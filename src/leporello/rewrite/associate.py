"""The rewrite `associate`: sums and products on a cycle, bracketed so that what does not wait comes first.

`(g a) b` becomes `g (a b)`, `(h W + b) + x` becomes `h W + (b + x)`: what is in brackets leaves the loop. The
derivatives of tanh and sigmoid are products too, which leaves a backward step little more than one product per
value. Equal up to rounding; real dtypes only.
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
    """A value on a cycle as one that waits, times factors that do not."""

    base: fx.Node
    factors: tuple[Any, ...]  # nodes, numbers, or functions that write a factor


class _Pen:
    """Writes operators into a draft, the same one only once."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.written: dict[Any, fx.Node] = {}

    def __call__(self, target: Any, *args: Any, **options: Any) -> fx.Node:
        key = (target, args, *options.items())
        if key not in self.written:
            self.written[key] = self.draft.call(target, *args, **options)
        return self.written[key]


def associate(loop: Loop) -> Loop:
    """Bracket anew what lies on cycles."""
    draft = Draft(loop)
    cyclic = {draft.copies[node] for node in values_on_cycles(loop)}
    for rewrite in (_products, _sums, _fused):
        rewrite(draft, cyclic)
        cyclic = {node for node in cyclic if node.graph is draft.graph}
    return draft.close()


def _products(draft: Draft, cyclic: set[fx.Node]) -> None:
    """Every chain of factors becomes one multiplication of what waits."""
    known: dict[fx.Node, _Product] = {}
    pen = _Pen(draft)
    for node in list(draft.graph.nodes):
        if node not in cyclic:
            continue
        found = _as_product(node, cyclic) or _as_sum_of_products(node, known)
        if found is None:
            continue
        earlier = known.get(found.base) if node.target is not aten.add.Tensor else None
        known[node] = _Product(earlier.base, earlier.factors + found.factors) if earlier else found
    for node, product in known.items():
        plain = node.target is aten.mul.Tensor and len(product.factors) == 1
        if not plain and not _only_feeds_products(node, known, draft):
            with draft.before(node):
                written = draft.call(aten.mul.Tensor, product.base, _factor(pen, product.factors, _dtype(node)))
            cyclic.add(written)
            draft.replace(node, written)


def _only_feeds_products(node: fx.Node, known: dict[fx.Node, _Product], draft: Draft) -> bool:
    """Whether nobody needs the value itself."""
    return all(user in known for user in node.users) and not any(found is node for _, found in draft.outputs)


def _as_product(node: fx.Node, cyclic: set[fx.Node]) -> _Product | None:
    if not _real(node):
        return None
    if node.target is aten.mul.Tensor:
        one, other = arguments(node)
        for base, factor in ((one, other), (other, one)):
            waits = isinstance(base, fx.Node) and base in cyclic
            if waits and not (isinstance(factor, fx.Node) and factor in cyclic) and _alike(base, node):
                return _Product(base, (factor,))
    if node.target is aten.neg.default:
        return _Product(arguments(node)[0], (-1,))
    slope = _SLOPES.get(node.target)
    if slope is not None:
        base, value, *rest = arguments(node)
        if base in cyclic and value not in cyclic:
            return _Product(base, (slope(value, *rest),))
    return None


def _as_sum_of_products(node: fx.Node, known: dict[fx.Node, _Product]) -> _Product | None:
    """g a + g b is g (a + b)."""
    if node.target is not aten.add.Tensor or node.kwargs or not _real(node):
        return None
    one, other = (known.get(argument) if isinstance(argument, fx.Node) else None for argument in node.args)
    if one is None or other is None or one.base is not other.base or not _alike(one.base, node):
        return None
    first, second, dtype = one.factors, other.factors, _dtype(node)

    def total(pen: _Pen) -> Any:
        terms = [_cast(pen, _factor(pen, factors, dtype), dtype) for factors in (first, second)]
        return pen(aten.add.Tensor, *terms) if any(isinstance(term, fx.Node) for term in terms) else sum(terms)

    return _Product(one.base, (total,))


Written = Callable[[_Pen], Any]


def _tanh_slope(value: fx.Node) -> Written:
    return lambda pen: pen(aten.rsub.Scalar, pen(aten.mul.Tensor, value, value), 1)


def _sigmoid_slope(value: fx.Node) -> Written:
    return lambda pen: pen(aten.mul.Tensor, value, pen(aten.rsub.Scalar, value, 1))


# The derivative of an activation by what it gave: tanh' = 1 - y², sigmoid' = y (1 - y).
# Not relu: its derivative is a choice, and 0 times an infinite gradient is none.
_SLOPES: dict[Any, Callable[..., Written]] = {
    aten.tanh_backward.default: _tanh_slope,
    aten.sigmoid_backward.default: _sigmoid_slope,
}


def _factor(pen: _Pen, factors: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """The product of all factors, numbers last, in the dtype of what they multiply (a mask has another)."""
    values = [factor(pen) if callable(factor) else factor for factor in factors]
    nodes = [value for value in values if isinstance(value, fx.Node)]
    scale = math.prod(value for value in values if not isinstance(value, fx.Node))
    if not nodes:
        return scale
    if len(values) > 1:
        nodes = [_cast(pen, node, dtype) for node in nodes]
    total = nodes[0]
    for node in nodes[1:]:
        total = pen(aten.mul.Tensor, total, node)
    return total if scale == 1 else pen(aten.mul.Tensor, total, scale)


def _cast(pen: _Pen, factor: Any, dtype: torch.dtype) -> Any:
    if not isinstance(factor, fx.Node) or _dtype(factor) == dtype:
        return factor
    return pen(aten._to_copy.default, factor, dtype=dtype)


def _sums(draft: Draft, cyclic: set[fx.Node]) -> None:
    """Terms that do not wait are added up first, and become what a product is added to."""
    for node in list(draft.graph.nodes):
        if node not in cyclic or node.target is not aten.add.Tensor or node.kwargs or not _real(node):
            continue
        for one, other in (arguments(node), arguments(node)[::-1]):
            waits = isinstance(one, fx.Node) and one in cyclic and len(one.users) == 1
            if not waits or not isinstance(other, fx.Node) or other in cyclic or not _alike(one, node):
                continue
            with draft.before(node):
                written = _added(draft, one, other)
            if written is not None:
                cyclic.add(written)
                draft.replace(node, written)
                break


def _added(draft: Draft, waiting: fx.Node, term: fx.Node) -> fx.Node | None:
    """The sum of a value that waits and one that does not, with one operator on the cycle."""
    if waiting.kwargs:
        return None
    if waiting.target is aten.mm.default and (_alike(term, waiting) or _bias(term, waiting)):
        return draft.call(aten.addmm.default, term, *waiting.args)
    if waiting.target is aten.addmm.default:
        return draft.call(aten.addmm.default, _first(draft, waiting.args[0], term), *waiting.args[1:])
    return None


def _first(draft: Draft, bias: Any, term: fx.Node) -> fx.Node:
    """The sum of what does not wait; two biases are added before anything is spread over rows."""
    biased = term.target is aten.addmm.default and not term.kwargs and len(term.users) == 1
    if biased and _alike(bias, arguments(term)[0]):
        return draft.call(aten.addmm.default, draft.call(aten.add.Tensor, bias, term.args[0]), *term.args[1:])
    return draft.call(aten.add.Tensor, bias, term)


def _bias(term: fx.Node, product: fx.Node) -> bool:
    """Whether it is a vector that is added to every row of a product."""
    a, b = term.meta["val"], product.meta["val"]
    return a.dim() == 1 and a.dtype == b.dtype and str(a.shape[0]) == str(b.shape[1])


def _fused(draft: Draft, cyclic: set[fx.Node]) -> None:
    """A product that is only added to something is added in one operator."""
    for node in list(draft.graph.nodes):
        if node not in cyclic or node.target is not aten.add.Tensor or node.kwargs or not _real(node):
            continue
        for term, product in (arguments(node), arguments(node)[::-1]):
            if isinstance(term, fx.Node) and term is not product and _added_only(draft, product, node, cyclic):
                with draft.before(node):
                    written = draft.call(aten.addcmul.default, term, *product.args)
                if _alike(written, node):
                    cyclic.add(written)
                    draft.replace(node, written)
                    break


def _added_only(draft: Draft, product: Any, total: fx.Node, cyclic: set[fx.Node]) -> bool:
    """Whether it is a product on a cycle of which nothing but the sum is needed."""
    if not isinstance(product, fx.Node) or product not in cyclic or product.target is not aten.mul.Tensor:
        return False
    asked = len(product.users) > 1 or any(node is product for _, node in draft.outputs)
    dtype = total.meta["val"].dtype
    return not asked and all(isinstance(a, fx.Node) and a.meta["val"].dtype == dtype for a in arguments(product))


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _real(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].dtype.is_floating_point


def _alike(one: fx.Node, other: fx.Node) -> bool:
    """The same shape and dtype, so that nothing is spread or cast on the way."""
    a, b = one.meta["val"], other.meta["val"]
    return isinstance(a, torch.Tensor) and a.dtype == b.dtype and a.dim() == b.dim() and str(a.shape) == str(b.shape)
