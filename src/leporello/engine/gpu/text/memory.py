"""`Memory`: the arguments of a kernel, and where everything is in the shared memory of a block."""

from __future__ import annotations

import torch

from leporello.engine.gpu.division.geometry import (
    CHUNK_BYTES,
    ROWS,
    SHARED_BYTES,
    Geometry,
    Tiling,
    chunks_of,
    tilings,
)
from leporello.engine.gpu.division.schedule import Schedule, Total
from leporello.engine.gpu.text.words import Words
from leporello.errors import EngineRefusal

PHASED_SLOTS = 2  # steps of which scattered sums and vectors of float32 have memory in L2 (device.cuh)
MARKED_SLOTS = 4  # and vectors of 16 bits
VECTOR_TYPES = {torch.float16: "F16", torch.bfloat16: "BF16"}


class Memory(Words):
    """Words and offsets, as the types of device.cuh take them.

    vector_types     of the vectors of the schedule, then of those of totals, as C++
    multiply_types   of the multiplications
    scatters         vectors that are not gathered, with the multiplication that sends sums instead
    slots            steps of each vector for which there is memory in L2
    slice_bytes      of each vector, for one tile of all blocks of a group, and one step
    reduced          where the parts of each total are
    ring_begin       where the ring of inputs is
    totals_begin     where the totals are
    shared_bytes     of a block, in all
    """

    def __init__(self, schedule: Schedule, geometry: Geometry, stage_bytes: int, ring_steps: int) -> None:
        self.schedule, self.geometry = schedule, geometry
        self.tilings: list[Tiling] = tilings(schedule, geometry)
        self.totals_at: dict[int, list[Total]] = {}
        for total in schedule.totals:
            self.totals_at.setdefault(total.level, []).append(total)
        super().__init__(schedule)
        for index in range(len(schedule.vectors) + len(self.totals_at)):
            self.add_word(("vector", index))
        self.add_word(("sums before", 0))
        at = self._lay_out_vectors()
        at = self._lay_out_multiplications(at)
        self.reduced: dict[int, int] = {}
        for total in schedule.totals:
            self.reduced[total.number] = at
            at += ROWS * geometry.own(total.parts[0].space) * 4
        self.ring_begin = at = -(-at // 16) * 16
        self.totals_begin = at = at + ring_steps * geometry.tiles * stage_bytes
        at += geometry.tiles * len(schedule.totals) * ROWS * 4
        self.shared_bytes = -(-max(at, 128) // 128) * 128
        if self.shared_bytes > SHARED_BYTES:
            raise EngineRefusal(f"the matrices do not fit on the chip: {self.shared_bytes} bytes a block.")

    @property
    def _slots(self) -> int:
        """Copies of a vector: blocks of a cluster write that of the next step while others read that of this one."""
        return 1 if self.geometry.exchange == "grid" else 2

    def _lay_out_vectors(self) -> int:
        """Barriers, vectors, staged slices; returns the offset behind them."""
        geometry, tiles, vectors = self.geometry, self.geometry.tiles, self.schedule.vectors
        self.vector_types: list[str] = []
        self.slice_bytes: list[int] = []
        self.slots: list[int] = []
        self.scatters: dict[int, int] = {}
        forms = [(chunks_of(v, geometry), VECTOR_TYPES.get(v.of.dtype, "F32")) for v in vectors]
        forms += [(-(-len(totals) // 4), "F32") for totals in self.totals_at.values()]
        at = -(-len(forms) * tiles * 16 // 128) * 128
        for index, (chunks, kind) in enumerate(forms):
            readers = [
                (number, tiling)
                for number, (one, tiling) in enumerate(zip(self.schedule.multiplications, self.tilings, strict=True))
                if index < len(vectors) and one.vector is vectors[index]
            ]
            if readers and readers[0][1].scattered:
                self.scatters[index] = readers[0][0]
                self.vector_types.append(f"Vector<{kind}, {chunks}, 0, 0, 0, 0, 0, 0>")
                tile_bytes = 512 if kind == "F32" else 256
                self.slice_bytes.append(readers[0][1].tiles16 * tile_bytes * geometry.blocks**2)
                self.slots.append(PHASED_SLOTS)
                continue
            whole = chunks * geometry.blocks * CHUNK_BYTES
            room = max([whole, *(t.over_inner * t.pieces * 4 * CHUNK_BYTES for _, t in readers)])
            staged = at + tiles * self._slots * room
            offsets = f"{at}, {room}, {staged}, {index * tiles * 16}, {self.words['vector', index]}"
            self.slots.append(PHASED_SLOTS if kind == "F32" else MARKED_SLOTS)
            self.vector_types.append(f"Vector<{kind}, {chunks}, {offsets}, {self.slots[-1]}>")
            self.slice_bytes.append(whole)
            at = staged + (0 if geometry.exchange == "block" else tiles * chunks * CHUNK_BYTES)
        return at

    def _lay_out_multiplications(self, at: int) -> int:
        """Matrices that registers do not hold, and sums; returns the offset behind them."""
        geometry, tiles = self.geometry, self.geometry.tiles
        self.multiply_types: list[str] = []
        for index, (one, tiling) in enumerate(zip(self.schedule.multiplications, self.tilings, strict=True)):
            vector = self.schedule.vectors.index(one.vector)
            rest, at = at, at + tiling.rest_bytes(geometry)
            if tiling.scattered:
                sums = received = at + tiles * tiling.pieces * 4 * CHUNK_BYTES
                if geometry.exchange == "cluster":
                    sums += 2 * tiles * self.slice_bytes[vector] // geometry.blocks
                form = f"{tiling.tiles16}, {tiling.pieces}, {tiling.kept}, {rest}, {at}, {received}"
                form += f", {vector * tiles * 16}, {self.words['vector', vector]}"
                form += f", {self.words['sums before', 0]}, {self.slots[vector]}"
                self.multiply_types.append(
                    f"Scatter<W{index}, V{vector}, {form}, {sums}, {tiling.pitch}, {tiling.over_inner}>"
                )
                at = sums + tiling.sum_bytes
            else:
                form = f"{tiling.tiles16}, {tiling.over_rows}, {tiling.over_inner}, {tiling.pieces}, {tiling.kept}"
                self.multiply_types.append(f"Multiply<W{index}, V{vector}, {form}, {rest}, {at}, {tiling.pitch}>")
                at += tiling.sum_bytes
        return at

    def exchange_bytes(self, groups: int, groups_at_once: int) -> list[int]:
        """Of global memory for each vector that is exchanged through L2, filled with ones before a call.

        They have memory for a few steps: vectors that are gathered of the whole call, scattered sums of one launch.
        """
        if self.geometry.exchange != "grid":
            return [0] * len(self.slice_bytes)
        of_call, of_launch = groups, min(groups, groups_at_once)
        return [
            (of_launch if index in self.scatters else of_call) * slots * self.geometry.tiles * size
            for index, (slots, size) in enumerate(zip(self.slots, self.slice_bytes, strict=True))
        ]

    # ---- texts

    def total(self, total: Total) -> str:
        """A total of the present row."""
        count = len(self.schedule.totals)
        return f"*(float *)(b.shared + {self.totals_begin} + ((tile * {count} + {total.number}) * {ROWS} + row) * 4)"

    def totals_vector(self, level: int) -> int:
        """The index of the vector in which blocks send their parts of the totals of a level."""
        return len(self.schedule.vectors) + list(self.totals_at).index(level)
