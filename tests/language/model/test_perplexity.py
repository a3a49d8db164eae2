"""Perplexity: what perfect, uniform and impossible predictions give, and what is no text."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError, LeporelloError
from leporello.language.model.perplexity import TOKENS_PER_PIECE, Scores, Uniform, perplexity_of
from tests.errors.said import said


class Chances:
    """A model that gives the truth these probabilities, in pieces of three."""

    def __init__(self, *chances: float) -> None:
        self.chances = torch.tensor(chances, dtype=torch.float64)

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        return iter((-self.chances.log()).split(3))


def text(length: int) -> Tensor:
    return torch.arange(length) % 7


def test_a_perfect_model_has_perplexity_one() -> None:
    scores = perplexity_of(Chances(1, 1, 1, 1), text(5))
    assert (scores.perplexity, scores.loss, scores.bits(9)) == (1, 0, 0)


@pytest.mark.parametrize("size", [1, 2, 7, 65_537])
def test_the_uniform_model_has_the_size_of_the_vocabulary_as_perplexity(size: int) -> None:
    tokens = torch.arange(9) % size
    assert perplexity_of(Uniform(size), tokens).perplexity == pytest.approx(size, rel=1e-14)


def test_a_model_that_holds_the_truth_for_impossible_has_infinite_perplexity() -> None:
    scores = perplexity_of(Chances(1, 0, 1), text(4))
    assert (scores.perplexity, scores.loss, scores.bits(3)) == (math.inf, math.inf, math.inf)


def test_a_perplexity_that_no_float_can_hold_is_infinite() -> None:
    assert Scores(2, 2 * 709.7).perplexity == pytest.approx(math.exp(709.7))
    assert Scores(2, 2 * 709.8).perplexity == math.inf


def test_perplexity_is_the_inverse_geometric_mean_of_the_chances() -> None:
    chances = (0.5, 0.25, 0.125, 1.0, 0.01)
    scores = perplexity_of(Chances(*chances), text(6))
    assert scores.tokens == 5
    assert scores.perplexity == pytest.approx(math.prod(chances) ** (-1 / 5), rel=1e-14)


def test_bits_are_shared_among_what_is_counted() -> None:
    scores = perplexity_of(Chances(0.5, 0.25, 0.125), text(4))
    assert scores.bits(3) == pytest.approx(2)
    assert scores.bits(12) == pytest.approx(0.5)
    said(ArgumentError, lambda: scores.bits(0), "1 or more")


def test_progress_is_told_after_each_piece() -> None:
    told: list[int] = []
    perplexity_of(Chances(*[0.5] * 7), text(8), told.append)
    assert told == [3, 6, 7]


def test_long_texts_come_in_pieces() -> None:
    tokens = torch.zeros(2 * TOKENS_PER_PIECE + 4, dtype=torch.uint8)
    pieces = list(Uniform(3).surprises(tokens))
    assert [len(piece) for piece in pieces] == [TOKENS_PER_PIECE, TOKENS_PER_PIECE, 3]
    assert {piece.dtype for piece in pieces} == {torch.float64}


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_without_a_token_to_predict_is_refused(length: int) -> None:
    said(ArgumentError, lambda: perplexity_of(Uniform(7), text(length)), "too short", f"{length} token", "2 or more")


@pytest.mark.parametrize("tokens", [torch.zeros(3), torch.zeros(3, dtype=torch.bool), torch.zeros(3, 2).long(), [1, 2]])
def test_what_is_no_row_of_integers_is_refused(tokens: Tensor) -> None:
    said(ArgumentError, lambda: perplexity_of(Uniform(7), tokens), "no tokens", "(length,)")


@pytest.mark.parametrize("stranger", [-1, 5])
def test_a_token_outside_the_vocabulary_is_refused(stranger: int) -> None:
    tokens = torch.tensor([0, stranger, 1])
    said(ArgumentError, lambda: Uniform(5).surprises(tokens), "not in the vocabulary", str(stranger), "0 to 4")


@pytest.mark.parametrize("size", [0, -3, 2.0, True])
def test_a_vocabulary_without_tokens_is_refused(size: int) -> None:
    said(ArgumentError, lambda: Uniform(size), repr(size), "1 or more")


def test_a_model_that_skips_tokens_is_refused() -> None:
    said(LeporelloError, lambda: perplexity_of(Chances(1, 1), text(5)), "Chances", "2 numbers for 5 tokens", "4")


def test_the_public_function_has_its_best_worst_and_uniform_case() -> None:
    assert lp.language.perplexity([1.0, 1.0, 1.0]) == 1
    assert lp.language.perplexity([1.0, 0.0, 1.0]) == math.inf
    assert lp.language.perplexity(torch.full((3, 5), 1 / 28, dtype=torch.float64)) == pytest.approx(28, rel=1e-14)


def test_the_public_function_is_the_geometric_mean_and_not_the_harmonic_one() -> None:
    chances = [0.5, 0.25, 0.01]
    inverses = [1 / p for p in chances]
    found = lp.language.perplexity(chances)
    assert found == pytest.approx(math.prod(inverses) ** (1 / 3), rel=1e-14)
    harmonic, arithmetic = 3 / sum(chances), sum(inverses) / 3
    assert harmonic < found < arithmetic


def test_the_public_function_takes_logarithms_and_gives_what_a_scored_model_gets() -> None:
    chances = torch.tensor([0.5, 0.25, 0.01], dtype=torch.float64)
    found = lp.language.perplexity(chances.log(), logarithms=True)
    assert found == pytest.approx(lp.language.perplexity(chances), rel=1e-14)
    assert found == pytest.approx(perplexity_of(Chances(*chances.tolist()), text(4)).perplexity, rel=1e-14)
    assert lp.language.perplexity([-1000.0, -800.0], logarithms=True) == math.inf


@pytest.mark.parametrize(
    ("values", "logarithms", "expected"),
    [
        ([], False, "one or more"),
        ([0.5, 1.5], False, "numbers from 0 to 1"),
        ([-0.5], False, "logarithms=True"),
        ([math.nan], False, "numbers from 0 to 1"),
        ([0.5], True, "0 at most"),
    ],
)
def test_what_are_no_probabilities_is_refused(values: list[float], logarithms: bool, expected: str) -> None:
    said(ArgumentError, lambda: lp.language.perplexity(values, logarithms=logarithms), expected)
