"""On how many threads kernels run in these tests, and what each of them does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.counting import Call, Shares, counted_columns, counted_rows


@pytest.fixture
def _threads() -> Iterator[None]:
    """Tests may set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(_threads: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Call]]:
    """The calls of kernels, with the threads that took their rows."""
    with counted_rows(monkeypatch) as found:
        yield found


@pytest.fixture
def shares(_threads: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shares]:
    """What the helpers of teams have done."""
    with counted_columns(monkeypatch) as found:
        yield found
