"""`KneserNey`: an n-gram model with interpolated modified Kneser-Ney smoothing.

R. Kneser and H. Ney, "Improved backing-off for m-gram language modeling", 1995, in the form of Chen and Goodman, 1998.
Known shortcomings: it learns one text, whole and at once; it is kept in memory and not in a file; it counts on the CPU.
Knows tokens as numbers; knows nothing of letters and words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.language.model.perplexity import PIECE, refuse_size, refuse_tokens


@dataclass(frozen=True, eq=False, repr=False)
class KneserNey:
    """What the next token is, given the last `order - 1`, by the n-grams of a text.

    The highest order goes by how often an n-gram occurs, each lower one by how many different tokens stand before it;
    below order 1 all tokens are equally likely, so that none is impossible. Where fewer tokens stand before, as at the
    beginning of a text, the lower orders alone decide.

    size        of the vocabulary
    plain       orders 1, 2, ... by how often n-grams occur
    continued   the same, less the last, by how many different tokens stand before them

    >>> model = KneserNey.fit(torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), size=4, order=3)
    >>> model.probabilities(torch.tensor([2, 0])).argmax().item()
    1
    """

    size: int
    plain: tuple[Level, ...]
    continued: tuple[Level, ...]

    @staticmethod
    def fit(tokens: Tensor, size: int, order: int, progress: Callable[[int], None] | None = None) -> KneserNey:
        """Count the n-grams of a text.

        tokens     (length,) integers from 0 to size - 1, `order` of them or more
        size       of the vocabulary, tokens that the text does not have included
        order      the longest n-gram
        progress   called with each order that is counted: 1, 2, ...
        """
        refuse_size(size)
        refuse_order(order)
        refuse_tokens(tokens, 0, size)
        _refuse_short(tokens, order)
        tokens = tokens.to("cpu", torch.int64)
        plain: list[Level] = []
        continued: list[Level] = []
        contexts, below = 1, None  # the number of n-grams of the order below, and they; order 0 has one
        for n, grams in enumerate(counted(tokens, size, order), start=1):
            if below is not None:
                continued.append(_continued(below, grams, plain[-1], size))
            plain.append(Level.of(grams.keys, grams.counts, size, contexts))
            contexts, below = len(grams.keys), grams
            if progress is not None:
                progress(n)
        return KneserNey(size, tuple(plain), tuple(continued))

    def __repr__(self) -> str:
        return f"KneserNey(order={self.order}, size={self.size}, stored={self.stored:,})"

    @property
    def order(self) -> int:
        return len(self.plain)

    @property
    def stored(self) -> int:
        """The number of counts: of distinct n-grams, over all orders."""
        return sum(len(level.keys) for level in self.plain)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Orders 1, 2, ... as this model mixes them."""
        return (*self.continued, self.plain[-1])

    def orders(self) -> list[KneserNey]:
        """The models of orders 1, 2, ... up to this one, equal to those fitted one by one; they share their counts."""
        return [KneserNey(self.size, self.plain[:n], self.continued[: n - 1]) for n in range(1, self.order + 1)]

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        """-ln p of each token but the first, piece by piece, in float64.

        tokens   (length,) integers from 0 to size - 1, 2 or more
        """
        refuse_tokens(tokens, 2, self.size)
        return self._surprises(tokens)

    def _surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        for begin in range(1, len(tokens), PIECE):
            before = max(0, begin - self.order + 1)  # the context of the first token of the piece
            piece = tokens[before : begin + PIECE].to("cpu", torch.int64)
            yield -self._chances(piece)[begin - before :].log()

    def probabilities(self, context: Tensor) -> Tensor:
        """(size,) of every token to come next, in float64; their sum is 1.

        context   (length,) integers, the last `order - 1` of which matter; may be empty
        """
        refuse_tokens(context, 0, self.size)
        context = context[max(0, len(context) - self.order + 1) :].to("cpu", torch.int64)
        tokens = torch.arange(self.size)
        found = torch.full((self.size,), 1 / self.size, dtype=torch.float64)
        for level, number in zip(self.levels, self._numbers(context), strict=True):
            contexts = torch.full_like(tokens, number)
            found = level.mixed(level.find(contexts, tokens), contexts, found)
        return found

    def _chances(self, tokens: Tensor) -> Tensor:
        """(length,) the probability of each token after those before it: of the first, after none."""
        found = torch.full((len(tokens),), 1 / self.size, dtype=torch.float64)
        contexts = torch.zeros_like(tokens)  # the number of the n - 1 tokens before each
        for level in self.levels:
            grams = level.find(contexts, tokens)
            found = level.mixed(grams, contexts, found)
            contexts = torch.cat([grams.new_full((1,), -1), grams[:-1]])
        return found

    def _numbers(self, context: Tensor) -> list[int]:
        """Those of the last 0, 1, ... order - 1 tokens of a context; -1 for what does not occur."""
        numbers, grams = [0], torch.zeros(len(context) + 1, dtype=torch.int64)  # the number of what ends at each place
        for level in self.levels[:-1]:
            grams = level.find(grams[:-1], context[len(context) - len(grams) + 1 :])
            numbers.append(int(grams[-1]) if len(grams) else -1)
        return numbers


def _continued(below: Grams, grams: Grams, plain: Level, size: int) -> Level:
    """The order below, by how many different tokens stand before its n-grams: how many n-grams end in each."""
    counts = torch.bincount(grams.endings, minlength=len(below.keys))
    return Level.of(below.keys, counts, size, len(plain.handed) - 1)


def refuse_order(order: int) -> None:
    """Refuse what is no length of an n-gram."""
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise ArgumentError("an order is a number of tokens.", came=repr(order), expected="an integer, 1 or more")


def _refuse_short(tokens: Tensor, order: int) -> None:
    if len(tokens) < order:
        raise ArgumentError(
            f"the text is shorter than one n-gram of order {order}.",
            came=f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}",
            expected=f"{order} or more",
            tries="a lower order, or a longer text",
        )


# ---- (language.ngrams.level) `Level`: what the n-grams of one order say about the next token, to be mixed with what the order below says.
#
# p(w | context) = max(c(context w) - D, 0) / c(context) + handed(context) p(w | context without its first token), where
# D depends on the count and handed(context) is the sum of all D of the context, divided by c(context). Knows one order;
# `KneserNey` knows which counts each order uses.


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


# ---- (language.ngrams.counting) Counting: all n-grams of a text, order by order, numbered and counted by sorting.
#
# An n-gram's key is (number of its first n - 1 tokens) * size + (its last token), so that one sort of integers finds the
# distinct ones whatever n is, and their places in sorted order are the numbers that the next order builds on. Knows
# integers; knows nothing of probabilities.


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


# ---- (language.ngrams.discounts) Discounts: how much to take off each count, for the n-grams that the text happens not to have.
#
# S. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling", 1998: with n_r the number of
# n-grams that occur r times and Y = n_1 / (n_1 + 2 n_2), D_r = r - (r + 1) Y n_(r+1) / n_r for r = 1, 2, and 3 for all
# that occur 3 times or more. Knows counts; knows nothing of contexts.


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
