"""How sums over rows are divided among thread blocks, as the words that text/sums.cuh reads.

The division depends on the sums, the rows and the layout of the values alone, not on the GPU: so the order in which
numbers are added, and with it every bit, is the same on all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

THREADS = 512
BLOCKS = 528  # of a launch, about: four for each processor of an H200
MOST_TERMS = 16  # of a launch: the words of all are its argument
LEAST_LOADS = 4  # of a thread
WIDE_LANES, NARROW_LANES = 8, 32  # of 16 bytes, or of one number: 128 or 64 bytes of a row
LOAD_BYTES = 16

KINDS = ("plain", "product", "normalised", "scattered")
WORDS = (
    "first",
    "other",
    "mean",
    "rate",
    "past",
    "out",
    "out_again",
    "wide_result",
    "kind",
    "per_lane",
    "rows",
    "columns",
    "stride",
    "other_stride",
    "inner",
    "inner_step",
    "along",
    "lanes",
    "first_block",
    "splits",
    "first_tile",
    "first_partial",
)
HEAD_WORDS = 3  # the addresses of partial sums and of counters, and the number of terms
WORD_COUNT = HEAD_WORDS + MOST_TERMS * len(WORDS)
ADDRESSES = ("first", "other", "mean", "rate", "past")


@dataclass(frozen=True)
class Sum:
    """A sum over rows, of values that are arguments of a call, by their indices; -1 for one that there is not.

    columns            of the result
    results            the indices of the results that it is: one, or two that are equal
    first              the values whose rows are added
    other, mean, rate  factors of it: `other`, or (other - mean) * rate with a mean and a rate for each row
    past               the mask of rows that are skipped
    begin              where a row begins in those of `first`
    inner, inner_step  elements of a row that are added too, and the distance from one to the next
    along              the distance from column to column
    wide               whether the result is float32, whatever is summed
    """

    columns: int
    results: tuple[int, ...]
    first: int
    other: int = -1
    mean: int = -1
    rate: int = -1
    past: int = -1
    begin: int = 0
    inner: int = 1
    inner_step: int = 0
    along: int = 1
    wide: bool = False


@dataclass(frozen=True)
class Division:
    """The words of a launch without addresses, and what it needs.

    places       of each address: the word, the index of the value, and what is added in bytes; results are behind all
                 values
    tiles        counters, 0 before the launch and after it
    partials     of 4 bytes
    """

    words: array[int]
    places: tuple[tuple[int, int, int], ...]
    blocks: int
    tiles: int
    partials: int


@dataclass(frozen=True)
class _Shape:
    """How one sum is read: a kind, and rows and columns after inner elements have become rows."""

    kind: str
    rows: int
    stride: int
    per_lane: int
    lanes: int
    tiles: int
    most_splits: int


def divided(sums: Sequence[Sum], rows: int, strides: Sequence[int], aligned: Sequence[bool], size: int) -> Division:
    """The division of at most MOST_TERMS sums.

    strides   of each value: elements from row to row
    aligned   of each value: whether it begins at a multiple of 16 bytes
    size      bytes of an element
    """
    shapes = [_shape(one, rows, strides, aligned, size) for one in sums]
    work = [one.columns * shape.rows * (1 if one.other < 0 else 2) for one, shape in zip(sums, shapes, strict=True)]
    words = array("Q", [0, 0, len(sums)])
    places: list[tuple[int, int, int]] = []
    blocks = tiles = partials = 0
    for one, shape, numbers in zip(sums, shapes, work, strict=True):
        share = BLOCKS * numbers // (max(1, sum(work)) * shape.tiles)
        splits = max(1, min(share, shape.most_splits))
        found = {
            "wide_result": int(one.wide),
            "kind": KINDS.index(shape.kind),
            "per_lane": shape.per_lane,
            "rows": shape.rows,
            "columns": one.columns,
            "stride": shape.stride,
            "other_stride": 0 if one.other < 0 else strides[one.other],
            "inner": one.inner,
            "inner_step": one.inner_step,
            "along": one.along,
            "lanes": shape.lanes,
            "first_block": blocks,
            "splits": splits,
            "first_tile": tiles,
            "first_partial": partials,
        }
        for name in ADDRESSES:
            value = getattr(one, name)
            if value >= 0:
                added = one.begin * size if name == "first" else 0
                places.append((len(words) + WORDS.index(name), value, added))
        for name, result in zip(("out", "out_again"), one.results, strict=False):
            places.append((len(words) + WORDS.index(name), len(strides) + result, 0))
        words.extend(found.get(name, 0) for name in WORDS)
        blocks += shape.tiles * splits
        tiles += shape.tiles
        width = shape.lanes * shape.per_lane
        partials += -(-shape.tiles * splits * width // 4) * 4  # read in pieces of 16 bytes
    words.extend([0] * (WORD_COUNT - len(words)))
    return Division(words, tuple(places), blocks, tiles, partials)


def _shape(one: Sum, rows: int, strides: Sequence[int], aligned: Sequence[bool], size: int) -> _Shape:
    """How a sum is read: in pieces of 16 bytes where all that it reads allows it."""
    stride, kind, count = strides[one.first], "plain", rows * one.inner
    if one.other >= 0:
        kind = "product" if one.mean < 0 else "normalised"
    elif one.inner > 1 or one.along != 1:
        regular = one.along == 1 and one.inner_step == one.columns and stride == one.inner * one.columns
        kind, stride = ("plain", one.columns) if regular else ("scattered", stride)
    per = LOAD_BYTES // size
    strided = [(one.first, stride)] + ([(one.other, strides[one.other])] if one.other >= 0 else [])
    pieces = all(aligned[value] and step % per == 0 for value, step in strided) and one.begin % per == 0
    if kind == "scattered" or not pieces or one.columns % per:
        per = 1
    loads = -(-one.columns // per)
    lanes = min(WIDE_LANES if per > 1 else NARROW_LANES, 1 << (loads - 1).bit_length())
    most_splits = -(-count // (THREADS // lanes * LEAST_LOADS))
    return _Shape(kind, count, stride, per, lanes, -(-loads // lanes), max(1, most_splits))
