"""The text of a kernel: what a reader sees of its buffers, blocks and dependencies."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.kernel import description
from leporello.kernel.description import (
    Along,
    Apply,
    Constant,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Position,
    Product,
    Reduction,
    Store,
)
from leporello.kernel.index import Index
from leporello.rewrite import differentiate
from tests.kernel.lowered import insides_of
from tests.kernel.test_dependencies import FIXED, FLOAT, HERE, NEXT, STATE, A, B, X, kernel, product


class Small(lp.Cell):
    """h' = tanh(x + h W); the output is h'."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.W = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h @ self.W)
        return h, h


def kernels_of(cell: lp.Cell, inputs: int = 3) -> list[Kernel]:
    """Of the forward and the backward sweep."""
    loop = lp.Recurrent(cell).fold(torch.zeros(2, 3, inputs))
    return [inside.kernel for sweep in (loop, differentiate(loop)) for inside in insides_of(sweep.split())]


def test_the_example_of_the_page_is_what_the_cell_gives() -> None:
    forward, _ = kernels_of(Small())
    page = inspect.getdoc(description)
    assert page is not None
    assert textwrap.indent(forward.text(), "    ") in page


def test_a_backward_kernel_says_so_and_what_it_needs() -> None:
    _, backward = kernels_of(Small())
    lines = backward.text().splitlines()
    assert lines[0] == "kernel gradient of Small, backward in time"
    assert "  block 1, needs row of tanh_backward by 0" in lines
    assert "      tanh_backward[i0] = (grad_o[i0] + h[i0]) * (1.0 - (tanh[i0] * tanh[i0]))" in lines


def test_gates_that_lie_in_one_product_are_needed_at_their_offsets() -> None:
    forward, _ = kernels_of(lp.LSTM(3, 5))
    assert "  block 1, needs row of mm_default by 0 at 0, 5, 10, 15" in forward.text().splitlines()


def test_a_value_is_named_before_its_first_store_and_not_earlier() -> None:
    """A store may read what the store before it has written."""
    forward, _ = kernels_of(lp.LSTM(3, 5))
    lines = [line.strip() for line in forward.text().splitlines()]
    stored = next(place for place, line in enumerate(lines) if line.startswith("c'[i0] = "))
    assert lines[stored + 1].startswith("t0 = ")
    assert lines[stored + 1].endswith(" * tanh(c'[i0])")
    assert lines[stored + 2 : stored + 4] == ["h'[i0] = t0", "h_1[i0] = t0"]


def test_a_value_that_doubles_a_hundred_times_is_a_hundred_lines() -> None:
    value: Expression = Load(X, HERE)
    for _ in range(100):
        value = Apply("add", (value, value), FLOAT)
    lines = kernel(Pointwise((4,), (Store(NEXT, HERE, value),))).text().splitlines()
    assert lines[-1] == "      next0'[i0] = t98 + t98"
    assert len(lines) < 110


def test_types_are_said_where_they_differ() -> None:
    half = replace(A, dtype=torch.bfloat16)
    block = Product(half, 2, 2, 2, 2, 0, B, torch.bfloat16, torch.float32)
    made = replace(kernel(block), buffers={"scratch": (half, B)})
    assert made.text().splitlines() == [
        "kernel made by hand, forward in time",
        "  scratch scratch0 [4] bfloat16, computed in float64",
        "  scratch scratch1 [4] float64",
        "  block 0",
        "    for h < 2, n < 2: product over k < 2 in bfloat16, added in float32",
        "      scratch1[n + 2 * h] = sum of scratch0[2 + k + 2 * h] * matrix 0[h, k, n]",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Constant(0.5, FLOAT), "0.5"),
        (Position(HERE, torch.int64), "(i0)"),
        (Apply("cast", (Load(X, HERE),), torch.int64), "int64(read0[i0])"),
        (Fetch(FIXED, HERE, (Along(Load(STATE, Index()), 4, 3),)), "fixed0[i0 + 3 * clamp(state0[0], 4)]"),
    ],
)
def test_expressions_have_a_text(value: Expression, text: str) -> None:
    made = kernel(Pointwise((4,), (Store(NEXT, HERE, value),)))
    assert made.text().splitlines()[-1] == f"      next0'[i0] = {text}"


def test_a_reduction_says_what_it_reduces_and_in_which_type() -> None:
    value = Load(A, Index.variable("k0"))
    block = Reduction((), (4,), "sum", value, B, Index(), torch.float32)
    lines = kernel(product(A, STATE), block).text().splitlines()
    assert lines[-3:] == [
        "  block 1, needs row of scratch0 by 0",
        "    once:",
        "      scratch1[0] = sum over k0 < 4 in float32 of scratch0[k0]",
    ]
