"""Perplexity: how surprised a model is by a text. n-grams and networks are measured by the same code.

A model is anything with a method `surprises`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leporello.errors import ArgumentError, LeporelloError

TOKENS_PER_PIECE = 2**16  # scored at once
MAX_FINITE_LOSS = math.log(math.nextafter(math.inf, 0))  # exp of a larger one overflows


class ScoredModel(Protocol):
    """A model that can be scored: for n tokens it gives n - 1 surprises, piece by piece.

    The surprises are -ln p(token[i] | token[0 .. i-1]) for i = 1 .. n-1: the first token is read, not predicted.
    """

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Scores:
    """How well a model predicted a text.

    tokens   the number of predicted tokens: one less than the text has
    nats     the sum of the surprises, -ln p

    >>> scores = Scores(tokens=4, nats=4 * math.log(8))
    >>> round(scores.perplexity, 9), round(scores.bits(6), 9)
    (8.0, 2.0)
    """

    tokens: int
    nats: float

    @property
    def loss(self) -> float:
        """The mean surprise, in nats a token: the cross-entropy."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss), inf where that overflows: 1 for certainty, the size of the vocabulary for a uniform model."""
        return perplexity_of_loss(self.loss)

    def bits(self, count: int) -> float:
        """The sum of the surprises in bits, divided by a count: bits per character, byte or token.

        count   of characters, bytes or tokens in the text of the predicted tokens
        """
        if count < 1:
            raise ArgumentError("bits are shared among characters or bytes.", came=count, expected="1 or more of them")
        return self.nats / math.log(2) / count


class Uniform:
    """The model under which all tokens are equally likely.

    >>> round(perplexity_of(Uniform(5), torch.tensor([0, 4, 2])).perplexity, 9)
    5.0
    """

    def __init__(self, size: int) -> None:
        refuse_size(size)
        self.size = size

    def __repr__(self) -> str:
        return f"Uniform({self.size})"

    def surprises(self, tokens: Tensor) -> Iterator[Tensor]:
        """ln(size) for each token but the first."""
        refuse_tokens(tokens, 2, self.size)
        predicted = len(tokens) - 1
        pieces = (min(TOKENS_PER_PIECE, predicted - begin) for begin in range(0, predicted, TOKENS_PER_PIECE))
        return (torch.full((count,), math.log(self.size), dtype=torch.float64) for count in pieces)


def perplexity(probabilities: Tensor | Sequence[float], *, logarithms: bool = False) -> float:
    """The geometric mean of 1/p over the tokens of a text: exp(-(ln p(1) + ... + ln p(n)) / n), in float64.

    It is 1 at best, where every p is 1; infinite at worst, where a p is 0; the size of the vocabulary for a uniform
    model, where every p is 1/size.

    probabilities   what a model gave to the tokens that came, one number for each, of any shape
    logarithms      they are ln p, as log_softmax gives them

    >>> round(perplexity([0.5, 0.125]), 9), perplexity([1.0, 1.0]), perplexity([1.0, 0.0])
    (4.0, 1.0, inf)
    >>> round(perplexity(torch.full((7,), 1 / 28)), 5)
    28.0
    """
    values = torch.as_tensor(probabilities, dtype=torch.float64)
    if not values.numel():
        raise ArgumentError("there is no token to be surprised by.", came="no probabilities", expected="one or more")
    lowest, highest = (-math.inf, 0.0) if logarithms else (0.0, 1.0)
    outside = values[~((values >= lowest) & (values <= highest))]  # NaN too
    if outside.numel():
        raise ArgumentError(
            "the argument 'probabilities' is out of range.",
            came=outside[0].item(),
            expected="logarithms, 0 at most" if logarithms else "numbers from 0 to 1",
            tries="log_softmax of the scores" if logarithms else "softmax of the scores; logarithms=True for ln p",
        )
    logs = values if logarithms else values.log()
    return perplexity_of_loss(-logs.mean().item())


def perplexity_of_loss(loss: float) -> float:
    """exp of a mean surprise in nats; infinity if that overflows."""
    return math.inf if loss > MAX_FINITE_LOSS else math.exp(loss)


def perplexity_of(model: ScoredModel, tokens: Tensor, progress: Callable[[int], None] | None = None) -> Scores:
    """Score a model on a text, from its first token to its last.

    model      has `surprises(tokens)`
    tokens     (length,) integers, 2 or more
    progress   called with the number of tokens predicted so far, after each piece
    """
    refuse_tokens(tokens, 2)
    done, sums = 0, []
    for piece in model.surprises(tokens):
        sums.append(piece.double().sum().item())
        done += piece.numel()
        if progress is not None:
            progress(done)
    if done != len(tokens) - 1:
        raise LeporelloError(
            "this model does not give one surprise for each token but the first.",
            model=type(model).__name__,
            came=f"{done:,} numbers for {len(tokens):,} tokens",
            expected=f"{len(tokens) - 1:,}",
        )
    return Scores(done, sum(sums))


def refuse_tokens(tokens: Tensor, least: int, size: int | None = None) -> None:
    """Refuse a tensor that is not a text in tokens.

    least   the smallest number of tokens: 2 if they are predicted
    size    of the vocabulary: each token is one of 0 .. size - 1; None: any integers
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != 1 or not _is_integer(tokens.dtype):
        shown = f"{tokens.dtype}, {list(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ArgumentError("these are no tokens.", came=shown, expected="a tensor of integers, (length,)")
    if len(tokens) < least:
        raise ArgumentError(
            "the text is too short: its first token is read, the others are predicted.",
            came=f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}",
            expected=f"{least} or more",
        )
    if size is None or not len(tokens):
        return
    lowest, highest = (one.item() for one in tokens.aminmax())
    if lowest < 0 or highest >= size:
        raise ArgumentError(
            "a token is not in the vocabulary.",
            came=lowest if lowest < 0 else highest,
            expected=f"0 to {size - 1}, for a vocabulary of {size}",
            tries="the vocabulary of the training text, where unknown tokens have a number too",
        )


def refuse_size(size: int) -> None:
    """Refuse a size of a vocabulary that is not a positive integer."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError("a vocabulary has a number of tokens.", came=repr(size), expected="an integer, 1 or more")


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
