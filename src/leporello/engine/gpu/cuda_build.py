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
from leporello.engine.gpu.division.geometry import ROWS, Geometry
from leporello.engine.gpu.division.plans import LARGE_BATCH, candidates
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.driver import DeviceFunction, compiled, make_current
from leporello.engine.gpu.levels.cuda_levels import CudaLauncher, float_sums
from leporello.engine.gpu.levels.levels import Levels
from leporello.engine.gpu.levels.levels_steps import LevelsSteps
from leporello.engine.gpu.runner import Given, Run, about_persistent, launch_groups
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.gpu.text.levels_text import LevelsText
from leporello.errors import EngineRefusal

MEASURED = 10  # geometries that are tried, the best ones of the model
LENGTHS = (1, 8, 64, 256)  # calls between two of them share a choice; so many steps are measured at most
REPEATS = 5


@dataclass(frozen=True)
class CudaKernel:
    """A persistent kernel on one device."""

    text: KernelText
    source: Path
    function: DeviceFunction

    @property
    def registers(self) -> int:
        return self.function.registers

    @property
    def about(self) -> str:
        return about_persistent(self)

    def run(self, given: Given, steps: int) -> None:
        launch_groups(self, given, steps)

    def groups_at_once(self) -> int:
        """Blocks that wait for each other through L2 must all run at once; clusters wait only for themselves."""
        geometry = self.text.geometry
        if geometry.exchange != "grid":
            return 1 << 20
        return max(1, processors(self.function.device.index) // geometry.blocks)

    def launch(self, words: array[int], groups: int) -> None:
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
    """Builds kernels for the GPU that holds a call's tensors.

    levels   of a device: one for all batches
    """

    def __init__(self) -> None:
        self.levels: dict[torch.device, Levels] = {}

    def build(
        self, schedule: Schedule, batch: int, exact: bool, device: torch.device, steps: int, run: Run
    ) -> CudaKernel | Levels:
        measures = os.environ.get("LEPORELLO_MEASURE", "1") != "0" and not torch.cuda.is_current_stream_capturing()
        texts = self.texts(schedule, batch, device, MEASURED if measures else 1)
        if len(texts) == 1:
            return self._on_device(texts[0], self._compiled(texts[0], exact, device), device)
        kept = self._choice_path(schedule, batch, exact, device, self.length_class(steps))
        chosen = _chosen(kept, texts)
        if chosen is not None:
            return self._on_device(chosen, self._compiled(chosen, exact, device), device)
        return self._fastest(texts, exact, device, min(steps, LENGTHS[-1]), run, kept)

    def texts(self, schedule: Schedule, batch: int, device: torch.device, most: int) -> list[KernelText | LevelsText]:
        """The texts for the best geometries of the model, the best first."""
        clusters, shared = capability(device.index)[0] >= 9, shared_bytes(device.index)
        return candidates(schedule, batch, processors(device.index), clusters, most, shared, float_sums)

    def _compiled(self, text: KernelText | LevelsText, exact: bool, device: torch.device) -> tuple[Path, bytes]:
        major, minor = capability(device.index)
        accurate = text.kernel.dtype == torch.float32
        defined = {"EXACT": int(exact or isinstance(text, LevelsText)), "ACCURATE": int(accurate)}
        return compiled(text.text("device.cuh", defined), text.kernel.name, f"sm_{major}{minor}")

    def _on_device(
        self, text: KernelText | LevelsText, code: tuple[Path, bytes], device: torch.device
    ) -> CudaKernel | Levels:
        if isinstance(text, LevelsText):
            if device not in self.levels:
                self.levels[device] = Levels(LevelsSteps(text, CudaLauncher(text, code[1], device)), code[0])
            return self.levels[device]
        geometry = text.geometry
        cluster = geometry.blocks if geometry.exchange == "cluster" else 1
        cooperative = geometry.exchange == "grid"
        function = DeviceFunction(code[1], device, geometry.threads, text.memory.shared_bytes, cluster, cooperative)
        if cooperative and processors(device.index) * function.blocks_per_processor < geometry.blocks:
            raise EngineRefusal(f"{geometry.blocks} blocks of a kernel do not run at once on this GPU.")
        return CudaKernel(text, code[0], function)

    def _fastest(
        self,
        texts: list[KernelText | LevelsText],
        exact: bool,
        device: torch.device,
        steps: int,
        run: Run,
        kept: Path,
    ) -> CudaKernel | Levels:
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
        if not isinstance(fastest, Levels):
            self.levels.pop(device, None)  # with its graphs, unless another batch has chosen it
        return fastest

    def length_class(self, steps: int) -> int:
        return max(length for length in LENGTHS if length <= steps)

    def _choice_path(
        self, schedule: Schedule, batch: int, exact: bool, device: torch.device, length_class: int
    ) -> Path:
        text = hashlib.sha256(schedule.kernel.text().encode()).hexdigest()
        name = torch.cuda.get_device_name(device.index)
        key = f"{text} {-(-batch // ROWS)} {exact} {name} {MEASURED} {LARGE_BATCH} {length_class}"
        return kept_path(f"plan of {schedule.kernel.name}", key, ".plan")

    def enter(self, values: Sequence[Tensor]) -> None:
        for value in values[:1]:
            make_current(value.device.index)


def _chosen(kept: Path, texts: list[KernelText | LevelsText]) -> KernelText | LevelsText | None:
    """The text with the geometry that was measured to be the fastest before; None if none was."""
    try:
        geometry = Geometry(*json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return next((text for text in texts if text.geometry == geometry), None)
