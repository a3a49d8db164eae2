"""Free sizes: axes of a call's context whose length differs from call to call, and sizes that are made of them.

While a step is traced, such a length is a symbol of torch. A `Size` is a polynomial of these symbols with integers as
coefficients: what ports and kernels know of a shape. A call knows the numbers, and passes them along with its batch: a
`Counted` is a number of rows that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Monomial = tuple[int, ...]  # indices of free lengths, in order; one that is multiplied with itself comes twice


@dataclass(frozen=True)
class Size:
    """A sum of products of free lengths, which are at least 1.

    terms   the coefficient of each product, sorted; none is 0. An integer is no `Size`: see `size_of`

    A comparison is true where it holds for every length; False says that it may not hold.
    """

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def length(index: int) -> Size:
        """The free length with this index."""
        return Size((((index,), 1),))

    def value(self, lengths: Sequence[int]) -> int:
        """The number, for these lengths."""
        total = 0
        for monomial, factor in self.terms:
            for index in monomial:
                factor *= lengths[index]
            total += factor
        return total

    def text(self, name: str) -> str:
        """An expression in Python and C.

        name   a pattern for the length with an index, such as "n{}"
        """
        parts = [
            " * ".join([*([str(factor)] if factor != 1 or not monomial else []), *map(name.format, monomial)])
            for monomial, factor in self.terms
        ]
        whole = " + ".join(parts).replace("+ -", "- ")
        return whole if " " not in whole else f"({whole})"

    def __str__(self) -> str:
        return self.text("n{}")

    __repr__ = __str__

    @cached_property
    def nominal(self) -> int:
        """The number for lengths of common size: for decisions that only cost time."""
        return self.value([NOMINAL_LENGTH] * (1 + max(index for monomial, _ in self.terms for index in monomial)))

    # ---- arithmetic: with integers and sizes

    def __add__(self, other: AnySize) -> AnySize:
        terms = dict(self.terms)
        for monomial, factor in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + factor
        return _simplified(terms)

    def __mul__(self, other: AnySize) -> AnySize:
        terms: dict[Monomial, int] = {}
        for one, a in self.terms:
            for two, b in _terms(other):
                monomial = tuple(sorted(one + two))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _simplified(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> AnySize:
        return self * -1

    def __sub__(self, other: AnySize) -> AnySize:
        return self + other * -1

    def __rsub__(self, other: AnySize) -> AnySize:
        return self * -1 + other

    def __mod__(self, other: AnySize) -> AnySize:
        return _divided(self, other)[1]

    def __rmod__(self, other: int) -> AnySize:
        return _divided(other, self)[1]

    def __floordiv__(self, other: AnySize) -> AnySize:
        return _divided(self, other)[0]

    def __rfloordiv__(self, other: int) -> AnySize:
        return _divided(other, self)[0]

    # ---- comparison

    def __lt__(self, other: AnySize) -> bool:
        return _is_positive(other - self)

    def __gt__(self, other: AnySize) -> bool:
        return _is_positive(self - other)

    def __le__(self, other: AnySize) -> bool:
        return _is_positive(other - self + 1)

    def __ge__(self, other: AnySize) -> bool:
        return _is_positive(self - other + 1)


AnySize = Any  # an integer or a `Size`; what runs a kernel without free lengths takes it for an integer
SMALLEST_LENGTH, NOMINAL_LENGTH = 1, 32


def _terms(size: AnySize) -> Iterable[tuple[Monomial, int]]:
    return size.terms if isinstance(size, Size) else (((), size),)


def _simplified(terms: Mapping[Monomial, int]) -> AnySize:
    kept = tuple(sorted((monomial, factor) for monomial, factor in terms.items() if factor))
    if not kept:
        return 0
    return kept[0][1] if len(kept) == 1 and not kept[0][0] else Size(kept)


def _divided(size: AnySize, by: AnySize) -> tuple[AnySize, AnySize]:
    """Quotient and remainder, term by term: what the divisor, a single term, does not divide is the remainder."""
    divisor = list(_terms(by))
    if len(divisor) != 1:
        return (1, 0) if size == by else (0, size)
    (monomial, factor) = divisor[0]
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for own, coefficient in _terms(size):
        remaining = _without(own, monomial)
        if remaining is None or coefficient % factor:
            rest[own] = coefficient
        else:
            quotient[remaining] = coefficient // factor
    return _simplified(quotient), _simplified(rest)


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """A product without some of its factors; None if it does not have them."""
    remaining = list(monomial)
    for index in part:
        if index not in remaining:
            return None
        remaining.remove(index)
    return tuple(remaining)


def _is_positive(size: AnySize) -> bool:
    """Whether a size is more than 0 for all lengths: it is for the smallest ones, and no length makes it smaller."""
    if isinstance(size, int):
        return size > 0
    if any(factor < 0 for monomial, factor in size.terms if monomial):
        return False
    return size.value([SMALLEST_LENGTH] * (1 + max(index for monomial, _ in size.terms for index in monomial))) > 0


def nominal(size: AnySize) -> int:
    """The size itself, or its number for lengths of common size."""
    return size.nominal if isinstance(size, Size) else size


class Counted(int):
    """A number of rows with the free lengths of the call."""

    lengths: tuple[int, ...]

    def __new__(cls, number: int, lengths: tuple[int, ...]) -> Counted:
        counted = super().__new__(cls, number)
        counted.lengths = lengths
        return counted

    def times(self, steps: int) -> Counted:
        """The rows of so many steps."""
        return Counted(int(self) * steps, self.lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counted, (int(self), self.lengths)


class LengthsFixed(Exception):
    """A free length was taken for a number: what was made holds for that number only."""
