"""Compiled machines in floats: where they first go wrong."""

from __future__ import annotations

import pytest
import torch

import leporello as lp
from leporello.turing import deepest, first_error, machines

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


pytestmark = pytest.mark.usefixtures("_one_thread")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_it_goes_wrong_where_the_stack_no_longer_fits(dtype: torch.dtype) -> None:
    cell = lp.turing.compile(machines.zigzag())
    found = first_error(cell, dtype=dtype, max_steps=600)
    assert found is not None
    assert deepest(cell, dtype) <= found.depth <= deepest(cell, dtype) + 1


def test_a_more_precise_float_is_right_for_longer() -> None:
    cell = lp.turing.compile(machines.zigzag())
    steps = [found.step for dtype in FLOATS if (found := first_error(cell, dtype=dtype)) is not None]
    assert len(steps) == 4
    assert steps == sorted(steps)


def test_a_shallow_tape_is_never_wrong() -> None:
    cell = lp.turing.compile(machines.binary_increment())
    assert first_error(cell, "1011", dtype=torch.float32) is None
    assert first_error(cell, "1" * 14, dtype=torch.float64) is None
    assert first_error(cell, "1" * 14, dtype=torch.float32) == lp.turing.FirstError(step=0, depth=14)


def test_other_numbers_are_refused() -> None:
    cell = lp.turing.compile(machines.zigzag())
    with pytest.raises(lp.errors.ArgumentError, match=r"torch\.int64"):
        first_error(cell, dtype=torch.int64)
    with pytest.raises(lp.errors.ArgumentError, match="serial"):
        first_error(lp.turing.compile(machines.zigzag(), serial=True), dtype=torch.float64)
