"""What the benchmark measures: ten sizes, cells by name, the same numbers for every contestant."""

from __future__ import annotations

import torch

from benchmarks.cases import Case, Choice
from benchmarks.cells import CELLS, OWN, TORCH
from benchmarks.sizes import SIZES, Size
from benchmarks.suites import SUITES

CASE = Case("Leaky", Size(3, 2, 1, 5))


def test_every_cell_of_every_suite_has_a_row() -> None:
    assert {case.cell for suite in SUITES for case in suite.cases} <= set(CELLS)
    assert {*OWN, *TORCH} <= set(CELLS)


def test_cells_stand_on_all_ten_sizes() -> None:
    assert len(set(SIZES)) == 10
    for suite in SUITES:
        if suite.name in ("torch", "own", "memory"):
            assert {case.size for case in suite.cases} == set(SIZES)


def test_no_suite_has_a_case_twice() -> None:
    for suite in SUITES:
        assert len(set(suite.cases)) == len(suite.cases)


def test_a_case_gives_the_same_numbers_each_time() -> None:
    one, other = CASE.build(), CASE.build()
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.weighting, other.weighting)
    assert all(torch.equal(a, b) for a, b in zip(one.cell.parameters(), other.cell.parameters(), strict=True))


def test_an_exercise_has_the_sizes_of_its_case() -> None:
    exercise = CASE.build()
    assert exercise.inputs.shape == (3, 2, 1)
    assert exercise.weighting.shape == (3, 2, 5)
    assert exercise.begin(1).inputs.shape == (1, 2, 1)
    assert exercise.begin(1).weighting.shape == (1, 2, 5)


def test_patterns_choose_cells_and_sizes() -> None:
    cases = [Case(cell, size) for cell in ("LSTM", "LayerNormLSTM", "GRU") for size in (Size(3, 2, 1, 5), CASE.size)]
    assert {case.cell for case in cases if Choice(cells="LSTM").takes(case)} == {"LSTM"}
    assert {case.cell for case in cases if Choice(cells="GRU, Layer*").takes(case)} == {"GRU", "LayerNormLSTM"}
    assert all(Choice(sizes="3x*").takes(case) for case in cases)
    assert not any(Choice(sizes="35x*").takes(case) for case in cases)
