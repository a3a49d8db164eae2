"""Which loops of a kernel are joined, and which values then need no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.kernel.dependencies import blocks_ahead, fuse, register_values
from leporello.kernel.description import Block, Load, Pointwise, Product, Store
from leporello.kernel.index import Index
from tests.close import assert_close
from tests.engine.results import Plain, found
from tests.kernel.test_dependencies import (
    FLOAT,
    HERE,
    NEXT,
    STATE,
    A,
    B,
    C,
    D,
    X,
    kernel,
    kernels,
    memory,
    pointwise,
    product,
    summed,
)

pytestmark = pytest.mark.kernels

OUT = memory("write")


def after(*blocks: Block, new: Block) -> list[Block]:
    """Blocks, and new loops joined to them."""
    made = list(blocks)
    assert isinstance(new, Pointwise)
    fuse(made, new)
    return made


def both(one: Block, other: Block) -> Pointwise:
    assert isinstance(one, Pointwise)
    assert isinstance(other, Pointwise)
    return Pointwise(one.sizes, (*one.stores, *other.stores))


def test_loops_that_do_not_wait_for_a_product_go_in_front_of_it() -> None:
    first, new = pointwise(A, STATE, X), pointwise(OUT, A, X)
    assert after(first, product(B, A), new=new) == [both(first, new), product(B, A)]


def test_of_two_places_the_first_is_taken() -> None:
    blocks, new = [pointwise(A, STATE), product(B, A), pointwise(NEXT, B)], pointwise(OUT, A)
    assert after(*blocks, new=new) == [both(blocks[0], new), *blocks[1:]]


def test_loops_that_read_a_product_stay_behind_it() -> None:
    blocks, new = [pointwise(A, STATE), product(B, A)], pointwise(OUT, A, B)
    assert after(*blocks, new=new) == [*blocks, new]


def test_loops_that_read_a_sum_stay_behind_it() -> None:
    blocks, new = [pointwise(A, STATE), summed(B, A)], pointwise(OUT, A, B)
    assert after(*blocks, new=new) == [*blocks, new]


def test_what_was_put_elsewhere_is_not_read_in_the_same_loop() -> None:
    shifted = Pointwise((4,), (Store(OUT, HERE, Load(A, HERE.plus(Index(1)))),))
    blocks = [pointwise(A, STATE), product(B, A)]
    assert after(*blocks, new=shifted) == [*blocks, shifted]


def test_memory_that_is_read_in_between_is_not_written_before() -> None:
    blocks, new = [pointwise(A, STATE), product(B, C), product(D, A)], pointwise(C, STATE)
    assert after(*blocks, new=new) == [*blocks, new]


def test_loops_that_wait_for_a_state_do_not_hold_up_a_product_that_waits_for_none() -> None:
    blocks, new = [pointwise(A, X), product(B, A), product(C, STATE)], pointwise(OUT, STATE, X)
    made = after(*blocks, new=new)
    assert made == [*blocks, new]
    assert blocks_ahead(kernel(*made)) == blocks[:2]


def test_a_product_does_not_run_ahead_of_a_block_that_waits_because_of_another_value_in_it() -> None:
    blocks = [both(pointwise(A, X), pointwise(B, X)), product(C, A), pointwise(B, STATE), pointwise(NEXT, B, C)]
    assert blocks_ahead(kernel(*blocks)) == []


class Mixed(lp.Cell):
    """Products of the input beside values whose pieces do not all wait for the state."""

    def __init__(self, way: str) -> None:
        super().__init__(h=4)
        self.way = way
        numbers = torch.Generator().manual_seed(3)
        for name, shape in (("P", (4, 4)), ("Q", (8, 4))):
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=numbers, dtype=FLOAT) / 2))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(x)
        if self.way == "multiplied":
            h = torch.tanh(y @ self.P + torch.tanh(torch.cat([torch.sin(x) * y, h], 1)) @ self.Q)
            return h, h
        if self.way == "joined first":
            both = torch.cat([y.exp(), h], 1)
            h = torch.tanh(torch.sin(y) @ self.P + torch.tanh(both) @ self.Q)
            return both, h
        if self.way == "given out":
            h = torch.tanh(torch.sin(y) @ self.P + h @ self.Q[:4])
            return torch.cat([torch.sin(y) * 2, h], 1), h
        over = torch.slice_scatter(torch.cos(y), h[:, :2], 1, 0, 2)
        h = torch.tanh(torch.sin(y) @ self.P + over @ self.Q[4:])
        return over, h


@pytest.mark.parametrize("way", ["multiplied", "joined first", "given out", "written over"])
def test_pieces_that_wait_and_pieces_that_do_not_are_right_beside_products_of_the_input(way: str) -> None:
    cell = Mixed(way)
    net = lp.Recurrent(cell, engine="cpu")
    for length, batch in ((9, 2), (30, 1), (3, 30)):
        x = torch.randn(length, batch, 4, dtype=FLOAT)
        assert_close(found(net, x), found(Plain(cell), x), f"{length} steps, batch {batch}")


def scratch(*blocks: Block) -> set[str]:
    made = kernel(*blocks)
    made.buffers["scratch"] = (A, B, C, D)
    return {
        buffer.name
        for buffer in register_values(made)
        if any(buffer in {s.buffer for s in b.stores} for b in blocks if isinstance(b, Pointwise))
    }


def test_a_value_read_in_the_loop_that_makes_it_needs_no_memory() -> None:
    assert scratch(both(pointwise(A, STATE), pointwise(NEXT, A))) == {A.name}


def test_a_value_that_another_block_reads_needs_memory() -> None:
    one = both(pointwise(A, STATE), pointwise(NEXT, A))
    assert scratch(one, product(B, A)) == set()
    assert scratch(one, summed(B, A)) == set()
    assert scratch(one, product(B, STATE), pointwise(OUT, A, B)) == set()


def test_a_value_read_at_another_place_or_too_early_needs_memory() -> None:
    shifted = Pointwise((4,), (Store(NEXT, HERE, Load(A, HERE.plus(Index(1)))),))
    assert scratch(both(pointwise(A, STATE), shifted)) == set()
    assert scratch(both(pointwise(NEXT, A), pointwise(A, STATE))) == set()


@pytest.mark.parametrize("cell", [lp.GRU, lp.LSTM])
def test_what_gradients_of_gates_need_is_read_in_one_loop_before_the_product(cell: Any) -> None:
    own = cell(3, 5).double()
    net = lp.Recurrent(own, engine="cpu")
    x = torch.randn(4, 3, 3, dtype=FLOAT)
    assert_close(found(net, x), found(Plain(own), x), "joined")
    (made,) = kernels(net, "backward")
    place = next(index for index, block in enumerate(made.blocks) if isinstance(block, Product))
    outputs = {
        buffer
        for block in made.blocks[:place]
        if isinstance(block, Pointwise)
        for buffer in {s.buffer for s in block.stores}
    }
    assert outputs >= set(made.buffers["write"])
    assert sum(isinstance(block, Pointwise) for block in made.blocks[:place]) == 1
