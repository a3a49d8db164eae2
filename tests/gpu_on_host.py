"""Targets `gpu-host-...`: the kernels of the engine `gpu`, built by a C++ compiler from host.h and run without a GPU.

What the generated text does is tested everywhere; what the device's library does, only where there is a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from array import array
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from leporello.engine.gpu.division.geometry import LEVELS, Geometry
from leporello.engine.gpu.division.schedule import Schedule
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.levels.levels import Levels
from leporello.engine.gpu.levels.levels_steps import LevelsSteps
from leporello.engine.gpu.runner import Given, GpuRunner, about_persistent, launch_groups
from leporello.engine.gpu.sums.division import Division
from leporello.engine.gpu.sums.row_sums import SumsKernel
from leporello.engine.gpu.target import GPU_TARGET, at_once_by
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.gpu.text.levels_text import LevelKernel, LevelsText
from leporello.engine.target import Target, WindowSizes, put_step
from leporello.engine.targets import register
from leporello.kernel.description import Kernel

FOLDER = Path(tempfile.gettempdir()) / f"leporello-gpu-on-host-{os.getuid()}"


@dataclass(frozen=True)
class HostBuilder:
    """Builds for the host, with one geometry for all kernels, but for the number of their heads."""

    shape: Geometry
    float_sums: bool = True

    def build(
        self, schedule: Schedule, batch: int, exact: bool, device: torch.device, steps: int, run: object
    ) -> HostKernel | Levels:
        if self.shape == LEVELS:
            levels = LevelsText(schedule, self.float_sums)
            source = compiled(levels.text("host.h", {"ACCURATE": 1}))
            return Levels(LevelsSteps(levels, HostLauncher(library(source))), source)
        text = KernelText(schedule, replace(self.shape, heads=schedule.heads))
        return HostKernel(text, compiled(text.text("host.h", {"EXACT": int(exact), "ACCURATE": 1})))

    def enter(self, values: object) -> None:
        pass

    def length_class(self, steps: int) -> int:
        return 0

    def runner(self, kernel: Kernel) -> GpuRunner:
        return GpuRunner.of(kernel, schedule_of(kernel), self)


@dataclass(frozen=True)
class HostKernel:
    text: KernelText
    source: Path
    registers: int | None = None

    @property
    def about(self) -> str:
        return about_persistent(self)

    def run(self, given: Given, steps: int) -> None:
        launch_groups(self, given, steps)

    def groups_at_once(self) -> int:
        return 2

    def launch(self, words: array[int], groups: int) -> None:
        library(self.source).run(ctypes.c_void_p(words.buffer_info()[0]), ctypes.c_long(groups))


@dataclass(frozen=True)
class HostLauncher:
    """Calls the functions of levels one after the other, and multiplies in float32."""

    functions: ctypes.CDLL

    def fill(self, table: torch.Tensor, words: array[int]) -> None:
        self.functions.fill(ctypes.c_void_p(words.buffer_info()[0]), ctypes.c_void_p(table.data_ptr()))

    def launch(self, kernel: LevelKernel, table: torch.Tensor, at: int, batch: int) -> None:
        numbers = (at, batch, kernel.blocks(batch) * LEVELS.threads)
        getattr(self.functions, kernel.name)(ctypes.c_void_p(table.data_ptr()), *map(ctypes.c_long, numbers))

    def multiply(self, left: torch.Tensor, right: torch.Tensor, sums: torch.Tensor) -> None:
        assert left.dtype == right.dtype
        sums.copy_(torch.matmul(left.float(), right.float()))


@dataclass(frozen=True)
class HostSums:
    """Calls the kernel of sums over rows; partial sums begin with NaN.

    backwards   whether the last block runs first
    """

    backwards: bool = False

    def launch(self, division: Division, words: array[int], kernel: SumsKernel, device: torch.device) -> None:
        counters = torch.zeros(division.tiles, dtype=torch.int32)
        partials = torch.full((division.partials + 4,), float("nan"))
        words[0], words[1] = (-(-partials.data_ptr() // 16) * 16), counters.data_ptr()
        run = library(compiled(kernel.text("host.h"))).run
        run(ctypes.c_void_p(words.buffer_info()[0]), ctypes.c_long(division.blocks), self.backwards)
        assert not counters.any()


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(source.with_suffix(".so")))


def compiled(text: str) -> Path:
    """The path of a source whose library stands beside it."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    source = FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.cpp"
    if not source.with_suffix(".so").exists():
        source.write_text(text)
        part = source.with_suffix(f".{os.getpid()}.so")
        compiler = shutil.which("g++") or shutil.which("c++") or "clang++"
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-ffp-contract=off"]
        subprocess.run([compiler, *flags, "-o", str(part), str(source)], check=True)
        part.replace(source.with_suffix(".so"))
    return source


def target_on_host(name: str, shape: Geometry) -> Target:
    return replace(
        GPU_TARGET,
        name=name,
        devices={"cpu": "the CPU"},
        default_windows=WindowSizes(max_rows=4096),
        unavailable=lambda: None,
        build=HostBuilder(shape).runner,
        at_once=at_once_by(HostSums()),
        put_step=put_step,
        recorded_sweep=Target("none").recorded_sweep,
        language="C++",
    )


SHAPES = {
    "gpu-host-block": Geometry("block", 1, 1, 64),
    "gpu-host-cluster": Geometry("cluster", 4, 2, 64),
    "gpu-host-grid": Geometry("grid", 3, 1, 128),
    "gpu-host-levels": LEVELS,
}
for name, shape in SHAPES.items():
    register(target_on_host(name, shape))
