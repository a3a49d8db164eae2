"""`Recordings`: what is recorded of one function, by kinds of calls: whether anything may be, and which are kept."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from leporello.engine.gpu.graphs.cuda_graphs import CudaGraphs
from leporello.engine.gpu.graphs.recorder import Recorder

KINDS = 4  # of calls whose recordings are kept, the last used
ATTEMPTS = 2  # to record, before it is given up


def can_capture(device: torch.device) -> bool:
    """Whether a device may have a recorder."""
    return device.type == "cuda" and torch.version.cuda is not None


def recorder_of(device: torch.device) -> Recorder:
    """The recorder of a device that can capture."""
    return CudaGraphs.of(device)


def switched_off() -> bool:
    """Whether the user wants no recordings."""
    return os.environ.get("LEPORELLO_CUDA_GRAPHS", "1") == "0"


@dataclass(eq=False)
class FixedValues:
    """Values that recordings read where they are.

    addresses   at the last call
    moving      slots of those whose address has changed from call to call: they are copied instead
    """

    addresses: list[int]
    moving: set[int] = field(default_factory=set)

    def note(self, addresses: list[int]) -> bool:
        """Note where the values are now; whether one has moved that had not before."""
        if addresses == self.addresses:
            return False
        pairs = enumerate(zip(addresses, self.addresses, strict=True))
        moved = {slot for slot, (now, before) in pairs if now != before} - self.moving
        self.addresses = addresses
        self.moving |= moved
        return bool(moved)


Kind = TypeVar("Kind")


class Recordings(Generic[Kind]):
    """The recordings of one function.

    kinds      of calls, the last used one behind the others
    refused    why nothing is recorded any more
    failures   to record
    """

    def __init__(self) -> None:
        self.kinds: OrderedDict[Any, Kind] = OrderedDict()
        self.refused: str | None = None
        self.failures = 0
        self.recorders: dict[torch.device, Recorder] = {}

    @property
    def missing(self) -> str | None:
        """Why there are none, for `explain`; None where there may be some."""
        why = self.refused or ("LEPORELLO_CUDA_GRAPHS=0" if switched_off() else None)
        return None if why is None else f"not captured in CUDA graphs: {why}"

    def recorder(self, device: torch.device) -> Recorder | None:
        """The recorder of a device; None where nothing can be recorded or replayed now."""
        if self.refused is not None or switched_off():
            return None
        recorder = self.recorders.get(device)
        if recorder is None:
            if not can_capture(device):
                return None
            recorder = self.recorders[device] = recorder_of(device)
        return None if recorder.is_busy() else recorder

    def kind(self, key: Any, first: Callable[[], Kind]) -> Kind | None:
        """The kind of a call by its key; None for the first call of a kind, which `first` makes."""
        found = self.kinds.get(key)
        if found is None:
            self.kinds[key] = first()
            if len(self.kinds) > KINDS:
                self.kinds.popitem(last=False)
            return None
        self.kinds.move_to_end(key)
        return found

    def failed(self, error: Exception) -> None:
        """Count a recording that failed; after some of them nothing is recorded any more."""
        self.failures += 1
        if self.failures == ATTEMPTS:
            self.refused = str(error).split("\n")[0]
            self.kinds.clear()


@contextmanager
def lasting(recorder: Recorder) -> Iterator[None]:
    """A context for memory that is kept from call to call: nothing else may write what inference mode has made."""
    with torch.inference_mode(False), torch.no_grad(), recorder.memory():
        yield


def switches() -> tuple[Any, ...]:
    """Switches of torch by which operators choose kernels; by torch's own getters, as every call asks."""
    get: Any = torch._C
    return (
        get._get_fp32_precision_getter("generic", "all"),
        get._get_fp32_precision_getter("cuda", "matmul"),
        get._get_fp32_precision_getter("cuda", "conv"),
        get._get_cublas_allow_fp16_reduced_precision_reduction(),
        get._get_cublas_allow_bf16_reduced_precision_reduction(),
        get._get_cublas_allow_fp16_accumulation(),
        get._get_deterministic_algorithms(),
        get._get_cudnn_enabled(),
        get._get_cudnn_deterministic(),
        get._get_cudnn_benchmark(),
    )
