"""The cells in jax are the cells in PyTorch."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from benchmarks import agreement
from benchmarks.cases import FORWARD, TRAINING, Case
from benchmarks.cells import OWN
from benchmarks.contestants import Eager
from benchmarks.sizes import Size

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)

from benchmarks.jax_scan import JaxScan
from benchmarks.jax_steps import STEPS


def test_every_cell_of_ones_own_has_a_step_in_jax() -> None:
    assert set(STEPS) == set(OWN)


@pytest.mark.parametrize("cell", OWN)
def test_a_cell_computes_the_same_in_jax(cell: str) -> None:
    exercise = Case(cell, Size(4, 2, 3, 5)).build()
    for parameter in exercise.cell.parameters():
        parameter.data += 0.1  # no bias or shift that is zero at first hides an error
    agreement.check({one.name: one.prepare(exercise, TRAINING) for one in (Eager(), JaxScan())})


def test_forward_alone_gives_no_gradients() -> None:
    exercise = Case("Leaky", Size(1, 1, 3, 5)).build()
    tasks = {one.name: one.prepare(exercise, FORWARD) for one in (Eager(), JaxScan())}
    agreement.check(tasks)
    assert set(tasks["jax"].results(1)) == {"outputs"}


def test_what_comes_behind_the_first_steps_does_not_count() -> None:
    exercise = Case("Leaky", Size(4, 2, 3, 5)).build()
    whole, begin = exercise.weighting_only(2), exercise.begin(2)
    for contestant in (Eager(), JaxScan()):
        results = [contestant.prepare(one).results(2) for one in (exercise, whole, begin)]
        for name, wanted in results[2].items():
            torch.testing.assert_close(results[0][name], wanted)
            torch.testing.assert_close(results[1][name], wanted)
