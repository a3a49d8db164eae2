"""What the driver is given for kernels of levels: functions by name, grids, and arguments by their addresses."""

from __future__ import annotations

from array import array
from contextlib import nullcontext
from ctypes import c_long
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.levels import cuda_levels
from leporello.engine.gpu.levels.cuda_levels import FILLING_THREADS, CudaLauncher
from leporello.engine.gpu.text.levels_text import LevelsText
from tests.engine.gpu.kernels import kernels_of

STREAM = 7


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Launches by a driver of Python: function, blocks, threads, stream, and the words that arguments begin with."""
    names: list[bytes] = []
    made: list[tuple[Any, ...]] = []

    def find(function: Any, module: Any, name: bytes) -> int:
        names.append(name)
        function._obj.value = len(names)
        return 0

    def launch(function: Any, *arguments: Any) -> int:
        *sizes, shared, stream, values, extra = arguments
        assert (shared.value, extra) == (0, None)
        grid, block = ([size.value for size in some] for some in (sizes[:3], sizes[3:]))
        assert grid[1:] == block[1:] == [1, 1]
        words = [c_long.from_address(value).value for value in values]
        made.append((names[function.value - 1].decode(), grid[0], block[0], stream.value, words))
        return 0

    driver = SimpleNamespace(cuModuleLoadData=lambda *_: 0, cuModuleGetFunction=find, cuLaunchKernel=launch)
    monkeypatch.setattr(cuda_levels, "cuda_driver", lambda: driver)
    monkeypatch.setattr(cuda_levels, "make_current", lambda index: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return made


def launcher_of(cell: lp.Cell) -> CudaLauncher:
    """Of its gradient."""
    text = LevelsText(schedule_of(kernels_of(cell, 3, torch.bfloat16)[1]), True)
    return CudaLauncher(text, b"", torch.device("cuda", 0))


def test_the_table_is_filled_with_words_by_value(launches: list[Any]) -> None:
    table = torch.empty(3, dtype=torch.int64)
    launcher_of(lp.LSTM(3, 5)).fill(table, array("Q", [11, 12, 13]))
    assert launches == [("fill", 1, FILLING_THREADS, STREAM, [11, table.data_ptr()])]


def test_a_thread_for_each_unit_of_a_row(launches: list[Any]) -> None:
    launcher, table = launcher_of(lp.LSTM(3, 5)), torch.empty(3, dtype=torch.int64)
    kernel = launcher.text.joint
    assert kernel is not None
    launcher.launch(kernel, table, 9, 130)
    assert launches == [("joint", -(-130 * 5 // 128), 128, STREAM, [table.data_ptr(), 9, 130])]


def test_a_block_for_each_row_with_totals(launches: list[Any]) -> None:
    launcher, table = launcher_of(lp.LayerNormLSTM(3, 50)), torch.empty(3, dtype=torch.int64)
    kernel = next(kernel for kernel in launcher.text.kernels if kernel is not None and kernel.rows)
    launcher.launch(kernel, table, 0, 6)
    assert launches == [(kernel.name, 6, 64, STREAM, [table.data_ptr(), 0, 6])]
