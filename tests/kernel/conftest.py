"""How kernels are built in these tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def _quickly_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in a fifth of the time: for tests of what kernels compute, not of how fast."""
    monkeypatch.setenv("LEPORELLO_CFLAGS", "-O1")
