"""Which results of an at-once stage are sums over rows that `RowSums` computes; the others are left to torch.

These are gradients of biases, of factors such as peepholes, and of the weights of layer norms. Products of matrices
stay torch's, which has tensor cores for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from leporello.engine.gpu.sums.division import Sum
from leporello.engine.gpu.sums.row_sums import NUMBERS, RowSums, SumsLauncher
from leporello.engine.row_elements import fixed_features
from leporello.engine.row_sums import call_together, columns_of, is_result_alone, row_sum, sum_of_elements
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import arguments, copied, results
from leporello.loop.value_classes import is_getitem
from leporello.rewrite.skip_padding import is_row_matrix

aten = torch.ops.aten


@dataclass(frozen=True)
class Term:
    """A sum as values of a graph, by the names of its operands in `Sum`, with the other fields of `Sum`."""

    columns: int
    operands: Mapping[str, fx.Node]
    layout: Mapping[str, Any]

    def sum(self, values: Sequence[fx.Node], results: tuple[int, ...]) -> Sum:
        fields: dict[str, Any] = {name: values.index(node) for name, node in self.operands.items()}
        return Sum(columns=self.columns, results=results, **fields, **self.layout)


def with_row_sums(graph: fx.Graph, launcher: SumsLauncher) -> fx.Graph:
    """A copy of a graph in which `RowSums` computes the results that are sums over rows, in one call for each type."""
    graph, _ = copied(graph)
    groups: dict[torch.dtype, dict[fx.Node, Term]] = {}
    for node in dict.fromkeys(results(graph)):
        term = _sum(node) or _gradient_of_norm(node)
        if term is not None:
            groups.setdefault(term.operands["first"].meta["val"].dtype, {})[node] = term
    for dtype, terms in groups.items():
        values = list(dict.fromkeys(value for term in terms.values() for value in term.operands.values()))
        function = RowSums(
            _sums([*terms.values()], values),
            [fixed_features(value) for value in values],
            [(tuple(node.meta["val"].shape), node.meta["val"].dtype) for node in terms],
            dtype,
            launcher,
        )
        call_together(graph, terms, function, values)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _sums(terms: Sequence[Term], values: Sequence[fx.Node]) -> list[Sum]:
    """The sums that give the results of these terms, one for two terms that are equal."""
    sums: list[Sum] = []
    left = list(range(len(terms)))
    while left:
        equal = [index for index in left if terms[index] == terms[left[0]]][:2]
        sums.append(terms[left[0]].sum(values, tuple(equal)))
        left = [index for index in left if index not in equal]
    return sums


def _sum(node: fx.Node) -> Term | None:
    """A sum over rows, of a value or of a product that nothing else reads; maybe over other axes too."""
    found = row_sum(node, NUMBERS) or sum_of_elements(node, NUMBERS)
    if found is None or found.second is not None or clean_row_axis(found.first.meta["val"]) != 0:
        return None
    operands = {"first": found.first} | ({} if found.past is None else {"past": found.past})
    if found.spread is not None:
        begin, _, inner_step, along = found.spread.first
        layout = {"begin": begin, "inner": found.spread.inner, "inner_step": inner_step, "along": along}
        return Term(found.m, operands, layout)
    if found.first.target is aten.mul.Tensor and len(found.first.users) == 1:
        factors = arguments(found.first)
        if all(_is_like(factor, found.first) for factor in factors):
            operands |= {"first": factors[0], "other": factors[1]}
    return Term(found.m, operands, {})


def _gradient_of_norm(node: fx.Node) -> Term | None:
    """The gradient of a weight or bias of a layer norm over the features of rows."""
    if not is_getitem(node) or not is_result_alone(node):
        return None
    backward, which = arguments(node)
    if backward.target is not aten.native_layer_norm_backward.default or which == 0:
        return None
    gradient, value, shape, mean, rate = arguments(backward)[:5]
    if not (is_row_matrix(gradient) and _is_like(value, gradient) and len(shape) == 1):
        return None
    dtypes = {
        dtype: of.meta["val"].dtype for dtype, of in (("summed", gradient), ("statistics", mean), ("result", node))
    }
    if dtypes["summed"] not in NUMBERS or not {*dtypes.values()} <= {dtypes["summed"], torch.float32}:
        return None
    layout = {"wide": dtypes["result"] != dtypes["summed"]}
    if which == 2:
        return Term(columns_of(gradient), {"first": gradient}, layout)
    return Term(columns_of(gradient), {"first": gradient, "other": value, "mean": mean, "rate": rate}, layout)


def _is_like(value: Any, node: fx.Node) -> bool:
    """Whether a value is a matrix of rows with the columns and dtype of another."""
    if not isinstance(value, fx.Node) or not is_row_matrix(value):
        return False
    same_columns = value.meta["val"].shape[1] == node.meta["val"].shape[1]
    return bool(same_columns and value.meta["val"].dtype == node.meta["val"].dtype)
