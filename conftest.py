"""What every test starts from: the same random numbers, and one torch thread per worker where several run."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.engine import targets
from tests.roomy import roomy

collect_ignore = [] if find_spec("torchrl") else ["src/leporello/torchrl.py"]  # make check-all installs torchrl
os.environ.setdefault("LEPORELLO_CACHE", str(Path(__file__).parent / ".kernels"))  # not the user's own
os.environ.setdefault("LEPORELLO_CFLAGS", "-O0")  # built in a tenth of the time; laws have -O1, make check-all -O2
gc.freeze()  # what is imported stays: looking through it again and again took a quarter of the time
gc.set_threshold(100_000, 10, 20)
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For many small operators on a busy machine: two threads would wait for each other more than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _auto_without_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests in which nobody names an engine build no kernels, which takes seconds, unless they are marked `kernels`."""
    if "kernels" not in request.keywords:
        monkeypatch.setattr(targets, "AUTO", ("stepwise", "reference"))


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, object]) -> None:
    """Examples in docstrings may use `lp`, `torch` and `nn` without importing them."""
    doctest_namespace.update(lp=lp, torch=torch, nn=nn)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Tests run with room for their frames."""
    roomy(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    return True
