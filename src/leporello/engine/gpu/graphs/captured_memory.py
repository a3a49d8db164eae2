"""What recordings of an inside's steps read and write: memory of their own, by the kind of a call.

It is aligned as the call's own is: some kernels of products add up in another order where they can load more at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leporello.engine.gpu.graphs.recorder import Recording
from leporello.engine.gpu.graphs.recordings import FixedValues

ALIGNMENT = 64  # bytes

Layout = tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, int], ...]


@dataclass(frozen=True, eq=False)
class Window:
    """The values of one window: states before it, and tensors [steps, ...] of what is read and written."""

    batch: int
    reverse: bool
    states: Sequence[Tensor]
    reads: Sequence[Tensor]
    fixed: Sequence[Tensor]
    places: Sequence[Tensor]


@dataclass(eq=False)
class StepMemory:
    """What recordings of one kind of call read and write.

    steps           for which there is room
    reads, places   one tensor [steps, ...] for each sequence and placed result
    loose           the same for each other result
    moving          of fixed values that move from call to call, by slot: flat memory, and the copy of the value in it
    states          by the layout of the given states
    """

    steps: int
    reads: list[Tensor]
    places: list[Tensor]
    loose: list[Tensor]
    moving: dict[int, tuple[Tensor, Tensor]]
    states: dict[Layout, list[Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(steps: int, window: Window, loose: Sequence[Tensor], moving: set[int]) -> StepMemory:
        """Memory for a kind of call.

        loose    the loose results of one step
        moving   slots of the fixed values that are copied
        """
        copies = {}
        for slot in moving:
            flat = aligned_like(flat_memory(window.fixed[slot]))
            place = flat.storage_offset()
            copies[slot] = flat, flat.as_strided(window.fixed[slot].shape, window.fixed[slot].stride(), place)
        return StepMemory(
            steps,
            [aligned_like(value, steps) for value in window.reads],
            [aligned_like(value, steps) for value in window.places],
            [value.new_empty((steps, *value.shape)) for value in loose],
            copies,
        )

    def states_like(self, states: Sequence[Tensor]) -> list[Tensor]:
        """Memory for states of this layout."""
        layout = layout_of(states)
        if layout not in self.states:
            self.states[layout] = [aligned_like(state) for state in states]
        return self.states[layout]

    def fixed(self, window: Window) -> list[Tensor]:
        """The fixed values as recordings read them: those that do not move where they are."""
        return [self.moving[slot][1] if slot in self.moving else value for slot, value in enumerate(window.fixed)]

    def copy_fixed(self, window: Window) -> None:
        for slot, (flat, _) in self.moving.items():
            flat.copy_(flat_memory(window.fixed[slot]))

    def copy_reads(self, window: Window, start: int, size: int) -> None:
        """Copy what is read in `size` steps of a window."""
        copy_all((to[:size], value[start : start + size]) for to, value in zip(self.reads, window.reads, strict=True))


@dataclass(eq=False)
class Kind(FixedValues):
    """Calls of one kind: of the same shapes, types and layouts.

    recordings   by the layout of the states and the number of steps, with the memory of the states behind them
    too_large    whether a few of its steps would need more memory than is allowed
    """

    memory: StepMemory | None = None
    recordings: dict[tuple[Layout, int], tuple[Recording, list[Tensor]]] = field(default_factory=dict)
    too_large: bool = False

    def drop(self) -> None:
        self.memory = None
        self.recordings.clear()


def layout_of(values: Sequence[Tensor]) -> Layout:
    return tuple((value.shape, value.stride(), value.dtype, value.data_ptr() % ALIGNMENT) for value in values)


def form_of_steps(value: Tensor) -> tuple[torch.Size, torch.dtype, int]:
    """What recordings depend on of a value with an axis of steps."""
    return value.shape[1:], value.dtype, value.data_ptr() % ALIGNMENT


def aligned_like(value: Tensor, steps: int | None = None) -> Tensor:
    """Memory like a value's, with room for another number of steps where one is given."""
    like = (
        torch.empty_like(value, device="meta")
        if steps is None
        else value.new_empty((steps, *value.shape[1:]), device="meta")
    )
    offset = value.data_ptr() % ALIGNMENT // value.itemsize
    whole = value.new_empty(like.numel() + ALIGNMENT // value.itemsize)
    return whole.as_strided(like.shape, like.stride(), offset)


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy values to memory, given as (memory, value), those of one type at once."""
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for to, value in pairs:
        tos, values = by_type.setdefault(to.dtype, ([], []))
        tos.append(to)
        values.append(value)
    for tos, values in by_type.values():
        torch._foreach_copy_(tos, values)


def flat_memory(value: Tensor) -> Tensor:
    """The memory that a value of any layout lies in, as one axis."""
    if value.numel() == 0:
        return value.reshape(-1)
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((last + 1,), (1,))


def stacked(memory: Tensor, axis: int, size: int) -> Tensor:
    """The memory of a loose result as `size` steps stacked at an axis, contiguous."""
    shape = memory.shape[1:]
    return memory[:size].view(-1).view((*shape[:axis], size, *shape[axis:]))


def is_plain(value: Any, device: torch.device) -> bool:
    """Whether a value is a tensor like any other, on this device."""
    is_tensor = type(value) is Tensor or type(value) is torch.nn.Parameter
    return is_tensor and value.device == device and not (value.is_conj() or value.is_neg())
