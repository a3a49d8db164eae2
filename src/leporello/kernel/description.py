"""The description of a kernel: what one step of an inside does to one row, as an ordered list of blocks.

It names no target: the C emitter of the engine `cpu` writes it as C. Every value has a static shape per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch


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


@dataclass(frozen=True)
class Buffer:
    """Memory of a value.

    place   "state": before the step; "next": after it; "read", "write": a sequence; "row": the same at every step, one
            per row; "fixed": one for all rows; "scratch": within a step
    slot    its number among those of its place
    sizes   of the axes behind the row
    """

    name: str
    place: Literal["state", "next", "read", "write", "row", "fixed", "scratch"]
    slot: int
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def count(self) -> int:
        product = 1
        for size in self.sizes:
            product *= size
        return product


@dataclass(frozen=True)
class Load:
    """A value in memory."""

    buffer: Buffer
    index: Index


@dataclass(frozen=True)
class Along:
    """A place along one axis that is a number of the step's own, clamped to the axis."""

    number: Expression
    size: int
    stride: int


@dataclass(frozen=True)
class Fetch:
    """A value in memory whose place is computed: `index`, and what `by` adds."""

    buffer: Buffer
    index: Index
    by: tuple[Along, ...]


@dataclass(frozen=True)
class Constant:
    value: float | int | bool
    dtype: torch.dtype


@dataclass(frozen=True)
class Place:
    """An index as a number."""

    index: Index
    dtype: torch.dtype


@dataclass(frozen=True)
class Apply:
    """A pointwise operator, by its short name."""

    operator: str
    arguments: tuple[Expression, ...]
    dtype: torch.dtype


Expression = Load | Fetch | Constant | Place | Apply


def dtype_of_expression(value: Expression) -> torch.dtype:
    return value.buffer.dtype if isinstance(value, (Load, Fetch)) else value.dtype


@dataclass(frozen=True)
class Store:
    """What is put where, inside loops over the sizes of a block."""

    buffer: Buffer
    index: Index
    value: Expression


@dataclass(frozen=True)
class Pointwise:
    """Loops over `sizes` (variables i0, i1, ...) that store values."""

    sizes: tuple[int, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Reduction:
    """Loops over `sizes` (i0, i1, ...) that store one value each, gathered over `over` (k0, k1, ...).

    operator   "sum", "amax", "amin", "prod", "argmax", "argmin", "any", "all"
    """

    sizes: tuple[int, ...]
    over: tuple[int, ...]
    operator: str
    value: Expression
    buffer: Buffer
    index: Index


@dataclass(frozen=True)
class Product:
    """For each head, rows of `left` times an invariant matrix: out[h, n] = sum over k of left[h, k] matrix[h, k, n].

    matrix   its number among the packed matrices
    """

    left: Buffer
    offset: int
    heads: int
    inner: int
    outer: int
    matrix: int
    out: Buffer


Block = Pointwise | Reduction | Product


@dataclass(frozen=True)
class Matrix:
    """An invariant to be packed: which fixed read it is, and its strides along head, inner and outer axis."""

    fixed: int
    heads: int
    inner: int
    outer: int
    axes: tuple[int | None, int, int]  # of the fixed value: head, inner, outer


@dataclass(frozen=True)
class Kernel:
    """One step of an inside.

    buffers   of every place, in the order of their slots
    """

    name: str
    reverse: bool
    blocks: tuple[Block, ...]
    buffers: dict[str, tuple[Buffer, ...]]
    matrices: tuple[Matrix, ...]
    dtype: torch.dtype
