"""Builds kernels for the GPU at hand, in the geometry that is fastest there: measured once, then kept in the cache."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor

from leporello.engine.cache_folder import kept_path, write_kept
from leporello.engine.gpu.cuda_emitter import KernelText
from leporello.engine.gpu.driver import DeviceFunction, compiled, make_current
from leporello.engine.gpu.geometry import ROWS, Geometry
from leporello.engine.gpu.plans import candidates
from leporello.engine.gpu.runner import Run
from leporello.engine.gpu.schedule import Schedule
from leporello.errors import EngineRefusal

MEASURED = 8  # geometries that are tried, the best ones of the model
LENGTHS = (1, 8, 64, 256)  # calls between two of them share a choice; so many steps are measured at most
REPEATS = 5


@dataclass(frozen=True)
class CudaKernel:
    """A kernel on one device."""

    text: KernelText
    source: Path
    function: DeviceFunction

    @property
    def registers(self) -> int:
        return self.function.registers

    def launch(self, words: array[int], groups: int, device: torch.device) -> None:
        self.function.launch(words, groups * self.text.geometry.blocks)


@functools.cache
def processors(index: int) -> int:
    """The multiprocessors of a device."""
    return torch.cuda.get_device_properties(index).multi_processor_count


@functools.cache
def shared_bytes(index: int) -> int:
    """The shared memory that a block of a device can have."""
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)  # type: ignore[attr-defined]


@functools.cache
def capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


class CudaBuilder:
    """Builds kernels for the GPU that holds a call's tensors."""

    def build(
        self, schedule: Schedule, batch: int, exact: bool, device: torch.device, steps: int, run: Run
    ) -> CudaKernel:
        measures = os.environ.get("LEPORELLO_MEASURE", "1") != "0" and not torch.cuda.is_current_stream_capturing()
        texts = self.texts(schedule, batch, device, MEASURED if measures else 1)
        if len(texts) == 1:
            return self._on_device(texts[0], self._compiled(texts[0], exact, device), device)
        kept = self._choice_path(schedule, batch, exact, device, self.length_class(steps))
        chosen = _chosen(kept, texts)
        if chosen is not None:
            return self._on_device(chosen, self._compiled(chosen, exact, device), device)
        return self._fastest(texts, exact, device, min(steps, LENGTHS[-1]), run, kept)

    def texts(self, schedule: Schedule, batch: int, device: torch.device, most: int) -> list[KernelText]:
        """The texts for the best geometries of the model, the best first."""
        clusters, shared = capability(device.index)[0] >= 9, shared_bytes(device.index)
        return candidates(schedule, batch, processors(device.index), clusters, most, shared)

    def _compiled(self, text: KernelText, exact: bool, device: torch.device) -> tuple[Path, bytes]:
        major, minor = capability(device.index)
        defined = {"EXACT": int(exact), "ACCURATE": int(text.kernel.dtype == torch.float32)}
        return compiled(text.text("device.cuh", defined), text.kernel.name, f"sm_{major}{minor}")

    def _on_device(self, text: KernelText, code: tuple[Path, bytes], device: torch.device) -> CudaKernel:
        geometry = text.geometry
        cluster = geometry.blocks if geometry.exchange == "cluster" else 1
        cooperative = geometry.exchange == "grid"
        function = DeviceFunction(code[1], device, geometry.threads, text.memory.shared_bytes, cluster, cooperative)
        if cooperative and processors(device.index) * function.blocks_per_processor < geometry.blocks:
            raise EngineRefusal(f"{geometry.blocks} blocks of a kernel do not run at once on this GPU.")
        return CudaKernel(text, code[0], function)

    def _fastest(
        self, texts: list[KernelText], exact: bool, device: torch.device, steps: int, run: Run, kept: Path
    ) -> CudaKernel:
        """The fastest of several geometries on the tensors of the call; which one is kept in the cache folder.

        They are compiled side by side. What they write is written again by the call itself.
        """
        with ThreadPoolExecutor(min(len(texts), os.cpu_count() or 1)) as pool:
            codes = list(pool.map(lambda text: self._compiled(text, exact, device), texts))
        kernels = [self._on_device(text, code, device) for text, code in zip(texts, codes, strict=True)]
        times = [float("inf")] * len(kernels)
        for repeat in range(REPEATS + 1):
            for index, kernel in enumerate(kernels):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                run(kernel, steps)
                end.record()
                end.synchronize()
                if repeat:  # the first run loads the kernel
                    times[index] = min(times[index], start.elapsed_time(end))
        fastest = kernels[times.index(min(times))]
        write_kept(kept, json.dumps(astuple(fastest.text.geometry)).encode())
        return fastest

    def length_class(self, steps: int) -> int:
        return max(length for length in LENGTHS if length <= steps)

    def _choice_path(
        self, schedule: Schedule, batch: int, exact: bool, device: torch.device, length_class: int
    ) -> Path:
        text = hashlib.sha256(schedule.kernel.text().encode()).hexdigest()
        name = torch.cuda.get_device_name(device.index)
        key = f"{text} {-(-batch // ROWS)} {exact} {name} {MEASURED} {length_class}"
        return kept_path(f"plan of {schedule.kernel.name}", key, ".plan")

    def enter(self, values: Sequence[Tensor]) -> None:
        for value in values[:1]:
            make_current(value.device.index)

    def groups_at_once(self, geometry: Geometry, device: torch.device) -> int:
        """Blocks that wait for each other through L2 must all run at once; clusters wait only for themselves."""
        return max(1, processors(device.index) // geometry.blocks) if geometry.exchange == "grid" else 1 << 20


def _chosen(kept: Path, texts: list[KernelText]) -> KernelText | None:
    """The text with the geometry that was measured to be the fastest before; None if none was."""
    try:
        geometry = Geometry(*json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return next((text for text in texts if text.geometry == geometry), None)
