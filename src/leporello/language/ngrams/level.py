"""`Level`: what the n-grams of one order say about the next token, to be mixed with what the order below says.

p(w | context) = max(c(context w) - D, 0) / c(context) + handed(context) p(w | context without its first token), where
D depends on the count and handed(context) is the sum of all D of the context, divided by c(context). Knows one order;
`KneserNey` knows which counts each order uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.language.ngrams.discounts import discounts_of


@dataclass(frozen=True, eq=False)
class Level:
    """One order. Contexts and n-grams go by their numbers in `counting`; -1 is one that does not occur.

    size     of the vocabulary
    keys     (grams,) sorted
    shares   (grams + 1,) the first summand for each n-gram; the last is 0: [-1] is that of an unknown one
    handed   (contexts + 1,) the weight of the order below; the last is 1: an unknown context leaves all to it
    """

    size: int
    keys: Tensor
    shares: Tensor
    handed: Tensor

    @staticmethod
    def of(keys: Tensor, counts: Tensor, size: int, contexts: int) -> Level:
        """From the counts of n-grams, of which some may be 0; contexts is the number of n-grams of the order below."""
        taken = discounts_of(counts)[counts.clamp_max(3)]
        context = keys // size
        totals = torch.bincount(context, counts.double(), contexts)
        handed = torch.bincount(context, taken, contexts) / totals
        handed[totals == 0] = 1  # a context that nothing follows
        shares = (counts - taken) / totals[context].clamp_min(1)
        return Level(size, keys, torch.cat([shares, shares.new_zeros(1)]), torch.cat([handed, handed.new_ones(1)]))

    def find(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """The numbers of the n-grams (context, token), row by row; -1 for those that do not occur."""
        keys = contexts * self.size + tokens  # below 0 for an unknown context, as no key is
        places = torch.searchsorted(self.keys, keys).clamp_max_(len(self.keys) - 1)
        return torch.where(self.keys[places] == keys, places, -1)

    def mixed(self, grams: Tensor, contexts: Tensor, below: Tensor) -> Tensor:
        """The probabilities of n-grams given their contexts; below are those of the order below."""
        return self.shares[grams] + self.handed[contexts] * below
