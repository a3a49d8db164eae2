"""Builds kernel texts for the GPU at hand, and chooses geometries for it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from leporello.engine.gpu.cuda_emitter import KernelText
from leporello.engine.gpu.driver import DeviceFunction, compiled, make_current
from leporello.engine.gpu.geometry import EXCHANGES, Geometry
from leporello.engine.gpu.plans import best_geometry
from leporello.engine.gpu.schedule import Schedule
from leporello.errors import EngineRefusal


@dataclass(frozen=True)
class CudaKernel:
    """A kernel on one device."""

    source: Path
    function: DeviceFunction
    blocks: int

    def launch(self, words: array[int], groups: int, device: torch.device) -> None:
        self.function.launch(words, groups * self.blocks)


@functools.cache
def processors(index: int) -> int:
    """The multiprocessors of a device."""
    return torch.cuda.get_device_properties(index).multi_processor_count


@functools.cache
def architecture_of(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


class CudaBuilder:
    """Builds kernels for the GPU that holds a call's tensors."""

    def geometry(self, schedule: Schedule, batch: int, device: torch.device) -> Geometry:
        clusters = torch.cuda.get_device_capability(device.index)[0] >= 9
        return best_geometry(schedule, batch, processors(device.index), clusters)

    def build(self, text: KernelText, exact: bool, device: torch.device) -> CudaKernel:
        geometry, dtype = text.geometry, text.kernel.dtype
        defined = {"EXACT": int(exact), "ACCURATE": int(dtype == torch.float32)}
        source, code = compiled(text.text("device.cuh", defined), text.kernel.name, architecture_of(device.index))
        cluster = geometry.blocks if geometry.exchange == "cluster" else 1
        cooperative = geometry.exchange == "grid"
        function = DeviceFunction(code, device, geometry.threads, text.shared_bytes, cluster, cooperative)
        if cooperative and processors(device.index) * function.blocks_per_processor < geometry.blocks:
            raise EngineRefusal(f"{geometry.blocks} blocks do not run at once on this GPU ({EXCHANGES[2]}).")
        return CudaKernel(source, function, geometry.blocks)

    def enter(self, values: Sequence[Tensor]) -> None:
        for value in values[:1]:
            make_current(value.device.index)

    def groups_at_once(self, geometry: Geometry, device: torch.device) -> int:
        """Blocks that wait for each other through L2 must all run at once; clusters wait only for themselves."""
        return max(1, processors(device.index) // geometry.blocks) if geometry.exchange == "grid" else 1 << 20
