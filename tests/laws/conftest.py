"""Laws run with fresh memory full of NaN: what reads beyond its values shows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are built as an optimising compiler builds them, unless the flags were given."""
    if os.environ.get("LEPORELLO_CFLAGS") == "-O0":
        monkeypatch.setenv("LEPORELLO_CFLAGS", "-O1")


@pytest.fixture(autouse=True)
def _nan_in_fresh_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
