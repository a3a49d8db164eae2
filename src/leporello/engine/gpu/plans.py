"""The choice of a geometry for a kernel and a batch: a model of the clocks of one step, fitted to measurements."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress

from leporello.engine.gpu.cuda_emitter import KernelText
from leporello.engine.gpu.geometry import CHUNK_BYTES, ROWS, SHARED_BYTES, Geometry, chunks_of, per_chunk, tilings
from leporello.engine.gpu.schedule import Schedule
from leporello.errors import EngineRefusal

MAX_TILES = 8


def geometries(schedule: Schedule, batch: int, processors: int, clusters: bool) -> Iterator[Geometry]:
    """All geometries that make sense for a batch."""
    tiles_all = -(-batch // ROWS)
    largest = max([1, *(v.space for v in schedule.vectors), *(one.part.space for one in schedule.statements)])
    counts = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128]
    for tiles in (1, 2, 3, 4, 6, 8):
        if tiles > tiles_all or tiles > MAX_TILES:
            break
        for blocks in counts:
            if blocks > largest or blocks > processors:
                break
            if blocks == 1:
                yield Geometry("block", 1, tiles)
            elif schedule.independent:
                yield Geometry("block", blocks, tiles)
            else:
                if clusters and blocks <= 16:
                    yield Geometry("cluster", blocks, tiles)
                if blocks >= 16:
                    yield Geometry("grid", blocks, tiles)


def clocks(schedule: Schedule, geometry: Geometry, batch: int, processors: int) -> float | None:
    """About how many clocks a step takes, for all rows of a batch; None if it does not fit on the chip."""
    shared = 4096.0
    work = exchanged = 0.0
    slots = 1 if geometry.exchange == "grid" else 2
    found = list(zip(schedule.multiplications, tilings(schedule, geometry), strict=True))
    for multiplication, tiling in found:
        shared += tiling.rest_bytes(geometry) + tiling.sum_bytes
        own = tiling.tiles_of_warp(geometry)
        warps = geometry.threads // 32 / 4  # on one tensor core
        work += 120 + warps * own * (tiling.pieces * 16 + (tiling.pieces - tiling.kept) * 16) + tiling.pieces * 12
        work += 30 * tiling.over_inner * sum(parts for *_, parts in multiplication.products) / 4
    scattered = {id(one.vector): tiling for one, tiling in found if tiling.scattered}
    for vector in schedule.vectors:
        whole = chunks_of(vector, geometry) * geometry.blocks * CHUNK_BYTES
        if id(vector) in scattered:
            whole = scattered[id(vector)].tiles16 * geometry.blocks * 256 * (8 // per_chunk(vector))
        shared += geometry.tiles * (slots * whole + whole // geometry.blocks)
        if geometry.exchange == "cluster":
            exchanged += 500 + whole * 0.055
            work += whole * 0.02
        elif geometry.exchange == "grid":
            exchanged += 1300 + whole * 0.02
            work += whole * 0.01
        else:
            exchanged += 60
    exchanged += (0 if geometry.exchange == "block" else 600) * len({total.level for total in schedule.totals})
    if shared > SHARED_BYTES:
        return None
    for statement in schedule.statements:
        elements = -(-ROWS * geometry.own(statement.part.space) // geometry.threads)
        work += 8 * elements
    work += 150 * schedule.levels
    groups = -(-batch // (ROWS * geometry.tiles))
    room = processors // geometry.blocks
    if geometry.exchange == "cluster" and geometry.blocks >= 8:
        room = {8: 15, 16: 7}[geometry.blocks] * processors // 132
    waves = -(-groups // max(1, room))
    return float(waves * (exchanged + geometry.tiles * work))


@functools.cache
def candidates(
    schedule: Schedule, batch: int, processors: int, clusters: bool, most: int = 1, shared_bytes: int = SHARED_BYTES
) -> list[KernelText]:
    """The texts for the geometries with the fewest clocks, the best first; refuses a kernel that does not fit."""
    costs = {
        geometry: cost
        for geometry in geometries(schedule, batch, processors, clusters)
        if (cost := clocks(schedule, geometry, batch, processors)) is not None
    }
    found: list[KernelText] = []
    for geometry in sorted(costs, key=costs.__getitem__):
        with suppress(EngineRefusal):
            text = KernelText(schedule, geometry)
            found += [text] if text.memory.shared_bytes <= shared_bytes else []
        if len(found) == most:
            break
    if not found:
        raise EngineRefusal("the matrices of the step do not fit on the chip.")
    return found
