"""What steps do with the context of a call: rows as in `tests/random_operators.py`.

Three more letters: `c` a memory of free length per row, `b` its mask, `t` a table of free length that all rows share.
What an operator makes of a memory is one again where its row says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_operators import Operator, Shape

FEATURES = 3  # of an element of a memory or a table
CONTEXT = {"memory": "c", "there": "b", "table": "t", "gain": "v"}  # the letter of each leaf; "gain": a vector per row


def _read(takes: str, function: Callable[..., Tensor], bound: Callable[..., float], **options: Any) -> Operator:
    return Operator(takes, lambda v, p, k: function(*v, *p), bound, **options)


def _query(shapes: Any, k: int) -> list[Shape]:
    """A matrix from the last value, a vector, to the features of a memory."""
    return [(FEATURES, shapes[-1][0])]


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    return (weights.unsqueeze(1) @ values).squeeze(1)


def _scores(memory: Tensor, v: Tensor, matrix: Tensor) -> Tensor:
    return (memory @ (v @ matrix.T).unsqueeze(2)).squeeze(2)


def _attended(memory: Tensor, there: Tensor, v: Tensor, matrix: Tensor) -> Tensor:
    return _weighted(torch.softmax(_scores(memory, v, matrix).masked_fill(~there, -1e9), 1), memory)


def _additive(memory: Tensor, there: Tensor, v: Tensor, matrix: Tensor, keys: Tensor, out: Tensor) -> Tensor:
    scores = F.linear(torch.tanh((v @ matrix.T).unsqueeze(1) + memory @ keys.T), out.unsqueeze(0)).squeeze(2)
    return _weighted(torch.softmax(scores.masked_fill(~there, -torch.inf), 1), memory)


def _heads(memory: Tensor, there: Tensor, v: Tensor, keys: Tensor, values: Tensor, query: Tensor) -> Tensor:
    pairs = [F.linear(memory, weight).unflatten(2, (2, 2)).transpose(1, 2) for weight in (keys, values)]
    queries = (v @ query.T).unflatten(1, (2, 2))
    scores = torch.einsum("bnd,bnsd->bns", queries, pairs[0]).masked_fill(~there.unsqueeze(1), -1e9)
    return torch.einsum("bns,bnsd->bnd", torch.softmax(scores, 2), pairs[1]).flatten(1)


def _closest(memory: Tensor, v: Tensor, matrix: Tensor) -> Tensor:
    places = _scores(memory, v, matrix).argmax(1).view(-1, 1, 1).expand(-1, 1, memory.shape[2])
    return memory.gather(1, places).squeeze(1)


def _three(b: float, *_: float) -> float:
    return 3 * b


CONTEXTS = {
    "attended": _read("cbv", _attended, _three, weights=_query),
    "additive attention": _read(
        "cbv", _additive, _three, weights=lambda s, k: [*_query(s, k), (FEATURES, FEATURES), (FEATURES,)]
    ),
    "two heads": _read(
        "cbv", _heads, lambda b, *_: 3 * b, weights=lambda s, k: [(4, FEATURES), (4, FEATURES), (4, s[2][0])]
    ),
    "closest": _read("cv", _closest, lambda b, _: b, weights=_query, smooth=False),
    "sigmoids": _read(
        "cv",
        lambda m, v, w: _weighted(torch.sigmoid(_scores(m, v, w)) / m.shape[1], m),
        lambda b, _: b,
        weights=_query,
    ),
    "running": _read(
        "cv",
        lambda m, v, w: _weighted(torch.softmax(_scores(m, v, w), 1).cumsum(1) / m.shape[1], m),
        _three,
        weights=_query,
    ),
    "mean of a memory": _read("c", lambda m: m.mean(1), lambda b: b),
    "sum where it is": _read("cb", lambda m, there: torch.tanh((m * there.unsqueeze(2)).sum(1)), lambda b, _: 1.0),
    "largest of a memory": _read("c", lambda m: m.amax(1), lambda b: b, smooth=False),
    "neighbours": _read("c", lambda m: (m[:, 1:] * m[:, :-1]).mean(1), lambda b: b * b),
    "ends of a memory": _read("c", lambda m: m[:, 0] - m[:, -1], lambda b: 2 * b),
    "backwards": _read(
        "cv", lambda m, v, w: _weighted(torch.softmax(_scores(m.flip(1), v, w), 1), m), _three, weights=_query
    ),
    # a memory again
    "keys": _read(
        "c", F.linear, lambda b: b + 0.3, weights=lambda s, k: [(FEATURES, FEATURES), (FEATURES,)], gives="c"
    ),
    "tanh of a memory": _read("c", torch.tanh, lambda b: 1.0, gives="c"),
    "moved memory": _read(
        "cv", lambda m, v: m + v.unsqueeze(1), lambda a, b: a + b, fits=lambda m, v: v == m[1:], gives="c"
    ),
    "scaled memory": _read(
        "cv", lambda m, v: m * v.unsqueeze(1), lambda a, b: a * b, fits=lambda m, v: v == m[1:], gives="c"
    ),
    # a table that all rows share
    "table attended": _read("tv", lambda t, v, w: torch.softmax(v @ w.T @ t.T, 1) @ t, _three, weights=_query),
    "mean of a table": _read("tv", lambda t, v: v * t.mean(0), lambda a, b: a * b, fits=lambda t, v: v == t[1:]),
    "distances to a table": _read(
        "tv",
        lambda t, v: (v.unsqueeze(1) - t).square().sum(2).logsumexp(1, keepdim=True),
        lambda a, b: 12 * (a + b) ** 2 + 3,
        fits=lambda t, v: v == t[1:],
    ),
    "a memory by a table": _read("ct", lambda m, t: torch.softmax(m @ t.T, 2).mean(1) @ t, lambda a, b: b),
}
