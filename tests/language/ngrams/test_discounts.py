"""Discounts: the formulas of Chen and Goodman, and what stands in where they do not hold."""

from __future__ import annotations

import pytest
import torch

from leporello.language.ngrams.discounts import discounts_of


def counts(*times: int) -> torch.Tensor:
    """So many n-grams that occur once, twice, ..."""
    return torch.cat([torch.full((many,), r) for r, many in enumerate(times, start=1)])


def test_discounts_follow_the_formulas() -> None:
    y = 100 / (100 + 2 * 40)
    expected = [0, 1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 12 / 20]
    assert discounts_of(counts(100, 40, 20, 12, 9, 5)).tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((0, 5, 3, 2), [0, 0.5, 1, 1.5]),  # none occurs once
        ((0, 0, 0, 0, 9), [0, 0.5, 1, 1.5]),
        ((8,), [0, 0.5, 1, 1.5]),  # none occurs twice
        ((8, 4, 0, 7), [0, 0.5, 1, 1.5]),
        ((8, 4, 2, 0, 5), [0, 0.5, 1.25, 1.5]),
        ((8, 4, 9, 9), [0, 0.5, 1, 1]),  # 2 - 3 / 2 * 9 / 4 is below 0
    ],
)
def test_half_the_count_stands_in_where_a_formula_does_not_hold(times: tuple[int, ...], expected: list[float]) -> None:
    assert discounts_of(counts(*times)).tolist() == expected


def test_counts_of_zero_do_not_matter() -> None:
    some = counts(9, 4, 3, 1)
    assert torch.equal(discounts_of(torch.cat([some, torch.zeros(5, dtype=torch.int64)])), discounts_of(some))
