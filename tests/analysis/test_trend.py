"""`Trend`: the rate that fits sizes, where they end, and the sentences."""

from __future__ import annotations

import math

import pytest
import torch

from leporello.analysis.trend import Trend, fit_trend, share_left, share_left_table


def decaying(length: int, rate: float, levels: torch.Tensor | None = None) -> torch.Tensor:
    """rate ** (t - k) for t >= k, each t times its own level."""
    times = torch.arange(length, dtype=torch.float64)
    sizes = (rate ** (times.unsqueeze(1) - times)).tril()
    return sizes if levels is None else sizes * levels.unsqueeze(1)


@pytest.mark.parametrize("rate", [0.01, 0.93, 1.0, 1.4])
def test_a_pure_rate_is_found_whatever_the_size_of_each_loss(rate: float) -> None:
    levels = torch.logspace(3, -3, 20, dtype=torch.float64)
    assert fit_trend(decaying(20, rate, levels)).rate == pytest.approx(rate, rel=1e-9)
    torch.testing.assert_close(share_left(decaying(20, rate)), rate ** torch.arange(20, dtype=torch.float64))


def test_sizes_of_zero_and_beyond_all_numbers_are_left_out_of_the_fit() -> None:
    sizes = decaying(20, 0.9)
    sizes[7, 3], sizes[19, 0], sizes[18, 2] = 0, math.inf, math.nan
    assert fit_trend(sizes).rate == pytest.approx(0.9, rel=1e-9)


def test_an_end_is_no_underflow() -> None:
    sizes = decaying(20, 0.5)
    assert fit_trend(sizes.tril().triu(-4)).ends == 5
    assert fit_trend(decaying(400, 1e-3)).ends is None
    assert fit_trend(decaying(400, 1e-3)).rate == pytest.approx(1e-3, rel=1e-6)


def test_an_end_far_behind_the_horizon_is_not_worth_a_sentence() -> None:
    trend = fit_trend(decaying(40, 0.5).tril().triu(-30))
    assert trend.verdict() == "each step back keeps 0.5 of the gradient: after 7 steps 1% is left"
    assert trend.horizon == pytest.approx(6.644, abs=1e-3)


@pytest.mark.parametrize(
    ("trend", "said"),
    [
        (Trend(0.93, 100), "each step back keeps 0.93 of the gradient: after 64 steps 1% is left"),
        (Trend(0.93, 50), "each step back keeps 0.93 of the gradient: after 64 steps 1% would be left"),
        (Trend(0.005, 50), "each step back keeps 0.005 of the gradient: after 1 step 1% is left"),
        (
            Trend(1.4, 10),
            "each step back multiplies the gradient by 1.4: after 21 steps it would be 1,000 times as large",
        ),
        (Trend(1.0, 10), "the gradient neither shrinks nor grows: 10 steps back it is as large"),
        (Trend(0.99, 50), "the gradient neither shrinks nor grows: 50 steps back 61% of it is left"),
        (Trend(0.7, 1), "each step back keeps 0.7 of the gradient: after 13 steps 1% would be left"),
        (Trend(0.99, 50, ends=4), "the gradient ends: 4 steps back nothing is left"),
        (Trend(math.nan, 9, ends=1), "nothing of the gradient passes from one step to the one before"),
        (Trend(math.nan, 9), "nothing of the gradient passes from one step to the one before"),
        (Trend(math.nan, 0), "one step: the gradient has no steps to go back through"),
    ],
)
def test_sentences(trend: Trend, said: str) -> None:
    assert trend.verdict() == said


def test_a_table_lines_up() -> None:
    lines = share_left_table({"left": torch.tensor([1.0, 0.5, 0.25]), "in c": torch.tensor([1.0, 12345.0, 0.0])})
    assert lines == ["  steps back       1    2", "  left           50%  25%", "  in c        1e+04x    0"]
