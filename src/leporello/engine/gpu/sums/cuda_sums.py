"""`CudaSums`: launches the kernel of sums on the GPU that holds the values."""

from __future__ import annotations

import functools
from array import array
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leporello.engine.gpu.driver import DeviceFunction, compiled, make_current
from leporello.engine.gpu.sums.division import THREADS, Division
from leporello.engine.gpu.sums.row_sums import SumsKernel


@dataclass(frozen=True)
class Workspace:
    """Memory for the partial sums of a launch, and for counters, which are 0 before a launch and after it."""

    counters: Tensor
    partials: Tensor

    @staticmethod
    def of(tiles: int, partials: int, device: torch.device) -> Workspace:
        counters = torch.zeros(tiles, dtype=torch.int32, device=device)
        return Workspace(counters, torch.empty(partials, dtype=torch.float32, device=device))


@dataclass
class CudaSums:
    """Launches on torch's current stream.

    workspaces   of a device and stream: launches on one stream follow each other. A call that is captured in a CUDA
                 graph has one of its own, as the graph may run on any stream
    """

    workspaces: dict[tuple[int, int], Workspace] = field(default_factory=dict)

    def launch(self, division: Division, words: array[int], kernel: SumsKernel, device: torch.device) -> None:
        make_current(device.index)
        if division.tiles:
            workspace = self._workspace(division, device)
            words[0], words[1] = workspace.partials.data_ptr(), workspace.counters.data_ptr()
        _function(kernel, device.index).launch(words, division.blocks)

    def _workspace(self, division: Division, device: torch.device) -> Workspace:
        if torch.cuda.is_current_stream_capturing():
            return Workspace.of(division.tiles, division.partials, device)
        key = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
        found = self.workspaces.get(key)
        if found is None or len(found.counters) < division.tiles or len(found.partials) < division.partials:
            tiles, partials = division.tiles, division.partials
            if found is not None:
                tiles, partials = max(tiles, len(found.counters)), max(partials, len(found.partials))
            found = self.workspaces[key] = Workspace.of(tiles, partials, device)
        return found


@functools.cache
def _function(kernel: SumsKernel, index: int) -> DeviceFunction:
    major, minor = torch.cuda.get_device_capability(index)
    _, code = compiled(kernel.text("device.cuh"), "sums over rows", f"sm_{major}{minor}")
    device = torch.device("cuda", index)
    return DeviceFunction(code, device, THREADS, shared=0, cluster=1, cooperative=False)
