"""What is generated compiles for GPUs of three generations, by the compiler that comes with torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import leporello as lp
from leporello.engine.gpu.division.geometry import LEVELS, Geometry
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.driver import compile_text, nvrtc_refusal
from leporello.engine.gpu.graphs.copies import copies_text
from leporello.engine.gpu.text.cuda_emitter import KernelText
from leporello.engine.gpu.text.levels_text import LevelsText
from leporello.errors import EngineRefusal
from tests.cells.examples import EXAMPLES
from tests.engine.gpu.heads import HeadsLSTM
from tests.engine.gpu.kernels import kernels_of
from tests.nets.twins import thoroughly

pytestmark = pytest.mark.skipif(nvrtc_refusal() is not None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
SHAPES = {
    "one block": Geometry("block", 1, 2),
    "a cluster": Geometry("cluster", 4, 1),
    "through L2": Geometry("grid", 16, 2),
    "levels": LEVELS,
}


def compile_all(cell: lp.Cell, inputs: int, dtype: torch.dtype, shape: Geometry, architecture: str) -> None:
    for kernel in kernels_of(cell, inputs, dtype):
        schedule = schedule_of(kernel)
        text = LevelsText(schedule, float_sums=True) if shape == LEVELS else KernelText(schedule, shape)
        for exact in (0, 1) if dtype == torch.float32 else (0,):
            defined = {"EXACT": exact, "ACCURATE": int(dtype == torch.float32)}
            assert compile_text(text.text("device.cuh", defined), architecture)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *thoroughly(torch.float16, torch.float32)])
@pytest.mark.parametrize("architecture", ["sm_90", *thoroughly("sm_80", "sm_100")])
def test_an_lstm_compiles(shape: str, dtype: torch.dtype, architecture: str) -> None:
    if shape == "a cluster" and architecture == "sm_80":
        pytest.skip("clusters came with sm_90")
    compile_all(lp.LSTM(16, 64), 16, dtype, SHAPES[shape], architecture)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_copies_compile(architecture: str) -> None:
    assert compile_text(copies_text(), architecture)


@pytest.mark.slow
def test_heads_compile() -> None:
    for shape in ("one block", "a cluster"):
        compile_all(HeadsLSTM(16, 12, 64), 16, torch.bfloat16, replace(SHAPES[shape], heads=12), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cell_compiles(name: str, architecture: str) -> None:
    for shape in ("through L2", "levels"):
        compile_all(EXAMPLES[name](), 3, torch.bfloat16, SHAPES[shape], architecture)


def test_sums_of_sixteen_bits_and_heads_compile() -> None:
    for cell in (HeadsLSTM(16, 3, 8), lp.LayerNormLSTM(16, 8)):
        for kernel in kernels_of(cell, 16, torch.float16):
            assert compile_text(
                LevelsText(schedule_of(kernel), float_sums=False).text("device.cuh", {"ACCURATE": 0}), "sm_90"
            )


def test_what_the_compiler_says_is_in_the_error() -> None:
    with pytest.raises(EngineRefusal, match="NVRTC") as caught:
        compile_text("__global__ void run() { undeclared(); }", "sm_90")
    assert "undeclared" in str(caught.value)
