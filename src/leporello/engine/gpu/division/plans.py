"""The choice of a geometry for a kernel and a batch: a model of the clocks of one step, fitted to measurements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress

from leporello.engine.gpu.division.geometry import (
    CHUNK_BYTES,
    ROWS,
    SHARED_BYTES,
    Geometry,
    chunks_of,
    per_chunk,
    tilings,
)
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.gpu.text.levels_text import LevelsText
from leporello.engine.gpu.text.registers import elements_of
from leporello.errors import EngineRefusal

MAX_TILES = 8
FEW_THREADS = 128  # of a block of a cluster: for few units, barriers of four warps are faster than those of eight
LARGE_BATCH = 64  # from here on kernels for each level are measured too
CLUSTERS = {8: 15, 16: 7}  # that 132 multiprocessors run at once
# Clocks, fitted to 419 kernels of RNN, GRU and LSTM on an H200 in bfloat16: off by 19% in the mean, and the fastest
# geometry is among the first seven of the model in all 60 cases.
COSTS = {
    "level": 241.0,
    "piece of a tile": 38.6,
    "piece in shared memory": 12.3,
    "piece of a vector": 17.1,
    "part of a sum": 31.2,
    "block's sum": 113.0,
    "statement": 9.9,
    "cluster": 304.0,
    "cluster, KB": 3.4,
    "grid": 1212.0,
    "grid, KB": 15.5,
}


def geometries(schedule: Schedule, batch: int, processors: int, clusters: bool) -> Iterator[Geometry]:
    """All geometries that make sense for a batch."""
    tiles_all = -(-batch // ROWS)
    heads = schedule.heads
    spaces = [*(v.space for v in schedule.vectors), *(one.part.space for one in schedule.statements)]
    largest = max([1, *spaces]) // heads
    counts = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    for tiles in (1, 2, 3, 4, 6, 8):
        if tiles > tiles_all or tiles > MAX_TILES:
            break
        for blocks in counts:
            if blocks > largest or blocks > processors:
                break
            if blocks == 1:
                yield Geometry("block", 1, tiles, heads=heads)
            elif schedule.independent:
                yield Geometry("block", blocks, tiles, heads=heads)
            else:
                if clusters and blocks <= 16:
                    for threads in (256, FEW_THREADS):
                        yield Geometry("cluster", blocks, tiles, threads, heads)
                if blocks >= 16:
                    yield Geometry("grid", blocks, tiles, heads=heads)


def clocks(schedule: Schedule, geometry: Geometry, batch: int, processors: int) -> float | None:
    """About how many clocks a step takes, for all rows of a batch; None if it does not fit on the chip."""
    tiles, in_blocks = geometry.tiles, geometry.exchange == "block"
    cost = schedule.levels * COSTS["level"]
    shared = 4096.0
    sent = {}  # scattered vectors, with their bytes
    for multiplication, tiling in zip(schedule.multiplications, tilings(schedule, geometry), strict=True):
        own = tiling.tiles_of_warp(geometry)
        results = sum(result.parts * elements_of(result.space, geometry) for result in multiplication.results)
        cost += tiles * own * tiling.pieces * (geometry.threads / 256) * 2 * COSTS["piece of a tile"]
        cost += tiles * own * (tiling.pieces - tiling.kept) * COSTS["piece in shared memory"]
        cost += tiles * tiling.pieces * COSTS["piece of a vector"]
        cost += tiles * tiling.over_inner * results * COSTS["part of a sum"]
        if tiling.scattered:
            cost += tiles * geometry.blocks / tiling.over_inner * COSTS["block's sum"]
            width = 256 * (8 // per_chunk(multiplication.vector))
            sent[id(multiplication.vector)] = tiling.tiles16 * geometry.blocks * width
        shared += tiling.rest_bytes(geometry) + tiling.sum_bytes
    for vector in schedule.vectors:
        whole = sent.get(id(vector), chunks_of(vector, geometry) * geometry.blocks * CHUNK_BYTES)
        slots = 2 if geometry.exchange != "grid" else 0 if id(vector) in sent else 1
        shared += tiles * (slots * whole + whole // geometry.blocks)
        if not in_blocks:
            cost += COSTS[geometry.exchange] + tiles * whole / 1024 * COSTS[f"{geometry.exchange}, KB"]
    if not in_blocks:
        cost += len({total.level for total in schedule.totals}) * COSTS[geometry.exchange]
    if shared > SHARED_BYTES:
        return None
    for statement in schedule.statements:
        cost += tiles * elements_of(statement.part.space, geometry) * COSTS["statement"]
    return _waves(geometry, batch, processors) * cost


def _waves(geometry: Geometry, batch: int, processors: int) -> int:
    """How often the chip is filled with groups."""
    groups = geometry.groups(batch)
    room = processors // geometry.blocks
    if geometry.exchange == "cluster" and geometry.blocks in CLUSTERS:
        room = CLUSTERS[geometry.blocks] * processors // 132
    return -(-groups // max(1, room))


@functools.cache
def candidates(
    schedule: Schedule,
    batch: int,
    processors: int,
    clusters: bool,
    most: int = 1,
    shared_bytes: int = SHARED_BYTES,
    float_sums: Callable[[], bool] = lambda: True,
) -> list[KernelText | LevelsText]:
    """The texts for the geometries with the fewest clocks, the best first; refuses a kernel that has none.

    Where nothing fits on the chip, each level is a kernel; for a large batch that is one more to measure.

    float_sums   whether torch leaves sums of products of 16-bit numbers in float32
    """
    costs = {
        geometry: cost
        for geometry in geometries(schedule, batch, processors, clusters)
        if (cost := clocks(schedule, geometry, batch, processors)) is not None
    }
    found: list[KernelText | LevelsText] = []
    for geometry in sorted(costs, key=costs.__getitem__):
        with suppress(EngineRefusal):
            text = KernelText(schedule, geometry)
            found += [text] if text.memory.shared_bytes <= shared_bytes else []
        if len(found) == most:
            break
    if not found:
        return [LevelsText(schedule, float_sums())]
    if most > 1 and batch >= LARGE_BATCH and schedule.multiplications:
        with suppress(EngineRefusal):
            found.append(LevelsText(schedule, float_sums()))
    return found
