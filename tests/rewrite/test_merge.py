"""merge: what is computed twice is computed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp
from leporello.rewrite import differentiate
from leporello.rewrite.merge_equal_values import merge_equal_values
from tests.close import assert_close, assert_same
from tests.rewrite.running import loop_of, numbers, run

Step = Callable[["Written", Tensor, Tensor], Any]
X, START = numbers(5, 3, 4), numbers(3, 4, seed=1)


class Written(lp.Cell):
    """output, h' = function(cell, x, h), with two matrices to use."""

    def __init__(self, function: Step) -> None:
        super().__init__(h=4)
        self.W, self.V = (nn.Parameter(numbers(4, 4, seed=seed) / 4) for seed in (2, 3))
        self.function = function

    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, Tensor]:
        made = self.function(self, x, h)
        return made, torch.tanh(made[0] if isinstance(made, tuple) else made)


def values_of(loop: lp.Loop) -> dict[str, Tensor]:
    draws = [port for port in loop.inputs if port.kind == "draw"]
    drawn = {port.name: numbers(5, 3, *port.shape, seed=place).sigmoid() for place, port in enumerate(draws)}
    return {"x": X, "h": START, **drawn}


def operators(loop: lp.Loop, name: str) -> int:
    return sum(getattr(node.target, "__name__", "").split(".")[0] == name for node in loop.nodes)


# steps, an operator, and how often it is there before and after
MERGED: dict[str, tuple[Step, str, int, int]] = {
    "a product": (lambda cell, x, h: h @ cell.W + torch.sin(h @ cell.W), "mm", 2, 1),
    "a function of a function": (lambda cell, x, h: torch.sin(h + x) * torch.sin(h + x) + (h + x), "add", 4, 2),
    "a turned matrix": (lambda cell, x, h: h @ cell.W.t() + x @ cell.W.t(), "t", 2, 1),
    "a matrix turned twice": (lambda cell, x, h: h @ cell.W.t().t() + x @ cell.W, "t", 2, 0),
    "a matrix turned in two ways": (lambda cell, x, h: h @ cell.W.permute(1, 0).t() + x @ cell.W, "permute", 1, 0),
    "a matrix turned three times": (lambda cell, x, h: h @ cell.W.t().t().t() + x @ cell.W.t(), "t", 4, 1),
    "parts of an operator": (lambda cell, x, h: h.sort(-1).values + h.sort(-1).indices * x, "sort", 2, 1),
    "two outputs": (lambda cell, x, h: (torch.sin(h + x), torch.sin(h + x)), "sin", 2, 1),
    "options": (lambda cell, x, h: torch.add(h, x, alpha=2) * torch.add(h, x, alpha=2), "add", 2, 1),
}
APART: dict[str, tuple[Step, str, int]] = {
    "other matrices": (lambda cell, x, h: h @ cell.W + h @ cell.V, "mm", 2),
    "other rows": (lambda cell, x, h: h @ cell.W + x @ cell.W, "mm", 2),
    "an operator of another order": (lambda cell, x, h: (h - x) * (x - h), "sub", 2),
    "other options": (lambda cell, x, h: torch.add(h, x, alpha=2) * torch.add(h, x, alpha=3), "add", 2),
    "other numbers": (lambda cell, x, h: h.clamp(min=0.1) * h.clamp(min=0.2), "clamp", 2),
    "a number of another type": (lambda cell, x, h: (x.long() + 2).double() * h + (x.long() + 2.0) * x, "add", 3),
    "zeros of another sign": (lambda cell, x, h: torch.atan2(h * 0.0, x) + torch.atan2(h * -0.0, x), "atan2", 2),
    "other draws": (lambda cell, x, h: F.dropout(h, 0.3) + F.dropout(h, 0.3), "lt", 2),
    "other parts": (lambda cell, x, h: torch.cat([h.chunk(2, -1)[1], h.chunk(2, -1)[0]], -1) + x, "getitem", 2),
}


@pytest.mark.parametrize("name", MERGED)
def test_what_is_computed_twice_is_computed_once(name: str) -> None:
    step, operator, before, after = MERGED[name]
    loop = loop_of(Written(step), X)
    merged = merge_equal_values(loop)
    assert (operators(loop, operator), operators(merged, operator)) == (before, after)
    assert (merged.inputs, merged.outputs) == (loop.inputs, loop.outputs)
    assert_same(run(merged, values_of(loop)), run(loop, values_of(loop)), name)


@pytest.mark.parametrize("name", APART)
def test_what_differs_stays_apart(name: str) -> None:
    step, operator, count = APART[name]
    loop = loop_of(Written(step), X)
    merged = merge_equal_values(loop)
    assert operators(loop, operator) >= operators(merged, operator) == count
    assert_same(run(merged, values_of(loop)), run(loop, values_of(loop)), name)


@pytest.mark.parametrize("name", ["a product", "a matrix turned three times", "parts of an operator", "two outputs"])
def test_the_gradient_of_a_merged_loop_is_the_gradient(name: str) -> None:
    loop = loop_of(Written(MERGED[name][0]), X)
    results = []
    for one in (loop, merge_equal_values(loop)):
        backward = differentiate(one)
        timed = ("sequence", "draw")
        values = {
            port.name: numbers(*((5,) if port.kind in timed else ()), *((3,) if port.rows else ()), *port.shape)
            for port in backward.inputs
        }
        values |= {"input.x": X, "before.h": numbers(5, 3, 4, seed=4)}
        results.append(run(backward, values, {"W": loop.invariant("W"), "V": loop.invariant("V")}))
    assert_close(results[1], results[0], name)


def test_a_merged_loop_merges_no_more() -> None:
    once = merge_equal_values(loop_of(Written(MERGED["a function of a function"][0]), X))
    assert merge_equal_values(once).text() == once.text()


def test_inputs_of_one_form_are_not_one() -> None:
    loop = merge_equal_values(loop_of(Written(lambda cell, x, h: (x, h)), X))
    assert len(set(loop.placeholders)) == len(loop.inputs)
    assert len({*loop.results}) == 3
