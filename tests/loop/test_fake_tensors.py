"""Results of operators on fake tensors are shared between traces, but for those that assume a number of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.sym_node import SymNode

import leporello as lp
from leporello.loop import fake_tensors
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.text import text_of
from leporello.loop.tracing.trace import trace


def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators that are not found in the cache, from now on."""
    found: list[Any] = []
    known = fake_tensors._OperatorCache.__setitem__

    def noted(cache: Any, key: Any, result: Any) -> None:
        found.append(key.key[0])
        known(cache, key, result)

    monkeypatch.setattr(fake_tensors._OperatorCache, "__setitem__", noted)
    return found


def traced(step: Any) -> str:
    return text_of(trace(lp.Recurrent(step).cell, torch.ones(3, 6), torch.ones(3, 6)))


def plain(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h - x.flip(-1)) / 7
    return h, h


def by_batch(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(h - x.flip(-1)) / (7 if len(x) > 4 else 8)
    return h, h


def test_a_second_trace_of_the_same_operators_computes_no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensors, "_cached_operators", {})
    first = traced(plain)
    missed = computed(monkeypatch)
    assert traced(plain) == first
    assert missed == []


def test_what_assumes_a_number_of_rows_is_found_anew_in_every_trace() -> None:
    for _ in range(2):
        family = FakeTensorFamily()
        x = family.tensor((6,), torch.float32, torch.device("cpu"), rows=True)
        with family.active():
            x.reshape(-1, 9)
        assert family.guards()


def test_a_step_that_decides_by_the_batch_spoils_no_other() -> None:
    inputs = torch.randn(2, 3, 6)
    for _ in range(2):
        nets = [lp.Recurrent(by_batch), lp.Recurrent(plain)]
        for net in nets:
            net(inputs, torch.zeros(3, 6))
        loops = [next(iter(net._plan_cache.loops.values())) for net in nets]
        assert [loop.traced_for_one_batch for loop in loops] == [True, False]


def test_a_full_cache_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensors, "MAX_CACHED_OPERATORS", 5)
    monkeypatch.setattr(fake_tensors, "_cached_operators", {})
    before = traced(plain)
    assert 0 < len(fake_tensors._cached_operators) <= 5
    assert traced(plain) == before


def test_what_is_shared_holds_no_trace_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensors, "_cached_operators", {})
    traced(plain)
    sizes = [part.value for key in fake_tensors._cached_operators for part in key.key if hasattr(part, "value")]
    nodes = [size.node for size in sizes if hasattr(size, "node")]
    assert nodes
    assert not any(isinstance(node, SymNode) for node in nodes)
