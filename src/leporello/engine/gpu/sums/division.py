"""How sums over rows are divided among thread blocks, as the words that text/sums.cuh reads.

The division depends on the sums, the rows and the layout of the values alone, not on the GPU: so the order in which
numbers are added, and with it every bit, is the same on all of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

THREADS = 256
BLOCKS = 528  # of a launch, at most: four for each processor of an H200, which run at once
MOST_TERMS = 16  # of a launch: the words of all are its argument
LOADS = 8 * THREADS  # of a block, about: of less, waiting for memory is most of the time
LOADS_ALONE = 2 * LOADS  # of a block that reads all rows of its tile: sums of several blocks are a second wait
PARTIALS = 12 * 1024  # of a tile: one block adds them
MOST_LANES = 32
LOAD_BYTES, SECTOR_BYTES = 16, 32

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
    "form",
    "rows",
    "columns",
    "fold",
    "stride",
    "other_stride",
    "inner",
    "inner_step",
    "along",
    "lanes",
    "first_block",
    "tiles",
    "splits",
    "first_tile",
    "first_partial",
)
HEAD_WORDS = 2  # the addresses of partial sums and of counters
NO_BLOCK = 2**62  # where terms begin that there are not
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
    terms        for which there are words: a power of two
    forms        a bit for each form of a term that the launch has
    tiles        counters, 0 before the launch and after it
    partials     of 4 bytes
    """

    words: array[int]
    places: tuple[tuple[int, int, int], ...]
    terms: int
    forms: int
    blocks: int
    tiles: int
    partials: int


@dataclass(frozen=True)
class _Shape:
    """How one sum is read: rows and columns after inner elements have become rows, and `fold` rows have become one.

    per      numbers of a load
    pieces   loads of a row
    factors  loads of each piece
    """

    kind: str
    rows: int
    columns: int
    fold: int
    stride: int
    other_stride: int
    per: int
    factors: int

    @property
    def pieces(self) -> int:
        return -(-self.columns // self.per)

    @property
    def loads(self) -> int:
        return self.rows * self.pieces * self.factors

    def lanes_and_splits(self, blocks: int, size: int) -> tuple[int, int]:
        """The pieces that are a tile, and among how many blocks the rows of a tile are divided.

        One block takes all rows where these are few: tiles are narrow then, down to the 32 bytes that memory gives at
        once. Else tiles are as wide as the block that adds the sums of all of them allows.
        """
        whole = min(MOST_LANES, _power(self.pieces))
        narrow = min(whole, SECTOR_BYTES // (self.per * size))
        if self.fold == 1 and self.rows * narrow * self.factors <= LOADS_ALONE:
            fitting = LOADS // (self.rows * self.factors)
            return max(narrow, min(whole, 1 << fitting.bit_length() >> 1)), 1
        lanes = whole
        while self.fold == 1 and lanes > narrow and self._splits(lanes, blocks) * lanes * self.per > PARTIALS:
            lanes //= 2
        return lanes, min(self._splits(lanes, blocks), max(1, PARTIALS // (lanes * self.per)))

    def _splits(self, lanes: int, blocks: int) -> int:
        most = -(-self.rows * lanes * self.factors // LOADS)
        return max(1, min(most, blocks // -(-self.pieces // lanes)))


def divided(sums: Sequence[Sum], rows: int, strides: Sequence[int], aligned: Sequence[bool], size: int) -> Division:
    """The division of at most MOST_TERMS sums.

    strides   of each value: elements from row to row
    aligned   of each value: whether it begins at a multiple of 16 bytes
    size      bytes of an element
    """
    shapes = [_shape(one, rows, strides, aligned, size) for one in sums]
    loads = max(1, sum(shape.loads for shape in shapes))
    most_blocks = max(1, min(BLOCKS, loads // LOADS))
    words = array("Q", [0] * HEAD_WORDS)
    places: list[tuple[int, int, int]] = []
    blocks = all_tiles = partials = forms = 0
    for one, shape in zip(sums, shapes, strict=True):
        lanes, splits = shape.lanes_and_splits(most_blocks * shape.loads // loads, size)
        tiles = -(-shape.pieces // lanes)
        form = 4 * KINDS.index(shape.kind) + 2 * (shape.per > 1) + (one.past >= 0)
        found = {
            "wide_result": int(one.wide),
            "form": form,
            "rows": shape.rows,
            "columns": shape.columns,
            "fold": shape.fold,
            "stride": shape.stride,
            "other_stride": shape.other_stride,
            "inner": one.inner,
            "inner_step": one.inner_step,
            "along": one.along,
            "lanes": lanes,
            "first_block": blocks,
            "tiles": tiles,
            "splits": splits,
            "first_tile": all_tiles,
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
        forms |= 1 << form
        blocks += tiles * splits
        if splits > 1:
            all_tiles += tiles
            partials += -(-tiles * splits * lanes * shape.per // 4) * 4  # read in pieces of 16 bytes
    terms = _power(len(sums))
    for _ in range(terms - len(sums)):
        words.extend(NO_BLOCK if name == "first_block" else 0 for name in WORDS)
    return Division(words, tuple(places), terms, forms, blocks, all_tiles, partials)


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def _shape(one: Sum, rows: int, strides: Sequence[int], aligned: Sequence[bool], size: int) -> _Shape:
    """How a sum is read: in pieces of 16 bytes where all that it reads allows it, of several rows if need be."""
    columns, stride, other_stride = one.columns, strides[one.first], 0
    kind, count = "plain", rows * one.inner
    if one.other >= 0:
        kind, other_stride = "product" if one.mean < 0 else "normalised", strides[one.other]
    elif one.inner > 1 or one.along != 1:
        regular = one.along == 1 and one.inner_step == columns and stride == one.inner * columns
        kind, stride = ("plain", columns) if regular else ("scattered", stride)
    per, factors = LOAD_BYTES // size, 1 if one.other < 0 else 2
    values = [(one.first, stride)] + ([(one.other, other_stride)] if one.other >= 0 else [])
    whole = kind != "scattered" and one.begin % per == 0 and all(aligned[value] for value, _ in values)
    fold = per // math.gcd(per, columns)
    folds = whole and fold > 1 and kind != "normalised" and one.past < 0 and count % fold == 0
    if folds and all(step == columns for _, step in values) and fold * columns <= MOST_LANES * per:
        return _Shape(kind, count // fold, fold * columns, fold, fold * columns, fold * other_stride, per, factors)
    if not whole or fold > 1 or any(step % per for _, step in values):
        per = 1
    return _Shape(kind, count, columns, 1, stride, other_stride, per, factors)
