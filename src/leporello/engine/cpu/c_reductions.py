"""Reductions in C: along which axis their results are computed as vectors, side by side."""

from __future__ import annotations

from leporello.engine.cpu.c_operators import REDUCTION_SPELLING
from leporello.kernel.description import Expression, Fetch, Load, Reduction, operands
from leporello.kernel.index import Index

LEAST_SIDE_BY_SIDE, MOST_SIDE_BY_SIDE = 8, 64  # results of a reduction that are vectors; more come in turn


def side_by_side(block: Reduction) -> int | None:
    """The axis along which results of a reduction, and what they are reduced of, lie side by side; None if none does.

    Worth it where elements that are reduced into one lie apart.
    """
    if block.operator not in REDUCTION_SPELLING:
        return None
    loads = [part.index for part in _parts(block.value) if isinstance(part, (Load, Fetch))]
    inner = next((f"k{axis}" for axis in reversed(range(len(block.over))) if block.over[axis] != 1), None)
    if inner is None or any(isinstance(part, Fetch) for part in _parts(block.value)):
        return None
    if all(_stride(index, inner) in (0, 1) for index in loads):
        return None
    for axis in reversed(range(len(block.sizes))):
        strides = [_stride(index, f"i{axis}") for index in [block.index, *loads]]
        if block.sizes[axis] >= LEAST_SIDE_BY_SIDE and strides[0] == 1 and set(strides[1:]) in ({1}, {0, 1}):
            return axis
    return None


def _parts(value: Expression) -> list[Expression]:
    """All expressions that an expression is made of, itself included."""
    found: list[Expression] = []
    pending, seen = [value], set[int]()
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            found.append(part)
            pending += operands(part)
    return found


def _stride(index: Index, variable: str) -> int | None:
    """The factor of a loop variable in an index; None where the index is not affine in it."""
    if any(not isinstance(part, str) and variable in str(part) for part, _ in index.terms):
        return None
    return dict(index.terms).get(variable, 0)
