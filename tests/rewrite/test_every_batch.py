"""A graph traced for one number of rows is a graph for every number, or is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import function_of
from leporello.loop.port import Port
from leporello.rewrite.trace_every_batch import TRACED_ROWS, NotForEveryBatch, trace_every_batch
from tests.rewrite.running import numbers

Function = Callable[[Any, list[Tensor]], Sequence[Tensor]]
CPU = torch.device("cpu")
X = Port("sequence", "x", (3,), torch.float64, CPU)
W = Port("invariant", "W", (3, 3), torch.float64, CPU, rows=False)


def each_row(function: Callable[..., Tensor]) -> Function:
    """function(x, W) of one row, for all rows."""
    return lambda rows, values: [torch.func.vmap(function, in_dims=(0, None))(*values)]


def outer(x: Tensor, w: Tensor) -> Tensor:
    """The derivative of a row's result by the matrix that all rows share."""
    return torch.func.jacrev(lambda w: torch.cat([torch.tanh(x @ w), x[:1]]))(w)


FUNCTIONS: dict[str, Function] = {
    "a derivative for each row": each_row(outer),
    "parts and their joining": each_row(lambda x, w: torch.cat([(x @ w)[1:], x.split([1, 2])[0]])),
    "rows as a part of a size": lambda rows, values: [(values[0].unsqueeze(1) * values[1]).flatten(0, 1).sum(1)],
    "rows as a size": lambda rows, values: [values[0] + torch.ones(rows, 1, dtype=torch.float64)],
    "an index for each row": each_row(lambda x, w: w[x.argmax()]),
    "layer norm": each_row(lambda x, w: torch.nn.functional.layer_norm(x @ w, (3,), w[0])),
    "no rows at all": lambda rows, values: [torch.tanh(values[1])],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_serves_every_batch(name: str) -> None:
    family = FakeTensorFamily((3,))
    graph, constants = trace_every_batch(FUNCTIONS[name], [X, W], family)
    step = function_of(graph)
    for batch in (1, 2, 5):
        values = [numbers(batch, 3, seed=batch), numbers(3, 3, seed=7)]
        found, wanted = step(batch, *values, *constants.values()), FUNCTIONS[name](batch, values)
        torch.testing.assert_close(list(found), list(wanted), rtol=1e-12, atol=1e-12)
    assert not family.batch_is_concrete()
    assert str(TRACED_ROWS) not in str(graph)


def test_every_value_has_the_shape_it_has_in_the_family() -> None:
    family = FakeTensorFamily((3,))
    graph, _ = trace_every_batch(FUNCTIONS["a derivative for each row"], [X, W], family)
    (result,) = graph.output_node().args[0]
    assert str(list(result.meta["val"].shape)) == f"[{family.rows}, 4, 3, 3]"


def row_after_row(x: Tensor, w: Tensor) -> Tensor:
    """An operator for which torch has no rule, and loops over the rows."""
    return x.unfold(0, 2, 1).sum() * torch.func.grad(lambda x: x.unfold(0, 2, 1).square().sum())(x)


REFUSED: dict[str, Function] = {
    "torch would go row by row": each_row(row_after_row),
    "the graph names a row": lambda rows, values: [values[0].reshape(rows * 3)[: TRACED_ROWS // 2]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_of_rows_is_refused(name: str) -> None:
    with warnings.catch_warnings(), pytest.raises(NotForEveryBatch):
        trace_every_batch(REFUSED[name], [X, W], FakeTensorFamily((3,)))


def test_torch_goes_row_by_row_again_afterwards() -> None:
    assert torch._C._functorch._is_vmap_fallback_enabled()
    trace_every_batch(FUNCTIONS["rows as a size"], [X, W], FakeTensorFamily((3,)))
    assert torch._C._functorch._is_vmap_fallback_enabled()
