"""`Geometry`: how many thread blocks share the rows of a kernel, and what each has in registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leporello.engine.gpu.division.schedule import Multiplication, Schedule, Vector

SHARED_BYTES = 227 * 1024  # of a block, at most (sm_90)
KEPT_REGISTERS = 144  # of a thread, for matrices
ROWS = 8  # of a tile
CHUNK_BYTES = 16 * ROWS
EXCHANGES = ("block", "cluster", "grid", "levels")


@dataclass(frozen=True)
class Geometry:
    """The choice of a plan: see device.cuh.

    exchange   "block": a block has all units; "cluster": the blocks of a cluster, by distributed shared memory;
               "grid": any number of blocks, through L2; "levels": each level is a launch of its own, and all values
               are in global memory
    blocks     that share the units of a group of rows
    tiles      of eight rows, in a group
    threads    of a block
    heads      that have groups of blocks of their own (Schedule.heads); 1 where all units share one
    """

    exchange: str
    blocks: int
    tiles: int
    threads: int = 256
    heads: int = 1

    def __str__(self) -> str:
        if self.exchange == "levels":
            return f"each level is a kernel, a thread for each unit of a row, {self.threads} in a block"
        rows = f"{ROWS * self.tiles} rows of the batch" + (" of one head" if self.heads > 1 else "")
        if self.blocks == 1:
            return f"one block of {self.threads} threads takes {rows}"
        how = "a cluster of" if self.exchange == "cluster" else "through L2," if self.exchange == "grid" else ""
        return f"{how} {self.blocks} blocks of {self.threads} threads take {rows}".strip()

    def own(self, space: int) -> int:
        """The units of a space that a block has."""
        return -(-self.in_head(space) // self.blocks)

    def in_head(self, space: int) -> int:
        """The units of a space that a group of blocks has."""
        return space // self.heads

    def groups(self, batch: int) -> int:
        """The groups of blocks that take all rows of a batch through all steps."""
        return -(-batch // (ROWS * self.tiles)) * self.heads


@dataclass(frozen=True)
class Tiling:
    """How a block's warps divide a multiplication: `Multiply` or `Scatter` of device.cuh.

    rows         of the result that a block has
    tiles16      of 16 rows: of this block, and of each other one where sums are scattered
    over_rows    warps over rows
    over_inner   warps over inner numbers, or groups of warps that add up scattered sums
    pieces       of a warp: four chunks of inner numbers
    kept         of these in registers
    scattered    whether every block multiplies its own slice for all units, and sends sums
    """

    rows: int
    tiles16: int
    over_rows: int
    over_inner: int
    pieces: int
    kept: int
    scattered: bool = False

    @property
    def pitch(self) -> int:
        """Floats from row to row of the sums in shared memory."""
        return self.tiles16 * 16 + 4

    def tiles_of_warp(self, geometry: Geometry) -> int:
        """Tiles of 16 rows that a warp has."""
        whole = self.tiles16 * (geometry.blocks if self.scattered else 1)
        return -(-whole // self.over_rows)

    def rest_bytes(self, geometry: Geometry) -> int:
        """Of matrices in shared memory."""
        warps = self.over_rows * (1 if self.scattered else self.over_inner)
        return warps * self.tiles_of_warp(geometry) * (self.pieces - self.kept) * 1024

    @property
    def sum_bytes(self) -> int:
        return -(-2 * self.over_inner * ROWS * self.pitch * 4 // 16) * 16


def is_scattered(schedule: Schedule, multiplication: Multiplication, geometry: Geometry) -> bool:
    """Whether partial sums are fewer bytes than the vector, and nobody else reads the vector."""
    vector = multiplication.vector
    shared = sum(other.vector is vector for other in schedule.multiplications) > 1
    if geometry.exchange == "block" or vector.state is not None or vector.by_units or shared:
        return False
    rows = multiplication.rows(geometry.own)
    return -(-rows // 16) * 16 < 0.75 * chunks_of(vector, geometry) * per_chunk(vector)


def per_chunk(vector: Vector) -> int:
    """Elements of a vector in 16 bytes."""
    return 8 if vector.of.dtype in (torch.float16, torch.bfloat16) else 4


def padded_own(vector: Vector, geometry: Geometry) -> int:
    """The units of a vector that a block sends for each part: whole chunks."""
    per = per_chunk(vector)
    return -(-geometry.own(vector.space) // per) * per


def chunks_of(vector: Vector, geometry: Geometry) -> int:
    """The chunks of a block's slice of a vector."""
    return len(vector.places) * padded_own(vector, geometry) // per_chunk(vector)


def tilings(schedule: Schedule, geometry: Geometry) -> list[Tiling]:
    """The tiling of every multiplication: registers go to the first ones first."""
    found, left = [], KEPT_REGISTERS
    for multiplication in schedule.multiplications:
        scattered = is_scattered(schedule, multiplication, geometry)
        tiling = (_scattered_tiling if scattered else _tiling)(multiplication, geometry, left)
        left -= tiling.kept * 8 * tiling.tiles_of_warp(geometry)
        found.append(tiling)
    return found


def _scattered_tiling(multiplication: Multiplication, geometry: Geometry, registers: int) -> Tiling:
    rows = multiplication.rows(geometry.own)
    pieces, warps = -(-chunks_of(multiplication.vector, geometry) // 4), geometry.threads // 32
    tiles16 = -(-rows // 16)
    groups = next(n for n in (8, 4, 2, 1) if n == 1 or (n * tiles16 <= warps and geometry.blocks % n == 0))
    tiling = Tiling(rows, tiles16, warps, groups, pieces, 0, scattered=True)
    kept = max(0, min(pieces, registers // (8 * tiling.tiles_of_warp(geometry))))
    return replace(tiling, kept=kept)


def _tiling(multiplication: Multiplication, geometry: Geometry, registers: int) -> Tiling:
    rows = multiplication.rows(geometry.own)
    pieces = -(-chunks_of(multiplication.vector, geometry) * geometry.blocks // 4)
    warps = geometry.threads // 32
    outputs = sum(result.parts for result in multiplication.results)
    best: tuple[float, Tiling] | None = None
    over_rows = 1
    while over_rows <= warps:
        over_inner = warps // over_rows
        tiles = -(-rows // (16 * over_rows)) * over_rows
        own, deep = tiles // over_rows, -(-pieces // over_inner)
        kept = max(0, min(deep, registers // (8 * own)))
        cost = 2.0 * own * deep + deep + 0.5 * over_inner * outputs + 2.0 * own * (deep - kept)
        tiling = Tiling(rows, tiles, over_rows, over_inner, deep, kept)
        if best is None or cost < best[0]:
            best = cost, tiling
        over_rows *= 2
    assert best is not None
    return best[1]


LEVELS = Geometry("levels", 1, 1, 128)
