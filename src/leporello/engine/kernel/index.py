"""`Index`: a place along one axis, as a sum of loop variables with factors; and what views do to it.

Knows integers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Index:
    """const + the sum of factor * variable."""

    const: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def variable(name: str) -> Index:
        return Index(0, ((name, 1),))

    def plus(self, other: Index) -> Index:
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Index(self.const + other.const, tuple(sorted((n, f) for n, f in terms.items() if f)))

    def times(self, factor: int) -> Index:
        return Index(self.const * factor, tuple((n, f * factor) for n, f in self.terms) if factor else ())

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor} * {name}" for name, factor in self.terms]
        parts += [str(self.const)] if self.const or not parts else []
        return " + ".join(parts).replace("+ -", "- ")


def flat(indices: Sequence[Index], sizes: Sequence[int]) -> Index:
    """The place in memory of a value whose axes lie behind each other."""
    found = Index()
    for index, size in zip(indices, sizes, strict=True):
        found = found.times(size).plus(index)
    return found


def unflat(place: Index, sizes: Sequence[int], ranges: dict[str, int]) -> list[Index]:
    """The places along axes of these sizes that lie behind each other, from the place in memory.

    ranges   how many values each variable takes; what is parted is a variable of its own, and added
    """
    found: list[Index] = []
    for size in reversed(sizes[1:]):
        rest, place = _parted(place, size, ranges)
        found.append(rest)
    return [*([place] if sizes else []), *found[::-1]]


def _parted(place: Index, size: int, ranges: dict[str, int]) -> tuple[Index, Index]:
    """Remainder and quotient by a size; exact where factors allow it, else spelt as C does it."""
    if size == 1:
        return Index(), place
    whole = Index(place.const // size, tuple((n, f // size) for n, f in place.terms if f % size == 0))
    rest = Index(place.const % size, tuple((n, f) for n, f in place.terms if f % size))
    reach = [f * (ranges[n] - 1) for n, f in rest.terms]
    below = -min(0, rest.const + sum(min(0, end) for end in reach))
    up = -(-below // size)  # so many sizes more, and C divides no negative number
    rest, whole = rest.plus(Index(up * size)), whole.plus(Index(-up))
    most = rest.const + sum(max(0, end) for end in reach)
    if most < size:
        return rest, whole
    remainder, quotient = f"(({rest}) % {size})", f"(({rest}) / {size})"
    ranges[remainder], ranges[quotient] = size, most // size + 1
    return Index.variable(remainder), whole.plus(Index.variable(quotient))
