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
from leporello.language.ngrams.counting import Grams, counted
from leporello.language.ngrams.level import Level
from leporello.language.perplexity import PIECE, refuse_size, refuse_tokens


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
