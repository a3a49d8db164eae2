"""What the blocks of a kernel read: which fixed values are loaded, and which products wait for no state."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.c_memory import MAX_ROWS_TOGETHER
from leporello.kernel.dependencies import block_dependencies, blocks_ahead, loaded, read, written
from leporello.kernel.description import (
    Along,
    Apply,
    Block,
    Buffer,
    Constant,
    Expression,
    Fetch,
    Kernel,
    Load,
    Pointwise,
    Product,
    Reduction,
    Store,
)
from leporello.kernel.index import Index
from tests.close import assert_close
from tests.engine.results import found

pytestmark = pytest.mark.kernels

FLOAT = torch.float64
HERE = Index.variable("i0")


def memory(place: str, slot: int = 0) -> Buffer:
    return Buffer(f"{place}{slot}", place, slot, (4,), FLOAT, FLOAT)  # type: ignore[arg-type]


STATE, NEXT, X, FIXED = (memory(place) for place in ("state", "next", "read", "fixed"))
A, B, C, D = (memory("scratch", slot) for slot in range(4))


def pointwise(out: Buffer, *values: Buffer | Expression) -> Block:
    """out = a function of the values."""
    arguments = tuple(Load(value, HERE) if isinstance(value, Buffer) else value for value in values)
    return Pointwise((4,), (Store(out, HERE, Apply("add", arguments, FLOAT)),))


def product(out: Buffer, left: Buffer) -> Block:
    return Product(left, 0, 1, 4, 4, 0, out, FLOAT, FLOAT)


def summed(out: Buffer, value: Buffer) -> Block:
    return Reduction((), (4,), "sum", Load(value, Index.variable("k0")), out, Index(), FLOAT)


def kernel(*blocks: Block) -> Kernel:
    return Kernel("made by hand", False, blocks, {}, (), FLOAT, block_dependencies(blocks))


def test_a_block_reads_what_its_values_are_made_of() -> None:
    number = Apply("mul", (Load(B, HERE), Constant(2, FLOAT)), FLOAT)
    assert read(pointwise(A, X, number)) == {X, B}
    assert read(pointwise(A, Fetch(FIXED, HERE, (Along(Load(C, HERE), 4, 1),)))) == {FIXED, C}
    assert read(product(A, B)) == {B}
    assert read(summed(A, B)) == {B}
    assert [written(block) for block in (pointwise(A, X), product(B, X), summed(C, X))] == [{A}, {B}, {C}]


def test_a_value_used_often_is_read_in_one_go() -> None:
    """Each value doubles the one before: as many ways to the first as nobody can walk."""
    value: Expression = Load(X, HERE)
    for _ in range(100):
        value = Apply("add", (value, value), FLOAT)
    assert read(pointwise(A, value)) == {X}


def test_a_matrix_that_is_only_multiplied_is_not_loaded() -> None:
    assert loaded(kernel(product(A, STATE), pointwise(NEXT, A, X))) == set()


def test_fixed_values_in_functions_sums_and_places_are_loaded() -> None:
    fixed = [memory("fixed", slot) for slot in range(4)]
    fetched = Fetch(fixed[3], HERE, (Along(Load(fixed[1], HERE), 4, 1),))
    assert loaded(kernel(pointwise(A, fixed[0]), pointwise(NEXT, A, fetched))) == {0, 1, 3}
    assert loaded(kernel(summed(A, fixed[2]))) == {2}


def test_a_product_of_the_input_runs_ahead_and_one_of_the_state_does_not() -> None:
    blocks = product(A, X), product(B, STATE), pointwise(NEXT, A, B)
    assert blocks_ahead(kernel(*blocks)) == [blocks[0]]


def test_what_a_product_ahead_needs_runs_ahead_in_the_same_order() -> None:
    blocks = pointwise(A, X), summed(B, A), product(C, B), product(D, STATE), pointwise(NEXT, C, D)
    assert blocks_ahead(kernel(*blocks)) == [*blocks[:3]]


def test_what_no_product_needs_stays_in_its_step() -> None:
    blocks = pointwise(A, X), product(B, STATE), pointwise(NEXT, A, B)
    assert blocks_ahead(kernel(*blocks)) == []


def test_a_product_of_what_comes_from_the_state_waits_however_far_it_is() -> None:
    blocks = pointwise(A, STATE), summed(B, A), pointwise(C, B, X), product(D, C), pointwise(NEXT, D)
    assert blocks_ahead(kernel(*blocks)) == []


def test_memory_that_a_waiting_block_writes_to_is_never_written_ahead() -> None:
    """Written ahead for several steps, it would be overwritten before it is read."""
    first = product(A, X), pointwise(B, A), pointwise(A, STATE), product(C, A), pointwise(NEXT, B, C)
    assert blocks_ahead(kernel(*first)) == []
    second = pointwise(A, STATE), pointwise(NEXT, A), product(A, X), pointwise(memory("write"), A)
    assert blocks_ahead(kernel(*second)) == []


class Deep(lp.Cell):
    """h' = tanh(B tanh(A x) + W h): two products and a function of the input, one product of the state."""

    def __init__(self) -> None:
        super().__init__(h=5)
        self.A, self.B, self.W = nn.Linear(3, 7), nn.Linear(7, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.B(torch.tanh(self.A(x))) + self.W(h))
        return h, h


