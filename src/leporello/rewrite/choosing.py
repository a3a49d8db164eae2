"""How a token is chosen from logits and noise, as plain functions of rows: the rewrite `sample` grafts them.

Nothing is sorted: the limits of top-k and top-p are found by cutting an interval into parts again and again, a fixed
number of pointwise operators and sums. Knows logits; knows nothing of loops.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DEEPEST = 64.0  # a token whose score lies so far below the best is never drawn: noise differs by less than 41
PARTS = 8  # into which an interval is cut at a time
TIMES = {torch.float32: 11, torch.float64: 17}  # 64 / 8^11 = 2^-27: finer than float32 between 1 and 2


def choose(
    logits: Tensor,
    noise: Tensor | None = None,
    temperature: Tensor | None = None,
    k: Tensor | None = None,
    p: Tensor | None = None,
) -> Tensor:
    """The token of each row: argmax(logits / temperature - log(-log noise)) among those that k and p leave.

    logits   [rows, size], float32 or float64
    noise    [rows, size], uniform on (0, 1); None for the most probable token
    k        leave the k most probable, and their ties
    p        leave the most probable ones that together have probability p, at the temperature and among those of k
    """
    if noise is None or temperature is None:
        return logits.argmax(-1)
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    if k is not None:
        scores = _left(scores, torch.ones_like(scores), k)
    if p is not None:
        weights = scores.exp()
        scores = _left(scores, weights, p * weights.sum(-1, keepdim=True))
    return (scores - (-noise.log()).log()).argmax(-1)


def _left(scores: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The scores, -inf below the limit."""
    return scores.masked_fill(scores < limit(scores, weights, wanted), -math.inf)


def limit(scores: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The largest number such that the scores above or at it have the weight that is wanted, [rows, 1].

    Scores lie below or at 0. What lies deeper than -64 counts as wanted; scores closer to each other than the last cut
    count as one.
    """
    low = torch.full_like(scores[:, :1], -DEEPEST)
    width, parts = DEEPEST, torch.arange(PARTS, dtype=scores.dtype, device=scores.device) / PARTS
    for _ in range(TIMES[scores.dtype]):
        marks = low + width * parts[1:]  # [rows, 7]; what weighs enough at one weighs enough at those below
        below = scores.unsqueeze(1) < marks.unsqueeze(2)
        heavy = weights.unsqueeze(1).masked_fill(below, 0.0).sum(2) >= wanted
        low = low + width * (heavy.to(scores.dtype).sum(1, keepdim=True) / PARTS)  # the last mark that does
        width /= PARTS
    return low


def surprise(logits: Tensor, token: Tensor) -> Tensor:
    """-ln p(token) of each row, whatever temperature, k and p made of the logits."""
    best = logits.amax(-1, keepdim=True)
    whole = (logits - best).exp().sum(-1).log() + best.squeeze(-1)
    return whole - logits.gather(-1, token.unsqueeze(-1)).squeeze(-1)


def one_hot(token: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Rows that are 1 at the token's place and 0 elsewhere."""
    return (token.unsqueeze(-1) == torch.arange(size, device=token.device)).to(dtype)


def or_none(token: Tensor, logits: Tensor) -> Tensor:
    """The token, -1 for a row with a NaN, or with an infinity that leaves no distribution."""
    best = logits.amax(-1)
    return token.masked_fill((best - best).isnan(), -1)
