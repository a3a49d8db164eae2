"""The interpreter runs a kernel as it is written, and refuses one that does not mean one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leporello.kernel.dependencies import block_dependencies
from leporello.kernel.description import (
    Along,
    Apply,
    Block,
    Buffer,
    Constant,
    Dependency,
    Expression,
    Fetch,
    Kernel,
    Load,
    Matrix,
    Place,
    Pointwise,
    Position,
    Product,
    Reduction,
    Store,
)
from leporello.kernel.index import Index, Quotient, Remainder
from leporello.kernel.interpreter import InvalidKernel, run

FLOAT = torch.float64
PLACES: tuple[Place, ...] = ("state", "next", "read", "write", "row", "fixed", "scratch")
I0, I1, K0 = (Index.variable(name) for name in ("i0", "i1", "k0"))


def buffer(name: str, place: Place, *sizes: int, slot: int = 0, dtype: torch.dtype = FLOAT) -> Buffer:
    return Buffer(name, place, slot, sizes, dtype, dtype)


def kernel(*blocks: Block, buffers: Sequence[Buffer], matrices: Sequence[Matrix] = (), reverse: bool = False) -> Kernel:
    by_place = {place: tuple(own for own in buffers if own.place == place) for place in PLACES}
    return Kernel("by hand", reverse, blocks, by_place, tuple(matrices), FLOAT, block_dependencies(blocks))


def loop(size: int, *stores: tuple[Buffer, Expression], index: Index = I0) -> Pointwise:
    return Pointwise((size,), tuple(Store(target, index, value) for target, value in stores))


def written(made: Kernel, order: Sequence[int] | None = None, **passed: Any) -> list[Tensor]:
    """What a kernel writes, for one step unless reads say more."""
    reads = passed.get("reads", [])
    steps = reads[0].shape[0] if reads else 1
    batch = next(
        value.shape[axis] for key, axis in (("reads", 1), ("states", 0), ("rows", 0)) for value in passed.get(key, [])
    )
    full = {"states": [], "reads": [], "rows": [], "fixed": [], **passed}
    return run(made, **full, steps=steps, batch=batch, order=order)[1]


X, OUT, A, B = (
    buffer("x", "read", 6),
    buffer("out", "write", 6),
    buffer("a", "scratch", 6),
    buffer("b", "scratch", 6, slot=1),
)
H, NEXT = buffer("h", "state", 6), buffer("h", "next", 6)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=FLOAT)


@pytest.mark.parametrize("reverse", [False, True])
def test_states_pass_from_step_to_step_in_the_direction_of_time(reverse: bool) -> None:
    step = loop(6, (NEXT, Apply("sub", (Load(X, I0), Load(H, I0)), FLOAT)), (OUT, Load(H, I0)))
    made, x, h = kernel(step, buffers=[H, NEXT, X, OUT], reverse=reverse), numbers(3, 2, 6), numbers(2, 6)
    (final,), (out,) = run(made, states=[h], reads=[x], rows=[], fixed=[], steps=3, batch=2)
    before: dict[int, Tensor] = {}
    for time in (2, 1, 0) if reverse else (0, 1, 2):
        before[time], h = h, x[time] - h
    assert torch.equal(final, h)
    assert torch.equal(out, torch.stack([before[time] for time in range(3)]))


def test_a_state_that_is_none_is_zeros() -> None:
    made, x = (
        kernel(loop(6, (NEXT, Apply("add", (Load(X, I0), Load(H, I0)), FLOAT))), buffers=[H, NEXT, X]),
        numbers(3, 2, 6),
    )
    (final,), _ = run(made, states=[None], reads=[x], rows=[], fixed=[], steps=3, batch=2)
    torch.testing.assert_close(final, x.sum(0))


def test_indices_move_values_and_may_be_quotients_and_remainders() -> None:
    turned = Index.variable(Remainder(I0, 3)).times(2).plus(Index.variable(Quotient(I0, 3)))  # [3, 2] -> [2, 3]
    x = numbers(1, 2, 6)
    (out,) = written(kernel(loop(6, (OUT, Load(X, turned))), buffers=[X, OUT]), reads=[x])
    assert torch.equal(out[0], x[0].reshape(2, 3, 2).transpose(1, 2).reshape(2, 6))


def test_positions_are_numbers_and_constants_have_their_type() -> None:
    value = Apply("mul", (Position(I0.times(2), FLOAT), Constant(0.5, FLOAT)), FLOAT)
    (out,) = written(kernel(loop(6, (OUT, value)), buffers=[X, OUT]), reads=[numbers(1, 3, 6)])
    assert torch.equal(out[0], torch.arange(6, dtype=FLOAT).expand(3, 6))


def test_rows_are_the_same_at_every_step_and_fixed_values_for_all_rows() -> None:
    row, fixed = buffer("r", "row", 6), buffer("f", "fixed", 6)
    value = Apply("add", (Load(row, I0), Apply("mul", (Load(X, I0), Load(fixed, I0)), FLOAT)), FLOAT)
    x, r, f = numbers(3, 2, 6), numbers(2, 6), numbers(6)
    (out,) = written(kernel(loop(6, (OUT, value)), buffers=[X, OUT, row, fixed]), reads=[x], rows=[r], fixed=[f])
    torch.testing.assert_close(out, r + x * f)


@pytest.mark.parametrize("place", ["fixed", "read"])
def test_a_fetched_position_is_clamped_to_its_axis(place: Place) -> None:
    table, number = buffer("table", place, 3, 2, slot=0), buffer("number", "read", slot=1 if place == "read" else 0)
    out, chosen = buffer("out", "write", 2), torch.tensor([[-5.0, 1.0, 7.0]], dtype=FLOAT)
    value = Fetch(table, I0, (Along(Load(number, Index()), 3, 2),))
    made = kernel(loop(2, (out, value)), buffers=[table, number, out])
    values = numbers(1, 3, 3, 2) if place == "read" else numbers(3, 2)
    if place == "read":
        (found,) = written(made, reads=[values, chosen])
        assert torch.equal(found[0], torch.stack([values[0, 0, 0], values[0, 1, 1], values[0, 2, 2]]))
    else:
        (found,) = written(made, reads=[chosen], fixed=[values])
        assert torch.equal(found[0], values[[0, 1, 2]])


def test_reductions_reduce_inner_loops() -> None:
    out = buffer("out", "write", 2)
    largest = Reduction((2,), (3,), "amax", Load(X, I0.times(3).plus(K0)), out, I0, FLOAT)
    x = numbers(2, 3, 6)
    (found,) = written(kernel(largest, buffers=[X, out]), reads=[x])
    assert torch.equal(found, x.reshape(2, 3, 2, 3).amax(-1))


@pytest.mark.parametrize("shared", [False, True])
def test_products_multiply_each_head_by_its_matrix_from_an_offset_on(shared: bool) -> None:
    x, values = numbers(1, 3, 6), numbers(2, 3) if shared else numbers(2, 2, 3)  # [heads, inner, outer]
    if shared:
        w, axes, passed = buffer("w", "fixed", 2, 3), (None, 0, 1), values
    else:  # [outer, heads, inner], as it may be in memory
        w, axes, passed = buffer("w", "fixed", 3, 2, 2), (1, 2, 0), values.permute(2, 0, 1).contiguous()
    product = Product(X, 1, 2, 2, 3, 0, A, FLOAT, FLOAT)
    copy = loop(6, (OUT, Load(A, I0)))
    made = kernel(product, copy, buffers=[X, A, OUT, w], matrices=[Matrix(0, 2, 2, 3, axes)])
    (found,) = written(made, reads=[x], fixed=[passed])
    left = x[0, :, 1:5].reshape(3, 2, 2)
    torch.testing.assert_close(found[0], torch.einsum("rhk,hkn->rhn", left, values.expand(2, 2, 3)).reshape(3, 6))


def test_a_matrix_that_is_only_multiplied_by_may_come_in_another_shape() -> None:
    w, x, values = buffer("w", "fixed", 6, 4), numbers(1, 3, 6), numbers(6, 4)
    out = buffer("out", "write", 4)
    product, copy = Product(X, 0, 1, 6, 4, 0, A, FLOAT, FLOAT), Pointwise((4,), (Store(out, I0, Load(A, I0)),))
    made = kernel(product, copy, buffers=[X, A, out, w], matrices=[Matrix(0, 1, 6, 4, (None, 1, 0))])
    (found,) = written(made, reads=[x], fixed=[values.t().contiguous()])
    torch.testing.assert_close(found[0], x[0] @ values)
    with pytest.raises(InvalidKernel, match="has other axes"):
        written(made, reads=[x], fixed=[values])


# ---- types


def test_values_are_rounded_where_they_are_stored_and_not_before() -> None:
    half, single = torch.bfloat16, torch.float32
    x, out = replace(X, dtype=half, arithmetic=single), replace(OUT, dtype=half, arithmetic=single)
    mid = replace(A, dtype=single, arithmetic=single)
    third = Apply("div", (Load(x, I0), Constant(3.0, single)), single)
    made = kernel(
        loop(6, (mid, third), (out, Apply("mul", (Load(mid, I0), Load(mid, I0)), single))), buffers=[x, mid, out]
    )
    value = numbers(1, 2, 6).to(half)
    (found,) = written(made, reads=[value])
    assert found.dtype == half
    assert torch.equal(found, (value.float() / 3).square().to(half))


def test_products_and_sums_are_added_in_their_accumulation_type() -> None:
    """2048 + 1 is 2048 in float16, which has 11 bits."""
    half, single = torch.float16, torch.float32
    x, one = buffer("x", "read", 2, dtype=half), buffer("w", "fixed", 2, 1, dtype=half)
    for accumulation, expected in ((half, 2048.0), (single, 2049.0)):
        out = buffer("out", "write", 1, dtype=single)
        summed = Reduction((), (2,), "sum", Load(x, K0), out, Index(), accumulation)
        values = torch.tensor([[[2048.0, 1.0]]], dtype=half)
        (found,) = written(kernel(summed, buffers=[x, out]), reads=[values])
        assert found.item() == expected
        product = Product(x, 0, 1, 2, 1, 0, out, half, accumulation)
        made = kernel(product, buffers=[x, one, out], matrices=[Matrix(0, 1, 2, 1, (None, 0, 1))])
        (found,) = written(made, reads=[values], fixed=[torch.ones(2, 1, dtype=half)])
        assert found.item() == expected


# ---- what is refused


def test_a_buffer_read_before_it_is_written_is_an_error() -> None:
    with pytest.raises(InvalidKernel, match="block 0 reads scratch 'a' before it is written"):
        written(kernel(loop(6, (OUT, Load(A, I0))), buffers=[X, A, OUT]), reads=[numbers(1, 1, 6)])


def test_scratch_of_the_step_before_is_not_there() -> None:
    first, second = loop(3, (A, Load(X, I0))), loop(6, (OUT, Load(A, I0)))
    with pytest.raises(InvalidKernel, match="block 1 reads scratch 'a' before it is written"):
        written(kernel(first, second, buffers=[X, A, OUT]), reads=[numbers(2, 1, 6)])


def test_a_result_that_is_not_wholly_written_is_an_error() -> None:
    with pytest.raises(InvalidKernel, match="write 'out' is not wholly written"):
        written(kernel(loop(5, (OUT, Load(X, I0))), buffers=[X, OUT]), reads=[numbers(1, 1, 6)])


def test_a_position_outside_a_buffer_is_an_error() -> None:
    with pytest.raises(InvalidKernel, match="reads 'x' outside its 6 elements"):
        written(kernel(loop(6, (OUT, Load(X, I0.plus(Index(1))))), buffers=[X, OUT]), reads=[numbers(1, 1, 6)])


def test_iterations_that_depend_on_each_other_are_an_error() -> None:
    shifted = Load(A, I0.times(-1).plus(Index(5)))
    with pytest.raises(InvalidKernel, match="reads 'a' where another of its iterations writes it"):
        written(kernel(loop(6, (A, Load(X, I0)), (OUT, shifted)), buffers=[X, A, OUT]), reads=[numbers(1, 1, 6)])


def test_two_iterations_that_write_one_element_are_an_error() -> None:
    with pytest.raises(InvalidKernel, match="writes one element of 'out' twice"):
        written(kernel(loop(6, (OUT, Load(X, I0)), index=Index()), buffers=[X, OUT]), reads=[numbers(1, 1, 6)])


def test_an_input_is_not_written() -> None:
    with pytest.raises(InvalidKernel, match="writes to read 'x'"):
        written(kernel(loop(6, (X, Load(X, I0))), buffers=[X]), reads=[numbers(1, 1, 6)])


def test_a_tensor_of_another_shape_or_type_is_an_error() -> None:
    made = kernel(loop(6, (OUT, Load(X, I0))), buffers=[X, OUT])
    for value in (numbers(1, 1, 5), numbers(1, 1, 6).float()):
        with pytest.raises(InvalidKernel, match="the kernel reads"):
            written(made, reads=[value])


# ---- order


def test_blocks_run_in_any_order_that_their_dependencies_allow() -> None:
    first, second = loop(6, (A, Load(X, I0))), loop(6, (B, Apply("neg", (Load(X, I0),), FLOAT)))
    last = loop(6, (OUT, Apply("add", (Load(A, I0), Apply("mul", (Load(B, I0), Load(B, I0)), FLOAT)), FLOAT)))
    made, x = kernel(first, second, last, buffers=[X, A, B, OUT]), numbers(2, 3, 6)
    found = [written(made, order, reads=[x])[0] for order in ([0, 1, 2], [1, 0, 2])]
    assert torch.equal(found[0], found[1])
    with pytest.raises(InvalidKernel, match="block 2 runs before block 1, which it depends on"):
        written(made, [0, 2, 1], reads=[x])
    with pytest.raises(InvalidKernel, match="is no order of 3 blocks"):
        written(made, [0, 1], reads=[x])


def chain() -> Kernel:
    """a = x; out = a."""
    return kernel(loop(6, (A, Load(X, I0))), loop(6, (OUT, Load(A, I0))), buffers=[X, A, OUT])


def test_a_value_of_another_block_is_read_only_if_the_dependencies_say_so() -> None:
    made = replace(chain(), dependencies=((), ()))
    with pytest.raises(InvalidKernel, match="block 1 reads 'a' of block 0, and does not say so"):
        written(made, reads=[numbers(1, 1, 6)])


def test_other_elements_than_the_dependencies_tell_are_not_read() -> None:
    first, x = loop(6, (A, Load(X, I0))), numbers(1, 2, 6)
    turned = Load(A, I0.times(-1).plus(Index(5)))
    made = kernel(first, loop(6, (OUT, turned)), buffers=[X, A, OUT])
    assert torch.equal(written(made, reads=[x])[0], x.flip(-1))
    for claim in (Dependency(0, A, "element"), Dependency(0, A, "row", (0, 1))):
        with pytest.raises(InvalidKernel, match="block 1 reads other elements of 'a' than its dependency tells"):
            written(replace(made, dependencies=((), (claim,))), reads=[x])
    fetched = Fetch(A, Index(), (Along(Position(I0, torch.int64), 6, 1),))
    made = kernel(first, loop(6, (OUT, fetched)), buffers=[X, A, OUT])
    with pytest.raises(InvalidKernel, match="block 1 reads all of 'a', and says that it reads elements"):
        written(replace(made, dependencies=((), (Dependency(0, A, "element"),))), reads=[x])
