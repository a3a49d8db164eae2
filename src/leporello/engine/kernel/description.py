"""The description of a kernel: what one step of an inside does to one row, as an ordered list of blocks.

Neutral: the C writer of the CPU engine spells it; another target would spell it otherwise. Every value has a static
shape per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from leporello.engine.kernel.index import Index


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
