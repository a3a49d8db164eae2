"""`Index`: a position in memory as a sum of loop variables with factors, and what reshaping does to it.

An index is affine in the loop variables of a block wherever the sizes allow it; where a reshape splits an axis in
another way, a `Quotient` or a `Remainder` of an index stands for a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leporello.loop.sizes import AnySize, Size


@dataclass(frozen=True)
class Index:
    """const + the sum of factor * variable; terms are sorted by the variable's text, and no factor is 0."""

    const: AnySize = 0
    terms: tuple[tuple[Variable, AnySize], ...] = ()

    @staticmethod
    def variable(variable: Variable) -> Index:
        return Index(0, ((variable, 1),))

    def plus(self, other: Index) -> Index:
        factors = dict(self.terms)
        for variable, factor in other.terms:
            factors[variable] = factors.get(variable, 0) + factor
        terms = [(variable, factor) for variable, factor in factors.items() if factor]
        return Index(self.const + other.const, tuple(sorted(terms, key=lambda term: str(term[0]))))

    def times(self, factor: AnySize) -> Index:
        return Index(self.const * factor, tuple((n, f * factor) for n, f in self.terms) if factor else ())

    def __str__(self) -> str:
        parts = [str(variable) if factor == 1 else f"{factor} * {variable}" for variable, factor in self.terms]
        parts += [str(self.const)] if self.const or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True)
class Quotient:
    """An index, never negative, divided by a size; rounded down."""

    index: Index
    size: AnySize

    def __str__(self) -> str:
        return f"(({self.index}) / {self.size})"


@dataclass(frozen=True)
class Remainder:
    """What is left of an index, never negative, divided by a size."""

    index: Index
    size: AnySize

    def __str__(self) -> str:
        return f"(({self.index}) % {self.size})"


Variable = str | Quotient | Remainder  # a loop variable by name, or a part of an index that is not affine


def loop_variables(sizes: Sequence[AnySize], letter: str = "i") -> list[Index]:
    """An index for each loop: its variable i0, i1, ... (or another letter); 0 for a loop of one iteration."""
    return [Index() if size == 1 else Index.variable(f"{letter}{axis}") for axis, size in enumerate(sizes)]


def row_major(indices: Sequence[Index], sizes: Sequence[AnySize]) -> Index:
    """The position in memory of one element of a contiguous value, from its position along each axis."""
    position = Index()
    for index, size in zip(indices, sizes, strict=True):
        position = position.times(size).plus(index)
    return position


def split_row_major(position: Index, sizes: Sequence[AnySize], ranges: dict[Variable, AnySize]) -> list[Index]:
    """The position along each axis of a contiguous value, from the position in memory: the inverse of `row_major`.

    ranges   how many values each variable takes; quotients and remainders that arise are added here, in place
    """
    indices: list[Index] = []
    for size in reversed(sizes[1:]):
        remainder, position = _divide(position, size, ranges)
        indices.append(remainder)
    return [*([position] if sizes else []), *indices[::-1]]


def _divide(position: Index, size: AnySize, ranges: dict[Variable, AnySize]) -> tuple[Index, Index]:
    """Remainder and quotient of a position by a size: affine where the factors allow it, else new ones in `ranges`."""
    if size == 1:
        return Index(), position
    quotient = Index(position.const // size, tuple((n, f // size) for n, f in position.terms if f % size == 0))
    rest = Index(position.const % size, tuple((n, f) for n, f in position.terms if f % size))
    spans = [factor * (ranges[variable] - 1) for variable, factor in rest.terms]
    deficit = -min(0, rest.const + sum(min(0, span) for span in spans))
    borrowed = -(-deficit // size)  # sizes to add, so that the dividend is never negative: C and Python round apart
    rest, quotient = rest.plus(Index(borrowed * size)), quotient.plus(Index(-borrowed))
    largest = rest.const + sum(max(0, span) for span in spans)
    if largest < size:
        return rest, quotient
    left, whole = Remainder(rest, size), Quotient(rest, size)
    free = isinstance(largest, Size) or isinstance(size, Size)
    ranges[left], ranges[whole] = size, (largest if free else largest // size) + 1  # not less than it takes
    return Index.variable(left), quotient.plus(Index.variable(whole))
