"""The benchmark counts bytes exactly."""

from __future__ import annotations

import torch

from benchmarks.memory import peak_bytes
from tests.benchmarks.made import Calling, Halves


def test_peak_is_counted_to_the_byte() -> None:
    def run() -> None:
        a = torch.empty(1000)  # 4,000 bytes in use
        b = torch.empty(2000)  # 12,000, the peak
        del a
        c = torch.empty(500)  # 10,000
        del b, c

    assert peak_bytes(Calling(run)) == 12_000


def test_peak_is_the_same_every_time() -> None:
    task = Halves().tasks("apart")["apart"]
    assert peak_bytes(task) == peak_bytes(task) > 0
