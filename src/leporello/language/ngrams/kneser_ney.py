"""`KneserNey`: an n-gram model with interpolated modified Kneser-Ney smoothing.

R. Kneser and H. Ney, "Improved backing-off for m-gram language modeling", 1995, in the form of Chen and Goodman, 1998.
Of one order,

    p(w | context) = max(c(context w) - D, 0) / c(context) + backoff(context) p(w | context without its first token)

where D depends on the count (`discounts_of`) and backoff(context) is the sum of all D of the context / c(context).
Known shortcomings: it is fitted to one text at once; it is kept in memory and not in a file; it counts on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.language.model.perplexity import TOKENS_PER_PIECE, refuse_size, refuse_tokens


@dataclass(frozen=True, eq=False, repr=False)
class KneserNey:
    """The probability of the next token given the last `order - 1`, from the n-grams of a text.

    The highest order counts how often an n-gram occurs. Each lower one counts how many different tokens stand before
    it. Below order 1 all tokens are equally likely, so that none is impossible. Where fewer tokens stand before, as at
    the beginning of a text, only the lower orders are used.

    size        of the vocabulary
    plain       orders 1, 2, ..., from how often n-grams occur
    continued   the same without the last, from how many different tokens stand before n-grams

    >>> model = KneserNey.fit(torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), size=4, order=3)
    >>> model.probabilities(torch.tensor([2, 0])).argmax().item()
    1
    """

    size: int
    plain: tuple[NgramOrder, ...]
    continued: tuple[NgramOrder, ...]

    @staticmethod
    def fit(tokens: Tensor, size: int, order: int, progress: Callable[[int], None] | None = None) -> KneserNey:
        """Count the n-grams of a text.

        tokens     (length,) integers from 0 to size - 1, `order` of them or more
        size       of the vocabulary, including tokens that the text does not have
        order      the longest n-gram
        progress   called with 1, 2, ... when that order is counted
        """
        refuse_size(size)
        refuse_order(order)
        refuse_tokens(tokens, 0, size)
        _refuse_short(tokens, order)
        tokens = tokens.to("cpu", torch.int64)
        plain: list[NgramOrder] = []
        continued: list[NgramOrder] = []
        contexts, below = 1, None  # the number of n-grams of the order below, and those; order 0 has one
        for n, grams in enumerate(count_ngrams(tokens, size, order), start=1):
            if below is not None:
                continued.append(_continued(below, grams, plain[-1], size))
            plain.append(NgramOrder.of(grams.keys, grams.counts, size, contexts))
            contexts, below = len(grams.keys), grams
            if progress is not None:
                progress(n)
        return KneserNey(size, tuple(plain), tuple(continued))

    def __repr__(self) -> str:
        return f"KneserNey(order={self.order}, size={self.size}, stored={self.stored:,})"

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.plain)

    @property
    def stored(self) -> int:
        """The number of stored counts: distinct n-grams of all orders."""
        return sum(len(level.keys) for level in self.plain)

    @property
    def levels(self) -> tuple[NgramOrder, ...]:
        """Orders 1, 2, ... as this model mixes them."""
        return (*self.continued, self.plain[-1])

    def orders(self) -> list[KneserNey]:
        """The models of orders 1, 2, ... up to this one. They share counts and equal models that are fitted alone."""
        return [KneserNey(self.size, self.plain[:n], self.continued[: n - 1]) for n in range(1, self.order + 1)]

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        """-ln p of each token but the first, piece by piece, in float64.

        tokens   (length,) integers from 0 to size - 1, 2 or more
        """
        refuse_tokens(tokens, 2, self.size)
        return self._surprises(tokens)

    def _surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        for begin in range(1, len(tokens), TOKENS_PER_PIECE):
            before = max(0, begin - self.order + 1)  # the context of the first token of the piece
            piece = tokens[before : begin + TOKENS_PER_PIECE].to("cpu", torch.int64)
            yield -self._sequence_probabilities(piece)[begin - before :].log()

    def probabilities(self, context: Tensor) -> Tensor:
        """(size,) float64, the probability of each token to come next; their sum is 1.

        context   (length,) integers, of which the last `order - 1` are used; may be empty
        """
        refuse_tokens(context, 0, self.size)
        context = context[max(0, len(context) - self.order + 1) :].to("cpu", torch.int64)
        tokens = torch.arange(self.size)
        probabilities = torch.full((self.size,), 1 / self.size, dtype=torch.float64)
        for level, index in zip(self.levels, self._context_indices(context), strict=True):
            contexts = torch.full_like(tokens, index)
            probabilities = level.interpolate(level.find(contexts, tokens), contexts, probabilities)
        return probabilities

    def _sequence_probabilities(self, tokens: Tensor) -> Tensor:
        """(length,) the probability of each token given those before it."""
        probabilities = torch.full((len(tokens),), 1 / self.size, dtype=torch.float64)
        contexts = torch.zeros_like(tokens)  # the index of the (n - 1)-gram before each token
        for level in self.levels:
            grams = level.find(contexts, tokens)
            probabilities = level.interpolate(grams, contexts, probabilities)
            contexts = torch.cat([grams.new_full((1,), -1), grams[:-1]])
        return probabilities

    def _context_indices(self, context: Tensor) -> list[int]:
        """The indices of the n-grams of the last 0, 1, ... order - 1 tokens of a context.

        -1 for one that does not occur, or is longer than the context.
        """
        indices, grams = [0], torch.zeros(len(context) + 1, dtype=torch.int64)  # of the n-gram that ends at each token
        for level in self.levels[:-1]:
            grams = level.find(grams[:-1], context[len(context) - len(grams) + 1 :])
            indices.append(int(grams[-1]) if len(grams) else -1)
        return indices


def _continued(below: DistinctNgrams, grams: DistinctNgrams, plain: NgramOrder, size: int) -> NgramOrder:
    """The order below, from how many different tokens stand before each of its n-grams.

    grams   of this order: the number of them that end in an n-gram of the order below is that count
    plain   the order below, from how often n-grams occur
    """
    counts = torch.bincount(grams.endings, minlength=len(below.keys))
    return NgramOrder.of(below.keys, counts, size, len(plain.backoff) - 1)


def refuse_order(order: int) -> None:
    """Refuse an order that is not a positive integer."""
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise ArgumentError("an order is a number of tokens.", came=repr(order), expected="an integer, 1 or more")


def _refuse_short(tokens: Tensor, order: int) -> None:
    """Refuse a text without any n-gram of this order."""
    if len(tokens) < order:
        raise ArgumentError(
            f"the text is shorter than one n-gram of order {order}.",
            came=f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}",
            expected=f"{order} or more",
            tries="a lower order, or a longer text",
        )


@dataclass(frozen=True, eq=False)
class NgramOrder:
    """The probabilities of one order. Contexts and n-grams are indices into sorted keys; -1 does not occur.

    size      of the vocabulary
    keys      (grams,) sorted, as in `DistinctNgrams`
    shares    (grams + 1,) the first summand of p for each n-gram; the last is 0, which index -1 reads
    backoff   (contexts + 1,) the weight of the order below; the last is 1, which index -1 reads
    """

    size: int
    keys: Tensor
    shares: Tensor
    backoff: Tensor

    @staticmethod
    def of(keys: Tensor, counts: Tensor, size: int, contexts: int) -> NgramOrder:
        """The order with these counts of n-grams, of which some may be 0.

        keys       of the n-grams, sorted
        contexts   the number of n-grams of the order below
        """
        discounts = discounts_of(counts)[counts.clamp_max(3)]
        context = keys // size
        totals = torch.bincount(context, counts.double(), contexts)
        backoff = torch.bincount(context, discounts, contexts) / totals
        backoff[totals == 0] = 1  # a context that nothing follows
        shares = (counts - discounts) / totals[context].clamp_min(1)
        return NgramOrder(
            size, keys, torch.cat([shares, shares.new_zeros(1)]), torch.cat([backoff, backoff.new_ones(1)])
        )

    def find(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """The indices of the n-grams (context, token), elementwise; -1 for those that do not occur."""
        keys = contexts * self.size + tokens  # negative, and so never found, for an unknown context
        indices = torch.searchsorted(self.keys, keys).clamp_max_(len(self.keys) - 1)
        return torch.where(self.keys[indices] == keys, indices, -1)

    def interpolate(self, grams: Tensor, contexts: Tensor, below: Tensor) -> Tensor:
        """The probabilities of the last tokens of n-grams given their contexts, elementwise.

        grams, contexts   indices, -1 for what does not occur
        below             the probabilities of the order below
        """
        return self.shares[grams] + self.backoff[contexts] * below


@dataclass(frozen=True, eq=False)
class DistinctNgrams:
    """The distinct n-grams of one order.

    The key of an n-gram is (index of its first n - 1 tokens) * size + (its last token), so that one sort of integers
    finds the distinct ones whatever n is.

    keys      (grams,) sorted; the index of a key is the index of its n-gram
    counts    (grams,) how often each occurs
    endings   (grams,) the index, in the order below, of each without its first token
    """

    keys: Tensor
    counts: Tensor
    endings: Tensor


def count_ngrams(tokens: Tensor, size: int, order: int) -> Iterator[DistinctNgrams]:
    """The n-grams of order 1, 2, ... of a text.

    tokens   (length,) int64, each in 0 .. size - 1
    """
    below = tokens.new_zeros(len(tokens) + 1)  # the index of the n-gram that begins at each token; order 0 has one
    for n in range(1, order + 1):
        keys, indices, counts = torch.unique(
            below[: len(tokens) - n + 1] * size + tokens[n - 1 :], return_inverse=True, return_counts=True
        )
        endings = torch.empty_like(keys)
        endings[indices] = below[1:]  # equal n-grams write the same index
        yield DistinctNgrams(keys, counts, endings)
        below = indices


def discounts_of(counts: Tensor) -> Tensor:
    """(4,) float64: the discounts of n-grams that occur 0, 1, 2, and 3 or more times.

    S. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling", 1998: with n_r the
    number of n-grams that occur r times and Y = n_1 / (n_1 + 2 n_2), D_r = r - (r + 1) Y n_(r+1) / n_r. Where one of
    n_1 .. n_(r+1) is 0, or the estimate is not positive, D_r is r / 2. Small texts and small vocabularies need that:
    hardly a letter occurs just once.

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
