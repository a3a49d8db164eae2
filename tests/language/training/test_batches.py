"""Rows and windows of a text."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from leporello.errors import ArgumentError
from leporello.language.training.batches import Batches


def batches(count: int, batch: int, window: int, partition: str = "sequential", **options: int) -> Batches:
    return Batches(torch.arange(count, dtype=torch.int32), batch, window, partition=partition, seed=3, **options)


def test_targets_are_the_inputs_a_step_later():
    for partition in ("sequential", "random"):
        for window in batches(500, 4, 10, partition).epoch(0):
            assert window.shape == (11, 4)
            assert window.dtype == torch.int64
            assert torch.equal(window[1:], window[:-1] + 1)


def test_rows_go_on_where_they_stopped():
    windows = list(batches(500, 4, 10).epoch(2))
    assert len(windows) > 5
    for before, after in pairwise(windows):
        assert torch.equal(before[-1], after[0])


def test_windows_at_random_cover_the_text_without_overlap():
    starts = torch.cat([window[0] for window in batches(500, 4, 10, "random").epoch(0)])
    ordered = starts.sort().values
    assert (ordered.diff() >= 10).all()
    assert not torch.equal(starts, ordered)
    assert len(starts) >= 500 // 10 - 4


def test_epochs_begin_at_other_places_and_the_same_one_always_at_the_same():
    made = batches(500, 4, 10)
    firsts = {int(next(made.epoch(number))[0, 0]) for number in range(12)}
    assert len(firsts) > 2
    assert torch.equal(next(made.epoch(5)), next(batches(500, 4, 10).epoch(5)))


@pytest.mark.parametrize("partition", ["sequential", "random"])
def test_an_epoch_can_be_entered_in_the_middle(partition: str):
    whole = list(batches(500, 4, 10, partition).epoch(1))
    rest = list(batches(500, 4, 10, partition).epoch(1, begin=7))
    assert len(rest) == len(whole) - 7
    assert all(torch.equal(a, b) for a, b in zip(whole[7:], rest, strict=True))


@pytest.mark.parametrize("partition", ["sequential", "random"])
def test_two_processes_have_the_rows_of_one_with_twice_the_batch(partition: str):
    both = [batches(500, 4, 10, partition, rank=rank, ranks=2).epoch(1) for rank in (0, 1)]
    for whole, first, second in zip(batches(500, 8, 10, partition).epoch(1), *both, strict=True):
        assert torch.equal(whole, torch.cat([first, second], 1))


def test_all_epochs_have_the_same_number_of_updates():
    for count in range(81, 200, 7):
        made = batches(count, 4, 10)
        assert {len(list(made.epoch(number))) for number in range(5)} == {made.updates}


def test_a_part_of_a_longer_array_is_read_from_its_own_beginning():
    part = torch.arange(1000, dtype=torch.uint8)[100:250]
    made = Batches(part, 2, 5, partition="sequential", seed=0)
    assert int(next(made.epoch(0))[0, 0]) in range(100, 105)


def test_a_text_shorter_than_one_window_is_refused_with_what_would_fit():
    with pytest.raises(ArgumentError, match=r"too short for one window(.|\n)*100 tokens(.|\n)*window=24 or batch=1"):
        batches(100, 4, 64)
    with pytest.raises(ArgumentError, match="a longer text"):
        batches(2, 4, 64)


def test_a_text_of_exactly_one_window_is_enough():
    assert batches(4 * 64 + 1, 4, 64).updates == 1
