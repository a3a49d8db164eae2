"""`KneserNey` beside its slow twin; its probabilities; what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.language.model.perplexity import perplexity_of
from leporello.language.ngrams import kneser_ney
from leporello.language.ngrams.kneser_ney import KneserNey, discounts_of
from tests.errors.said import said
from tests.language.ngrams.by_hand import by_hand
from tests.language.ngrams.texts import skewed

FEW = settings(max_examples=60, deadline=None, derandomize=True)


def scored(model: KneserNey, tokens: Tensor) -> Tensor:
    return torch.cat(list(model.surprises(tokens)))


@st.composite
def small_texts(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """A text, another, the size of their vocabulary, an order."""
    size, order = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    tokens = st.integers(0, size - 1)
    learnt = draw(st.lists(tokens, min_size=order, max_size=40))
    return learnt, draw(st.lists(tokens, min_size=2, max_size=15)), size, order


@FEW
@given(small_texts())
def test_small_texts_are_scored_as_by_hand(drawn: tuple[list[int], list[int], int, int]) -> None:
    learnt, other, size, order = drawn
    found = scored(KneserNey.fit(torch.tensor(learnt), size, order), torch.tensor(other))
    expected = torch.tensor(by_hand(learnt, size, order).surprises(other), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 7])
def test_a_longer_text_is_scored_as_by_hand(order: int) -> None:
    learnt, other = skewed(1500, 13), skewed(300, 13, seed=1)
    found = scored(KneserNey.fit(learnt, 13, order), other)
    expected = torch.tensor(by_hand(learnt.tolist(), 13, order).surprises(other.tolist()), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@FEW
@given(small_texts())
def test_probabilities_sum_to_one_and_none_is_zero(drawn: tuple[list[int], list[int], int, int]) -> None:
    learnt, other, size, order = drawn
    model = KneserNey.fit(torch.tensor(learnt), size, order)
    for length in range(min(len(other), order + 2)):
        chances = model.probabilities(torch.tensor(other[:length], dtype=torch.int64))
        assert chances.sum().item() == pytest.approx(1, abs=1e-12)
        assert chances.min() > 0


def test_probabilities_after_seen_and_unseen_contexts_sum_to_one() -> None:
    learnt = skewed(1500, 13)
    model = KneserNey.fit(learnt, 14, 4)
    contexts = [learnt[100:103], learnt[700:706], torch.tensor([12, 12, 12]), torch.tensor([0, 13, 13]), learnt[:0]]
    for context in contexts:
        chances = model.probabilities(context)
        assert chances.sum().item() == pytest.approx(1, abs=1e-12)
        assert chances.min() > 0


def test_probabilities_are_those_that_surprises_come_from() -> None:
    learnt, other = skewed(900, 9), skewed(40, 9, seed=1)
    model = KneserNey.fit(learnt, 9, 4)
    for i, surprise in enumerate(scored(model, other).tolist(), start=1):
        assert -math.log(model.probabilities(other[:i])[other[i]]) == pytest.approx(surprise, abs=1e-12)


def test_each_order_equals_a_model_fitted_alone() -> None:
    learnt, other = skewed(900, 9), skewed(200, 9, seed=1)
    models = KneserNey.fit(learnt, 9, 5).orders()
    assert [model.order for model in models] == [1, 2, 3, 4, 5]
    for model in models:
        alone = KneserNey.fit(learnt, 9, model.order)
        assert torch.equal(scored(model, other), scored(alone, other))
        assert model.stored == alone.stored


def test_stored_counts_are_distinct_n_grams_of_all_orders() -> None:
    learnt = skewed(400, 9).tolist()
    expected = sum(len({tuple(learnt[i : i + n]) for i in range(400 - n + 1)}) for n in (1, 2, 3))
    assert KneserNey.fit(torch.tensor(learnt), 9, 3).stored == expected


@pytest.mark.parametrize("piece", [1, 3, 64])
def test_pieces_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    learnt, other = skewed(900, 9), skewed(100, 9, seed=1)
    model = KneserNey.fit(learnt, 9, 5)
    whole = list(model.surprises(other))
    assert len(whole) == 1
    monkeypatch.setattr(kneser_ney, "TOKENS_PER_PIECE", piece)
    pieces = list(model.surprises(other))
    assert len(pieces) == math.ceil(99 / piece)
    assert torch.equal(torch.cat(pieces), whole[0])


def test_one_more_token_of_context_tells_what_comes_next() -> None:
    """0 0 1 1 0 0 1 1 ...: one token tells nothing, two tell all."""
    tokens = torch.tensor([0, 0, 1, 1] * 100)
    two, three = (perplexity_of(KneserNey.fit(tokens, 2, order), tokens).perplexity for order in (2, 3))
    assert two == pytest.approx(2, abs=0.01)
    assert three == pytest.approx(1, abs=0.02)


def test_small_integers_are_tokens_too() -> None:
    learnt, other = skewed(400, 200), skewed(50, 200, seed=1)
    expected = scored(KneserNey.fit(learnt, 200, 3), other)
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(scored(KneserNey.fit(learnt.to(dtype), 200, 3), other.to(dtype)), expected)


def test_a_large_vocabulary_of_which_little_is_used() -> None:
    size = 3_000_000
    model = KneserNey.fit(torch.tensor([5, size - 1, 5, size - 1, 5]), size, 3)
    often, never = scored(model, torch.tensor([5, size - 1, 7])).tolist()
    assert often < 1
    assert math.log(size) < never < math.inf


def test_progress_is_told_after_each_order() -> None:
    told: list[int] = []
    KneserNey.fit(skewed(50, 3), 3, 4, told.append)
    assert told == [1, 2, 3, 4]


def test_it_tells_its_order_and_size() -> None:
    assert repr(KneserNey.fit(torch.tensor([0, 1, 0]), 2, 2)) == "KneserNey(order=2, size=2, stored=4)"


def test_a_text_shorter_than_an_n_gram_is_refused() -> None:
    said(ArgumentError, lambda: KneserNey.fit(torch.tensor([0, 1]), 2, 3), "order 3", "2 tokens", "a lower order")


@pytest.mark.parametrize("order", [0, -1, 2.0, True])
def test_an_order_that_is_no_count_is_refused(order: int) -> None:
    said(ArgumentError, lambda: KneserNey.fit(torch.tensor([0, 1]), 2, order), repr(order), "1 or more")


def test_tokens_outside_the_vocabulary_are_refused_where_they_come_in() -> None:
    strange, model = torch.tensor([0, 2, 1]), KneserNey.fit(torch.tensor([0, 1, 0]), 2, 2)
    said(ArgumentError, lambda: KneserNey.fit(strange, 2, 2), "not in the vocabulary")
    said(ArgumentError, lambda: model.surprises(strange), "not in the vocabulary")
    said(ArgumentError, lambda: model.probabilities(strange), "not in the vocabulary")
    said(ArgumentError, lambda: model.surprises(strange[:1]), "2 or more")


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
