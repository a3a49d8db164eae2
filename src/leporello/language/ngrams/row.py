"""`Row`: one model beside others, as a table shows it. Knows numbers; knows nothing of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leporello.language.perplexity import Scores


@dataclass(frozen=True)
class Row:
    """One model on one text. None is what a model does not have, or nobody knows.

    name                 as people call it
    perplexity           on the validation text
    bits_per_character   on the same
    order                of an n-gram model
    stored               counts that an n-gram model keeps
    parameters           of a network
    seconds              to learn the training text and to score the other
    """

    name: str
    perplexity: float
    bits_per_character: float | None = None
    order: int | None = None
    stored: int | None = None
    parameters: int | None = None
    seconds: float | None = None

    @staticmethod
    def of(
        name: str,
        scores: Scores,
        characters: int | None = None,
        *,
        order: int | None = None,
        stored: int | None = None,
        parameters: int | None = None,
        seconds: float | None = None,
    ) -> Row:
        """From scores; characters counts those of the predicted tokens' text, None where nobody counted."""
        bits = None if characters is None else scores.bits(characters)
        return Row(name, scores.perplexity, bits, order, stored, parameters, seconds)


def best_order(rows: Sequence[Row]) -> Row | None:
    """The n-gram model with the lowest perplexity, the lowest order of equal ones; None where there is none."""
    grams = [row for row in rows if row.order is not None and not math.isnan(row.perplexity)]
    return min(grams, key=lambda row: (row.perplexity, row.order), default=None)
