"""Memory that sweeps use again: it comes back when its last tensor is gone, and never before."""

from __future__ import annotations

import threading

import pytest
import torch

import leporello as lp
from leporello.engine import buffer_pool
from leporello.engine.buffer_pool import MIN_POOLED_BYTES, empty_from_pool

CPU = torch.device("cpu")
COUNT = MIN_POOLED_BYTES // 4


@pytest.fixture(autouse=True)
def _nothing_kept():
    buffer_pool.clear()
    yield
    buffer_pool.clear()


def _room(count: int = COUNT):
    return empty_from_pool((count,), torch.float32, CPU)


def test_a_block_is_used_again_when_its_tensor_is_gone():
    first = _room()
    where = first.data_ptr()
    del first
    assert buffer_pool.free_bytes() > 0
    assert _room().data_ptr() == where


def test_a_block_is_not_used_again_while_a_part_of_it_is_held():
    first = _room()
    where, part = first.data_ptr(), first.view(4, -1)[3]
    part.fill_(7)
    del first
    assert buffer_pool.free_bytes() == 0
    second = _room()
    second.fill_(1)
    assert second.data_ptr() != where
    assert (part == 7).all()


def test_what_autograd_saved_comes_back_after_the_backward_sweep():
    x = torch.ones(COUNT, requires_grad=True)
    value = _room()
    value.fill_(2)
    loss = (x * value).sum()
    del value
    assert buffer_pool.free_bytes() == 0
    loss.backward()
    assert (x.grad == 2).all()
    assert buffer_pool.free_bytes() > 0


def test_shapes_and_types_are_those_asked_for():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
        found = empty_from_pool((3, 7, COUNT), dtype, CPU)
        assert (found.shape, found.dtype) == ((3, 7, COUNT), dtype)
        assert found.is_contiguous()
        found.fill_(1)
        assert found.sum() == 3 * 7 * COUNT


def test_small_ones_are_like_any_tensors():
    small = _room(8)
    del small
    assert buffer_pool.free_bytes() == 0


def test_sizes_almost_the_same_share_their_blocks():
    first = _room(100_000)
    where = first.data_ptr()
    del first
    assert _room(99_000).data_ptr() == where


def test_no_more_lies_unused_than_allowed(monkeypatch):
    monkeypatch.setattr(buffer_pool, "keep_bytes", lambda: 3 * MIN_POOLED_BYTES)
    held = [_room() for _ in range(5)]
    held.clear()
    assert 0 < buffer_pool.free_bytes() <= 3 * MIN_POOLED_BYTES
    large = _room(4 * COUNT)
    del large
    assert buffer_pool.free_bytes() <= 3 * MIN_POOLED_BYTES


def test_the_sizes_that_came_back_longest_ago_are_released_first(monkeypatch):
    monkeypatch.setattr(buffer_pool, "keep_bytes", lambda: 7 * MIN_POOLED_BYTES)
    for count in (COUNT, 2 * COUNT, COUNT, 4 * COUNT):
        _room(count)  # and gives it back
    assert {size // MIN_POOLED_BYTES for size in buffer_pool._free} == {1, 2, 4}
    _room(3 * COUNT)
    assert {size // MIN_POOLED_BYTES for size in buffer_pool._free} == {4, 3}


def test_threads_never_get_the_same_block():
    wrong = []

    def work(number: int) -> None:
        for _ in range(300):
            own = _room()
            own.fill_(number)
            if not (own == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_how_much_is_kept_is_told_in_megabytes(monkeypatch):
    assert 256 <= buffer_pool.default_keep_megabytes() <= 1024
    for told, wanted in (("", buffer_pool.default_keep_megabytes() << 20), ("3", 3 << 20), ("0", 0)):
        monkeypatch.setenv("LEPORELLO_KEEP", told)
        assert buffer_pool.keep_bytes.__wrapped__() == wanted
    monkeypatch.setenv("LEPORELLO_KEEP", "much")
    with pytest.raises(lp.errors.ArgumentError, match="LEPORELLO_KEEP is no number"):
        buffer_pool.keep_bytes.__wrapped__()


def test_where_nothing_is_kept_all_are_like_any_tensors(monkeypatch):
    monkeypatch.setattr(buffer_pool, "keep_bytes", lambda: 0)
    large = _room()
    del large
    assert buffer_pool.free_bytes() == 0


def test_a_network_uses_the_memory_of_its_last_call():
    net, x = lp.Recurrent(lp.LSTM(3, 64), engine="stepwise"), torch.randn(40, 64, 3)
    for _ in range(2):
        net(x)[0].sum().backward()
        kept = buffer_pool.free_bytes()
        assert kept > 0
    net(x)[0].sum().backward()
    assert buffer_pool.free_bytes() == kept
