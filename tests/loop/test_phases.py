"""Garbage is collected neither while a call is planned nor at once behind it; a planned call pays nothing for that."""

from __future__ import annotations

import gc

import pytest
import torch

import leporello as lp
from leporello.loop.phases import no_garbage_collection


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the generations of objects; nothing is, since other tests have frozen objects."""
    done: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: done.append("unfreeze"))
    return done


def allocated(count: int) -> list[list[object]]:
    return [[] for _ in range(count)]


def test_what_a_block_leaves_counts_as_old_where_a_collection_would_follow(moves: list[str]) -> None:
    with no_garbage_collection():
        assert not gc.isenabled()
        kept = allocated(gc.get_threshold()[0] + 1000)
    assert gc.isenabled()
    assert kept
    assert moves == ["freeze", "unfreeze"]


def test_frozen_objects_stay_frozen(moves: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    with no_garbage_collection():
        kept = allocated(gc.get_threshold()[0] + 1000)
    assert kept
    assert moves == []


def test_a_collector_that_is_off_stays_off(moves: list[str]) -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            kept = allocated(gc.get_threshold()[0] + 1000)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert kept
    assert moves == []


def test_a_call_that_is_planned_already_counts_no_frozen_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count them takes as long as hundreds of steps; a step with a reset is planned by every call."""
    net, reset = lp.Recurrent(lp.Elman(3, 5, 1)), torch.tensor([True])
    _, state = net.step(torch.randn(1, 3), reset=reset)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("frozen objects are counted"))
    for _ in range(3):
        _, state = net.step(torch.randn(1, 3), state, reset=reset)
