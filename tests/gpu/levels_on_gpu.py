"""The target `gpu-levels`: that of the engine `gpu`, with a kernel for each level whatever fits on the chip.

Its sweeps are not captured as a whole: then the levels capture their steps.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from leporello.engine.gpu.cuda_build import CudaBuilder
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.levels.cuda_levels import float_sums
from leporello.engine.gpu.runner import GpuRunner
from leporello.engine.gpu.target import GPU_TARGET
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.gpu.text.levels_text import LevelsText
from leporello.engine.target import Target
from leporello.engine.targets import register
from leporello.kernel.description import Kernel

ENGINE = "gpu-levels"


class LevelsBuilder(CudaBuilder):
    """Has one choice."""

    def texts(self, schedule: Schedule, batch: int, device: torch.device, most: int) -> list[KernelText | LevelsText]:
        return [LevelsText(schedule, float_sums())]


def build(kernel: Kernel) -> GpuRunner:
    return GpuRunner.of(kernel, schedule_of(kernel), LevelsBuilder())


register(replace(GPU_TARGET, name=ENGINE, build=build, recorded_sweep=Target("none").recorded_sweep))
