"""Counting: all n-grams of a text, order by order, numbered and counted by sorting.

An n-gram's key is (number of its first n - 1 tokens) * size + (its last token), so that one sort of integers finds the
distinct ones whatever n is, and their places in sorted order are the numbers that the next order builds on. Knows
integers; knows nothing of probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Grams:
    """The distinct n-grams of one order.

    keys      (grams,) sorted; the place of a key in it is the n-gram's number
    counts    (grams,) how often each occurs
    endings   (grams,) the number, in the order below, of each without its first token
    """

    keys: Tensor
    counts: Tensor
    endings: Tensor


def counted(tokens: Tensor, size: int, order: int) -> Iterator[Grams]:
    """The n-grams of order 1, 2, ... of a text.

    tokens   (length,) int64, each in 0 .. size - 1
    """
    below = tokens.new_zeros(len(tokens) + 1)  # the number of the n-gram that begins at each place; order 0 has one
    for n in range(1, order + 1):
        keys, numbers, counts = torch.unique(
            below[: len(tokens) - n + 1] * size + tokens[n - 1 :], return_inverse=True, return_counts=True
        )
        endings = torch.empty_like(keys)
        endings[numbers] = below[1:]  # equal n-grams write the same number
        yield Grams(keys, counts, endings)
        below = numbers
