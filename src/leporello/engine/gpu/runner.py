"""`GpuRunner`: a kernel as CUDA that takes tensors; it chooses a geometry for the batch and launches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from leporello.engine.gpu.cuda_emitter import FIRST_WORDS, KernelText
from leporello.engine.gpu.geometry import ROWS, Geometry
from leporello.engine.gpu.schedule import Schedule
from leporello.engine.target import BoundKernel
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Kernel


class Built(Protocol):
    """A kernel that is built for one geometry.

    source   the path of its text
    """

    @property
    def source(self) -> Path: ...

    def launch(self, words: array[int], groups: int, device: torch.device) -> None:
        """Run `groups` groups of rows."""


class Builder(Protocol):
    """What builds texts and chooses geometries: a GPU, or the host in tests."""

    def geometry(self, schedule: Schedule, batch: int, device: torch.device) -> Geometry: ...

    def build(self, text: KernelText, exact: bool, device: torch.device) -> Built: ...

    def enter(self, values: Sequence[Tensor]) -> None:
        """Prepare this thread for launches on the device of these values, of which there may be none."""

    def groups_at_once(self, geometry: Geometry, device: torch.device) -> int:
        """How many groups of rows may be in one launch."""


@dataclass(eq=False)
class GpuRunner:
    """A kernel, built for each geometry that a call needs, when it first needs it.

    loaded   slots of the fixed values that are read element by element and must be contiguous
    built    by geometry and exactness of float32 products, with its text
    """

    kernel: Kernel
    schedule: Schedule
    builder: Builder
    loaded: tuple[int, ...]
    built: dict[tuple[Geometry, bool, int | None], tuple[KernelText, Built]] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel, schedule: Schedule, builder: Builder) -> GpuRunner:
        return GpuRunner(kernel, schedule, builder, tuple(sorted(loaded(kernel))))

    @property
    def source(self) -> Path | None:
        """The path of the text that was built last; None before the first call."""
        return next(reversed(self.built.values()))[1].source if self.built else None

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> BoundKernel:
        self.builder.enter((*rows, *fixed))
        held = list(fixed)
        for slot in self.loaded:
            held[slot] = fixed[slot].contiguous()
        matrices = [_matrix_words(held[matrix.fixed], matrix.axes) for matrix in self.kernel.matrices]

        def run(
            states: Sequence[Tensor | None],
            reads: Sequence[Tensor],
            next_states: Sequence[Tensor],
            writes: Sequence[Tensor],
            steps: int,
            batch: int,
        ) -> None:
            if not steps or not batch:
                for state, following in zip(states, next_states, strict=True):
                    following.copy_(state) if state is not None else following.zero_()
                return
            device = next_states[0].device if next_states else writes[0].device
            self.builder.enter((*next_states, *writes))
            text, built = self._built_for(batch, device)
            geometry = text.geometry
            group_rows = ROWS * geometry.tiles
            groups = -(-batch // group_rows)
            words = array("Q", [steps, batch, 0, groups])
            reads = [value if value.data_ptr() % 16 == 0 else value.clone() for value in reads]
            for value in (*states, *reads, *rows, *held, *next_states, *writes):
                words.append(0 if value is None else value.data_ptr())
            for matrix in matrices:
                words.extend(matrix)
            workspace = None
            if geometry.exchange == "grid":
                sizes = [steps * groups * geometry.tiles * size for size in text.slice_bytes]
                workspace = torch.full((sum(sizes) // 4,), -1, dtype=torch.int32, device=device)
                at = workspace.data_ptr()
                for size in sizes:
                    words.append(at)
                    at += size
            else:
                words.extend([0] * len(text.slice_bytes))
            assert len(words) == text.word_count >= FIRST_WORDS
            most = self.builder.groups_at_once(geometry, device)
            for first in range(0, groups, most):
                words[2] = first
                built.launch(words, min(most, groups - first), device)

        return run

    def _built_for(self, batch: int, device: torch.device) -> tuple[KernelText, Built]:
        exact = not torch.backends.cuda.matmul.allow_tf32
        geometry = self.builder.geometry(self.schedule, batch, device)
        key = (geometry, exact, device.index)
        if key not in self.built:
            text = KernelText(self.schedule, geometry)
            self.built[key] = text, self.builder.build(text, exact, device)
        return self.built[key]


def _matrix_words(value: Tensor, axes: tuple[int | None, int, int]) -> list[int]:
    """The address of a matrix, and its strides along heads, inner and outer axis."""
    return [value.data_ptr(), *(0 if axis is None else value.stride(axis) for axis in axes)]


Build = Callable[[Kernel], GpuRunner]
