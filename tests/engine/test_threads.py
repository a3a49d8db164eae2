"""Kernels on several threads: each takes rows of its own, and nobody can tell how many there were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.engine.cpu import native
from tests.close import assert_same
from tests.engine.counting import Call, noting
from tests.engine.results import found

HOME = Path(__file__).parents[2]
WHOSE = pytest.mark.parametrize("whose", ["torch's threads", "threads of our own"])

pytestmark = pytest.mark.kernels


def taken_from(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's threads, or as if they could not be found."""
    if whose == "torch's threads":
        if native._torch_threads() == native.NO_OPENMP:
            pytest.skip("torch's threads cannot be had here")
    else:
        monkeypatch.setattr(native, "_torch_threads", lambda: native.NO_OPENMP)


@WHOSE
def test_every_row_is_taken_once_and_each_thread_has_its_share(whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from(whose, monkeypatch)
    for threads, rows in ((1, 4), (2, 1), (2, 2), (5, 37), (3, 7), (3, 2), (300, 3)):
        call = Call(rows)
        native.run_kernel(native.address_of(noting(call)), [0], rows, 1, 64, threads, 0)
        assert [row for first, last in call.ranges for row in range(first, last)] == [*range(rows)]
        assert call.threads == len(call.ranges) == min(threads, rows)
        sizes = [last - first for first, last in call.ranges]
        assert max(sizes) - min(sizes) <= 1


@WHOSE
def test_outputs_are_the_same_bits_whatever_the_number_of_threads(
    whose: str, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_from(whose, monkeypatch)
    net, x = lp.Recurrent(lp.Feedback(lp.LSTM(7, 7)), engine="cpu"), torch.randn(6, 37, 0)
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        results.append(net(x)[0].detach())
        assert calls[-1].threads == threads
    assert all(torch.equal(result, results[0]) for result in results)


def test_gradients_are_the_same_bits_from_run_to_run(calls: list[Call]) -> None:
    torch.set_num_threads(3)
    net, x = lp.Recurrent(lp.GRU(5, 19), engine="cpu"), torch.randn(20, 11, 5)
    assert_same(found(net, x), found(net, x), "run to run")
    assert [call.threads for call in calls] == [3, 3, 3] * 2  # forward, backward and the sums over rows, each twice


def test_little_work_stays_on_one_thread(monkeypatch: pytest.MonkeyPatch, calls: list[Call]) -> None:
    monkeypatch.setattr(native, "MIN_THREADED_OPERATIONS", 200_000)
    torch.set_num_threads(3)
    net = lp.Recurrent(lp.Feedback(lp.LSTM(7, 7)), engine="cpu")
    with torch.no_grad():
        for length, threads in ((1, 1), (500, 3)):
            net(torch.randn(length, 5, 0))
            assert calls[-1].threads == threads


def ended(child: int) -> int:
    """The exit status of a child, which is killed if it hangs."""
    for _ in range(600):
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.filterwarnings("ignore:.*os.fork:RuntimeWarning")  # other tests of the process may have brought jax
@pytest.mark.filterwarnings("ignore:.*at_fork:pytest.PytestUnraisableExceptionWarning")
@WHOSE
def test_a_child_of_a_fork_has_threads_of_its_own(
    whose: str, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_from(whose, monkeypatch)
    torch.set_num_threads(3)
    net, x = lp.Recurrent(lp.RNN(3, 4), engine="cpu"), torch.randn(3, 8, 3)
    with torch.no_grad():
        wanted = net(x)[0]
        assert calls[-1].threads == 3
        child = os.fork()
        if not child:  # pragma: no cover
            same = all(torch.equal(net(x)[0], wanted) for _ in range(3))
            apart = [call.threads for call in calls[-3:]] == [3, 3, 3]
            os._exit(10 + 2 * same + apart)
        assert ended(child) == 13
        assert torch.equal(net(x)[0], wanted)
        assert calls[-1].threads == 3


def run_alone(script: str, **environment: str) -> str:
    """What a process of its own says; it is killed with its children if it hangs."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        cwd=HOME,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, wrong = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert not process.returncode, wrong
    return said


# A net whose matrices are so large that one row is shared by columns, and nine rows by rows.
NET = """
import os, torch, leporello as lp
from leporello.engine.cpu import native
native.MIN_THREADED_OPERATIONS = 0
torch.set_num_threads(4)
cell = lp.Feedback(lp.RNN(192, 192))
net, twin = lp.Recurrent(cell, engine="cpu"), lp.Recurrent(cell, engine="reference")
def off(batch):
    x, state = torch.zeros(9, batch, 0), tuple(torch.randn(batch, 192) for _ in range(2))
    with torch.no_grad():
        return (net(x, state)[0] - twin(x, state)[0]).abs().max().item()
"""


def test_where_fewer_threads_come_than_were_asked_for_all_work_is_done() -> None:
    script = NET + "print(torch.get_num_threads(), *(off(batch) < 1e-5 for batch in (9, 1, 3)))"
    assert run_alone(script, OMP_THREAD_LIMIT="2").split() == ["4", "True", "True", "True"]


@pytest.mark.filterwarnings("ignore:.*os.fork:RuntimeWarning")
def test_a_child_may_be_the_first_to_run_a_kernel() -> None:
    """Torch's threads have worked in the parent: in the child they are not there."""
    script = """
import os, torch, leporello as lp
from leporello.engine.cpu import native
native.MIN_THREADED_OPERATIONS = 0
torch.set_num_threads(3)
net, x = lp.Recurrent(lp.RNN(3, 4), engine="cpu"), torch.randn(3, 8, 3)
with torch.no_grad():
    wanted = lp.Recurrent(net.cell, engine="reference")(x)[0]
    torch.zeros(2_000_000).exp()
    child = os.fork()
    if not child:
        os._exit(7 if torch.allclose(net(x)[0], wanted, atol=1e-5) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_alone(script).split() == ["7"]


@WHOSE
def test_several_threads_may_call_at_once(whose: str, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from(whose, monkeypatch)
    torch.set_num_threads(2)
    net = lp.Recurrent(lp.GRU(3, 8), engine="cpu")
    inputs = [torch.randn(30, 6, 3) for _ in range(8)]
    with torch.no_grad():
        wanted = [net(x)[0] for x in inputs]
        results: list[Tensor | None] = [None] * len(inputs)

        def work(place: int) -> None:
            with torch.no_grad():
                for _ in range(10):
                    results[place] = net(inputs[place])[0]

        running = [threading.Thread(target=work, args=(place,)) for place in range(len(inputs))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))  # type: ignore[arg-type]
    assert all(call.threads == 2 for call in calls)
