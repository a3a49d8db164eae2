"""Laws run with fresh memory full of NaN: what reads beyond its values shows. Kernels are built quickly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _quickly_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """In less than half the time, still with vectors: a law builds kernels by the hundred."""
    monkeypatch.setenv("LEPORELLO_CFLAGS", "-O2 -ftree-vectorize")
