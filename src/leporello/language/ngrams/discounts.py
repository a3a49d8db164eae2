"""Discounts: how much to take off each count, for the n-grams that the text happens not to have.

S. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling", 1998: with n_r the number of
n-grams that occur r times and Y = n_1 / (n_1 + 2 n_2), D_r = r - (r + 1) Y n_(r+1) / n_r for r = 1, 2, and 3 for all
that occur 3 times or more. Knows counts; knows nothing of contexts.
"""

from __future__ import annotations

import torch
from torch import Tensor


def discounts_of(counts: Tensor) -> Tensor:
    """(4,) float64: what is taken off n-grams that occur 0, 1, 2, and 3 or more times.

    Where one of n_1 .. n_(r+1) is 0, or the estimate leaves nothing for n-grams that do not occur, D_r is r / 2. Small
    texts and small vocabularies need that: hardly a letter occurs just once.

    >>> discounts_of(torch.tensor([1, 1, 1, 1, 2, 2, 3, 7])).tolist()
    [0.0, 0.5, 1.25, 1.5]
    >>> discounts_of(torch.tensor([12, 30, 5])).tolist()
    [0.0, 0.5, 1.0, 1.5]
    """
    n = torch.bincount(counts.clamp_max(5), minlength=6).tolist()
    discounts = [0.0]
    for r in (1, 2, 3):
        estimate = r - (r + 1) * n[1] / (n[1] + 2 * n[2]) * n[r + 1] / n[r] if all(n[1 : r + 2]) else 0.0
        discounts.append(estimate if estimate > 0 else r / 2)
    return torch.tensor(discounts, dtype=torch.float64)
