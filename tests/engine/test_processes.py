"""The engine `cpu` in other processes, in copies and in pickles."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp

CHILDREN = 2

pytestmark = pytest.mark.kernels


def _gradient(net: lp.Recurrent, x: Tensor) -> Tensor:
    outputs, _ = net(x)
    return torch.autograd.grad(outputs.sum(), next(net.parameters()))[0]


def _child(net: lp.Recurrent, x: Tensor, barrier: Any, answers: Any) -> None:  # pragma: no cover
    torch.set_num_threads(1)
    barrier.wait(120)
    answers.put(_gradient(net, x).tolist())


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_children_that_begin_afresh_and_race_for_a_kernel_all_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits in each of them; here kernels may have been built otherwise, by other tests."""
    net, x = lp.Recurrent(lp.GRU(3, 4), engine="cpu"), torch.randn(5, 8, 3)
    wanted = _gradient(net, x)
    monkeypatch.setenv("LEPORELLO_CACHE", str(tmp_path / "empty"))
    afresh = multiprocessing.get_context("spawn")
    barrier, answers = afresh.Barrier(CHILDREN), afresh.Queue()
    children = [afresh.Process(target=_child, args=(net, x, barrier, answers)) for _ in range(CHILDREN)]
    for child in children:
        child.start()
    found = [torch.tensor(answers.get(timeout=120)) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert all(torch.equal(one, found[0]) for one in found)
    torch.testing.assert_close(found[0], wanted)
    assert not list((tmp_path / "empty").glob("building-*"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_a_copy_of_a_net_that_has_run_gives_the_same_bits(copied: Any) -> None:
    net, x = lp.Recurrent(lp.GRU(3, 4), engine="cpu"), torch.randn(5, 8, 3)
    wanted = _gradient(net, x)
    assert torch.equal(_gradient(copied(net), x), wanted)
