"""`GpuRunner`: a kernel as CUDA that takes tensors; it chooses a geometry for the batch and launches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from leporello.engine.gpu.division.geometry import ROWS
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.target import BoundKernel
from leporello.kernel.dependencies import loaded
from leporello.kernel.description import Kernel


@dataclass(frozen=True)
class Given:
    """The tensors of a call.

    addresses   of states, sequences, rows, fixed values, next states and results; then four words for each matrix
    matrices    fixed values that are multiplied, with their head, inner and outer axis
    """

    addresses: list[int]
    matrices: list[tuple[Tensor, tuple[int | None, int, int]]]
    batch: int
    device: torch.device


class Built(Protocol):
    """A kernel that is built for one geometry.

    source   the path of its text
    about    how it runs, in words, for `explain`
    """

    @property
    def source(self) -> Path: ...

    @property
    def about(self) -> str: ...

    def run(self, given: Given, steps: int) -> None:
        """Take all rows through all steps."""


class Persistent(Protocol):
    """A kernel that takes groups of rows through all steps.

    registers   of a thread; None on the host
    """

    @property
    def text(self) -> KernelText: ...

    @property
    def registers(self) -> int | None: ...

    def groups_at_once(self) -> int:
        """How many groups of rows may be in one launch."""

    def launch(self, words: array[int], groups: int) -> None:
        """Run `groups` groups of rows."""


Run = Callable[[Built, int], None]  # a kernel on the tensors of a call, for so many steps


class Builder(Protocol):
    """What builds kernels and chooses geometries: a GPU, or the host in tests."""

    def build(self, schedule: Schedule, batch: int, exact: bool, device: torch.device, steps: int, run: Run) -> Built:
        """The kernel in the geometry that is best for a batch; `run` serves to measure several."""

    def length_class(self, steps: int) -> int:
        """Calls of lengths with the same number share a geometry: in a short call, loading the matrices counts more."""

    def enter(self, values: Sequence[Tensor]) -> None:
        """Prepare this thread for launches on the device of these values, of which there may be none."""


@dataclass(eq=False)
class GpuRunner:
    """A kernel, built for each geometry that a call needs, when it first needs it.

    loaded   slots of the fixed values that are read element by element and must be contiguous
    built    by tiles of the batch, exactness of float32 products, device, and class of lengths
    """

    kernel: Kernel
    schedule: Schedule
    builder: Builder
    loaded: tuple[int, ...]
    built: dict[tuple[int, bool, int | None, int], Built] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel, schedule: Schedule, builder: Builder) -> GpuRunner:
        return GpuRunner(kernel, schedule, builder, tuple(sorted(loaded(kernel))))

    @property
    def source(self) -> Path | None:
        """The path of the text that was built last; None before the first call."""
        return next(reversed(self.built.values())).source if self.built else None

    @property
    def about(self) -> str:
        """How the kernel that was built last is divided among the chip."""
        if not self.built:
            return "how it is divided among the chip is chosen by the first call with a batch"
        return next(reversed(self.built.values())).about

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> BoundKernel:
        self.builder.enter((*rows, *fixed))
        held = list(fixed)
        for slot in self.loaded:
            held[slot] = fixed[slot].contiguous()
        read_types = [buffer.dtype for buffer in self.kernel.buffers["read"]]
        matrices = [(held[matrix.fixed], matrix.axes) for matrix in self.kernel.matrices]
        matrix_words = [word for value, axes in matrices for word in _matrix_words(value, axes)]

        def run(
            states: Sequence[Tensor | None],
            reads: Sequence[Tensor],
            next_states: Sequence[Tensor],
            writes: Sequence[Tensor],
            steps: int,
            batch: int,
        ) -> None:
            device = next_states[0].device if next_states else writes[0].device
            self.builder.enter((*next_states, *writes))
            reads = [_readable(value, dtype) for value, dtype in zip(reads, read_types, strict=True)]
            tensors = (*states, *reads, *rows, *held, *next_states, *writes)
            addresses = [0 if value is None else value.data_ptr() for value in tensors]
            addresses += matrix_words
            given = Given(addresses, matrices, batch, device)

            def launch(built: Built, steps: int) -> None:
                built.run(given, steps)

            exact = not torch.backends.cuda.matmul.allow_tf32
            key = (-(-batch // ROWS), exact, device.index, self.builder.length_class(steps))
            if key not in self.built:
                self.built[key] = self.builder.build(self.schedule, batch, exact, device, steps, launch)
            self.built[key].run(given, steps)

        return run


def launch_groups(kernel: Persistent, given: Given, steps: int) -> None:
    """Launch a persistent kernel for all groups of rows."""
    text, batch, device = kernel.text, given.batch, given.device
    geometry = text.geometry
    groups = geometry.groups(batch)
    words = array("Q", [steps, batch, 0, groups])
    words.extend(given.addresses)
    most = kernel.groups_at_once()
    sizes = text.memory.exchange_bytes(groups, most)
    # held until the launches are queued: torch's allocator then orders its reuse
    workspace = torch.full((sum(sizes) // 4,), -1, dtype=torch.int32, device=device) if any(sizes) else None
    at = 0 if workspace is None else workspace.data_ptr()
    for size in sizes:
        words.append(at)
        at += size
    words.append(0)
    assert len(words) == text.memory.word_count
    for first in range(0, groups, most):
        words[2] = first
        words[text.memory.words["sums before", 0]] = first // most * steps  # launches share the memory of sums
        kernel.launch(words, min(most, groups - first))


def about_persistent(kernel: Persistent) -> str:
    """How a persistent kernel is divided among the chip."""
    registers = "" if kernel.registers is None else f", {kernel.registers} registers a thread"
    return f"{kernel.text.geometry}{registers}, {kernel.text.memory.shared_bytes:,} bytes of shared memory a block"


def _readable(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A sequence as a kernel reads it: in pieces of 16 bytes, and in the type that was traced.

    Of a layer norm in mixed types torch traces other types of mean and rate than it computes, on the CPU.
    """
    value = value if value.dtype == dtype else value.to(dtype)
    return value if value.data_ptr() % 16 == 0 else value.clone()


def _matrix_words(value: Tensor, axes: tuple[int | None, int, int]) -> list[int]:
    """The address of a matrix, and its strides along heads, inner and outer axis."""
    return [value.data_ptr(), *(0 if axis is None else value.stride(axis) for axis in axes)]