def kernels(net: lp.Recurrent, sweep: str) -> list[Kernel]:
    ((plan, _),) = net._plan_cache.plans.values()
    return [timed.kernel.kernel for timed in getattr(plan, sweep).program.timed if timed.kernel is not None]


def test_products_of_the_input_run_ahead_of_the_steps_whatever_the_length() -> None:
    cell = Deep().double()
    net, twin = lp.Recurrent(cell, engine="cpu"), lp.Recurrent(cell, engine="stepwise")
    for length, batch in (
        (1, 1),
        (MAX_ROWS_TOGETHER - 1, 1),
        (MAX_ROWS_TOGETHER, 1),
        (2 * MAX_ROWS_TOGETHER + 1, 1),
        (9, 5),
        (3, MAX_ROWS_TOGETHER + 1),
    ):
        x = torch.randn(length, batch, 3, dtype=FLOAT)
        assert_close(found(net, x), found(twin, x), f"{length} steps, batch {batch}")
    (made,) = kernels(net, "forward")
    early, all_products = blocks_ahead(made), [block for block in made.blocks if isinstance(block, Product)]
    assert len(all_products) == 3
    assert sum(isinstance(block, Product) for block in early) == 2
    assert all("state" not in {buffer.place for buffer in read(block)} for block in early)


class Looked(lp.Cell):
    """A matrix that is turned, multiplied by, and looked up row by row."""

    def __init__(self) -> None:
        super().__init__(h=5)
        self.W = nn.Parameter(torch.randn(5, 5, dtype=FLOAT))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        turned = self.W.t()
        h = torch.tanh(h @ turned + F.embedding(h.argmax(-1), turned) + x)
        return h, h


def test_a_matrix_that_is_multiplied_and_looked_up_is_right_in_both() -> None:
    cell, x = Looked(), torch.randn(6, 3, 5, dtype=FLOAT)
    net, twin = lp.Recurrent(cell, engine="cpu"), lp.Recurrent(cell, engine="stepwise")
    assert_close(found(net, x), found(twin, x), "looked up")
    (made,) = kernels(net, "forward")
    assert loaded(made) == {matrix.fixed for matrix in made.matrices}


# ---- dependencies between blocks


def needs(*blocks: Block) -> list[list[tuple[int, str, str]]]:
    """Of each block: on which, through which buffer, how."""
    return [[(need.block, need.buffer.name, need.access) for need in own] for own in block_dependencies(blocks)]


def test_a_block_that_reads_only_inputs_needs_no_other() -> None:
    assert needs(pointwise(A, STATE, X), product(B, STATE), summed(C, X)) == [[], [], []]


def test_a_function_of_what_was_computed_at_the_same_place_needs_elements() -> None:
    assert needs(pointwise(A, X), pointwise(B, A))[1] == [(0, A.name, "element")]
    assert needs(product(A, X), pointwise(B, A))[1] == [(0, A.name, "element")]


def test_the_nesting_of_loops_does_not_matter_where_memory_is_walked_in_order() -> None:
    nested = Index.variable("i0").times(2).plus(Index.variable("i1"))
    square = Pointwise((2, 2), (Store(B, nested, Load(A, nested)),))
    assert needs(pointwise(A, X), square)[1] == [(0, A.name, "element")]


def test_products_and_sums_need_the_whole_row() -> None:
    assert needs(pointwise(A, X), product(B, A), summed(C, A))[1:] == [[(0, A.name, "row")]] * 2


def test_a_value_read_at_another_place_needs_the_row() -> None:
    turned = Load(A, HERE.times(-1).plus(Index(3)))
    assert needs(pointwise(A, X), pointwise(B, turned))[1] == [(0, A.name, "row")]
    fetched = Fetch(A, Index(), (Along(Load(X, HERE), 4, 1),))
    assert needs(pointwise(A, X), pointwise(B, fetched))[1] == [(0, A.name, "row")]
    assert needs(summed(A, X), pointwise(B, Load(A, Index())))[1] == [(0, A.name, "row")]  # one for all


def test_a_row_that_is_read_at_offsets_says_which() -> None:
    gates = Pointwise((2,), (Store(B, HERE, Apply("mul", (Load(A, HERE), Load(A, HERE.plus(Index(2)))), FLOAT)),))
    (need,) = block_dependencies([product(A, X), gates])[1]
    assert (need.access, need.offsets) == ("row", (0, 2))


def test_one_element_that_needs_more_needs_the_row() -> None:
    both = pointwise(B, Load(A, HERE), Load(A, Index(1)))
    assert needs(pointwise(A, X), both)[1] == [(0, A.name, "row")]


def test_memory_that_is_written_again_keeps_its_order() -> None:
    first, reader, second = pointwise(A, X), pointwise(B, A), pointwise(A, STATE)
    assert needs(first, reader, second) == [[], [(0, A.name, "element")], [(0, A.name, "order"), (1, A.name, "order")]]


def test_values_fused_into_one_block_are_no_dependency() -> None:
    assert needs(Pointwise((4,), (Store(A, HERE, Load(X, HERE)), Store(B, HERE, Load(A, HERE))))) == [[]]
