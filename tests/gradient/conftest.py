"""What tests of gradients ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For many small operators: two threads would wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
