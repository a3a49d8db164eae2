"""Contract of `OPERATORS` with every target: each operator is built, run, and equals its meaning in torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from leporello.engine.cpu.c_operators import INTEGER_SPELLING, REDUCTION_SPELLING, SPELLING
from leporello.kernel.dependencies import block_dependencies
from leporello.kernel.description import (
    Apply,
    Block,
    Buffer,
    Expression,
    Kernel,
    Load,
    Place,
    Pointwise,
    Reduction,
    Store,
)
from leporello.kernel.index import Index
from leporello.kernel.interpreter import run
from leporello.kernel.operators import OPERATORS, SEARCHES, SELECTIONS, Operator
from tests.kernel.built import WITH_KERNELS, run_built

INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-3, -7.25, 30.0, -90.0, 1e-30, INF, -INF, NAN, 0.99]  # odd
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 5, 7, -8, 100, -100, 31, 64, -63]
DTYPES = {
    torch.float32: FLOATS,
    torch.float64: FLOATS,
    torch.int64: [*INTEGERS, 1 << 40, -(1 << 40)],
    torch.int32: INTEGERS,
    torch.uint8: [0, 1, 2, 3, 5, 127, 128, 200, 255],
    torch.bool: [False, True, True],
}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}  # relative: some units in the last place
WIDER = {  # where both sides are approximations, or where a small result is a difference of large terms
    "lgamma": 20.0,
    "tan": 20.0,
    "pow": 20.0,
    "sigmoid": 8.0,
}
NAN_KEPT = {"sign", "sgn"}  # in C the sign of NaN is NaN; torch says 0
FLOAT_RESULTS = {"div", "copysign"}  # that lowering never applies to integers
NOT_OF_BOOLS = {"sub", "neg", "quotient", "floor_divide", "fmod", "remainder", "pow", "relu", "square", "abs", "sgn"}
TESTED = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"}
TESTED |= {"logical_not", "logical_and", "logical_or", "logical_xor"}  # their value is a boolean


def takes(operator: Operator, name: str, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point:
        return operator.floats
    if operator.integers in (None, "identity") or name in FLOAT_RESULTS:
        return False
    return dtype != torch.bool or (operator.on_bools is None and name not in NOT_OF_BOOLS)


def columns(dtype: torch.dtype) -> list[Tensor]:
    """All pairs of the type's examples; the third operand is the second turned round."""
    pairs = torch.tensor(list(itertools.product(DTYPES[dtype], repeat=2)), dtype=dtype).T
    return [pairs[0], pairs[1], pairs[1].flip(0)]


def kernel_of_all(dtype: torch.dtype) -> Kernel:
    """One kernel with every operator that takes these numbers, pointwise ones in one loop; each has a write."""
    size = len(DTYPES[dtype])
    buffers: dict[Place, list[Buffer]] = {place: [] for place in ("state", "next", "read", "write", "row", "fixed")}
    buffers["scratch"] = []
    reads = [Buffer(name, "read", slot, (size * size,), dtype, dtype) for slot, name in enumerate("abc")]
    buffers["read"] = reads
    here, blocks, stores = Index.variable("i0"), list[Block](), list[Store]()
    for name, operator in OPERATORS.items():
        if not takes(operator, name, dtype):
            continue
        kind = result_type(name, dtype)
        sizes = (size,) if operator.reduction else (size * size,)
        count = {"largest": 3, "smallest": 3}.get(name, size)
        sizes = (size, count) if name in SELECTIONS else sizes
        out = Buffer(name, "write", len(buffers["write"]), sizes, kind, kind)
        buffers["write"].append(out)
        if operator.reduction:
            place = here.times(size).plus(Index.variable("k0"))
            accumulation = dtype if name in SEARCHES else kind
            value = Load(reads[0], here.plus(Index.variable("k0").times(size)))
            value = value if name in ("any", "all") else Load(reads[1], place)
            where = here.times(count).plus(Index.variable("i1")) if len(sizes) == 2 else here
            blocks.append(Reduction(sizes, (size,), name, value, out, where, accumulation))
        else:
            arguments: list[Expression] = [Load(read, here) for read in reads[: operator.arity]]
            if name == "where":
                arguments[0] = Apply("gt", (arguments[0], arguments[1]), torch.bool)
            stores.append(Store(out, here, Apply(name, tuple(arguments), kind)))
    blocks.insert(0, Pointwise((size * size,), tuple(stores)))
    real = dtype if dtype.is_floating_point else torch.float32
    final = {place: tuple(own) for place, own in buffers.items()}
    return Kernel("every operator", False, tuple(blocks), final, (), real, block_dependencies(blocks))


def result_type(name: str, dtype: torch.dtype) -> torch.dtype:
    if name in TESTED or name in ("any", "all"):
        return torch.bool
    if name in SEARCHES:
        return torch.int64
    return torch.int64 if name in ("sum", "prod") and dtype == torch.bool else dtype


def test_every_operator_has_a_spelling_in_c() -> None:
    pointwise = {name for name, operator in OPERATORS.items() if not operator.reduction}
    assert pointwise == {*SPELLING, *INTEGER_SPELLING}
    assert {name for name, operator in OPERATORS.items() if operator.reduction} == {
        *REDUCTION_SPELLING,
        *SEARCHES,
    }


def test_operators_with_a_spelling_of_their_own_on_integers_are_those_that_say_so() -> None:
    assert {name for name, operator in OPERATORS.items() if operator.integers == "own"} == set(INTEGER_SPELLING)


def test_an_operator_on_booleans_is_in_the_table_and_takes_them() -> None:
    for operator in OPERATORS.values():
        if operator.on_bools is not None:
            assert OPERATORS[operator.on_bools].operands == "any"


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("engine", WITH_KERNELS)
def test_every_operator_of_a_target_equals_its_meaning_in_torch(engine: str, dtype: torch.dtype) -> None:
    kernel = kernel_of_all(dtype)
    reads = [torch.stack([column, column.flip(0), column.roll(1)])[None] for column in columns(dtype)]
    passed = {"states": [], "reads": reads, "rows": [], "fixed": [], "steps": 1, "batch": 3}
    found, expected = run_built(engine, kernel, **passed)[1], run(kernel, **passed)[1]
    wrong = []
    for buffer, one, other in zip(kernel.buffers["write"], found, expected, strict=True):
        tolerance = TOLERANCE.get(dtype, 0.0) * WIDER.get(buffer.name, 1.0)
        close = torch.isclose(one, other, rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True)
        if buffer.name in NAN_KEPT:
            close |= one.isnan() & reads[0].isnan()
        for place in (~close).flatten().nonzero().flatten()[:3].tolist():
            values = [read.flatten()[place].item() for read in reads]
            wrong.append(f"{buffer.name} at {place} {values}: {one.flatten()[place]} not {other.flatten()[place]}")
    assert not wrong, "\n".join(wrong)
