"""Kernels on several threads: each takes rows of its own, and nobody can tell how many there were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.engine.cpu import native
from tests.close import assert_same
from tests.engine.counting import FOREVER, Call, lost_at_most, noting
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


@pytest.fixture
def _quiet() -> Iterator[None]:
    """As if no other program used the cores."""
    with lost_at_most(FOREVER):
        yield


def ran(rows: int, threads: int, seconds: float = 0.0) -> Call:
    """A call whose rows are taken by a kernel that sleeps."""
    call = Call(rows)
    kernel = noting(call, seconds=seconds)
    native.run_kernel(native.address_of(kernel), [0], rows, 1, 64, threads)
    assert [row for first, last in call.ranges for row in range(first, last)] == [*range(rows)]  # each of them once
    return call


SIZES = ((1, 4), (2, 1), (2, 2), (5, 37), (3, 7), (3, 2), (300, 3), (2, 0))  # threads and rows


@pytest.mark.usefixtures("_quiet")
def test_every_row_is_taken_once_and_each_of_torchs_threads_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from("torch's threads", monkeypatch)
    for threads, rows in SIZES:
        call = ran(rows, threads)
        sizes = [last - first for first, last in call.ranges if last > first]
        assert call.threads == len(sizes) == min(threads, rows)
        assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.usefixtures("_quiet")
def test_our_own_threads_take_small_units_of_at_least_four_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from("threads of our own", monkeypatch)
    for (threads, rows), units in zip(SIZES, (1, 1, 2, 9, 3, 2, 3, 0), strict=True):
        assert len([first for first, last in ran(rows, threads).ranges if last > first]) == units
    assert ran(9, 3, seconds=0.1).threads == 3  # whoever is awake takes the next one


def test_who_has_lost_time_to_other_programs_uses_threads_that_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from("torch's threads", monkeypatch)

    def everyone() -> set[int]:
        return {thread for _, _, thread in ran(64, 2, seconds=0.01).taken}

    with lost_at_most(FOREVER):
        assert everyone() == everyone()  # torch's threads
        torchs = everyone()
    with lost_at_most(300_000):
        everyone()  # a thread that sleeps computes nothing: as if it had been given no processor
        assert everyone() - torchs
    with lost_at_most(FOREVER):
        assert everyone() == torchs


def test_a_thread_that_comes_late_finds_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller takes all units while the other thread is in its first, and does not wait for it to begin another."""
    taken_from("threads of our own", monkeypatch)
    slow = threading.Event()
    call, caller = Call(32), threading.get_native_id()

    def wait() -> None:
        if threading.get_native_id() != caller:
            slow.wait(5)
        elif len(call.taken) >= 4:
            slow.set()
        else:
            time.sleep(0.02)  # the other thread begins

    kernel = noting(call, before=wait)
    native.run_kernel(native.address_of(kernel), [0], 32, 1, 64, 2)
    assert len(call.ranges) == 4
    assert sum(thread == caller for _, _, thread in call.taken) >= 3


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
        assert calls[-1].threads == threads or whose == "threads of our own"
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
        child = os.fork()
        if not child:  # pragma: no cover
            same = all(torch.equal(net(x)[0], wanted) for _ in range(3))
            os._exit(10 + 2 * same + (ran(9, 3, seconds=0.1).threads == 3))
        assert ended(child) == 13
        assert torch.equal(net(x)[0], wanted)


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
    assert whose == "threads of our own" or all(call.threads == 2 for call in calls)
