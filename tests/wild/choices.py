"""Choices among equal elements, masks and indices per row: rows as in `tests/random_operators.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_operators import Operator

# ---- of equal elements: values of few levels, and values beside their copies without a gradient


def _levels(v: Tensor) -> Tensor:
    return torch.round(2 * v) / 2


def _twice(v: Tensor) -> Tensor:
    """Every element twice: the second has no gradient."""
    return torch.cat([v, v.detach()], -1)


def _index(indices: Tensor) -> Tensor:
    return indices.to(torch.float64) / 12


def _of_equal(function: Callable[[Tensor, int], Tensor], **options: Any) -> Operator:
    return Operator("v", lambda v, p, k: function(v[0], k), lambda b: b + 1, smooth=False, **options)


def _winners(v: Tensor, k: int) -> Tensor:
    chosen = _levels(v).topk(1 + k % v.shape[1], 1).indices
    return v * torch.zeros_like(v).scatter(1, chosen, 1.0)


def _sorted_pair(v: Tensor, k: int) -> Tensor:
    values, indices = _levels(v).sort(1, descending=bool(k % 2))
    return values + _index(indices)


TIES = {
    "levels": _of_equal(lambda v, k: _levels(v)),
    "winners": _of_equal(_winners),
    "largest of equal": _of_equal(lambda v, k: _twice(v).topk(1 + k % v.shape[1], -1).values),
    "smallest of equal": _of_equal(lambda v, k: _twice(v).topk(2, -1, largest=False).values),
    "places of the largest": _of_equal(lambda v, k: _index(_levels(v).topk(1 + k % v.shape[1], 1).indices)),
    "sorted pair": _of_equal(_sorted_pair),
    "sorted copies": _of_equal(lambda v, k: _twice(v).sort(-1, descending=bool(k % 2)).values[:, : v.shape[1]]),
    "taken in order": _of_equal(lambda v, k: v.gather(1, _levels(v).argsort(dim=1, stable=bool(k % 2)))),
    "argmax of levels": Operator("v", lambda v, p, k: _levels(v[0]).argmax(-1), lambda b: 12.0, smooth=False),
    "hard choice": _of_equal(lambda v, k: F.one_hot(_levels(v).argmax(-1), v.shape[1]) * v),
    "max with its index": _of_equal(lambda v, k: (m := _twice(v).max(-1, keepdim=True)).values + _index(m.indices)),
    "min with its index": _of_equal(lambda v, k: (m := _levels(v).min(-1, keepdim=True)).values + _index(m.indices)),
    "amax of equal": _of_equal(lambda v, k: _twice(v).amax(-1, keepdim=True)),
    "maximum of equal": _of_equal(lambda v, k: torch.maximum(v, torch.where(v > 0, v.detach(), 0.5 * v))),
    "max over rows": Operator("m", lambda v, p, k: torch.cat([v[0], v[0].detach()], 1).max(1).values, smooth=False),
    "median": _of_equal(lambda v, k: _twice(v).median(-1, keepdim=True).values, refused=True),
    "kth value": _of_equal(lambda v, k: _twice(v).kthvalue(1 + k % v.shape[1], -1, True).values, refused=True),
}


# ---- masks and indices per row


def _rows_of(v: Tensor) -> Tensor:
    return torch.arange(v.shape[0])


def _masked(v: Tensor) -> Tensor:
    t = v * 1.0
    t[v > 0.3] = 0.1
    return t


def _masked_state(v: Tensor) -> Tensor:
    v = v * 0.5
    mask = v.mean(-1) > 0
    v[mask] = 0.0
    return v


def _one_written(v: Tensor, k: int) -> Tensor:
    t = v * 0.5
    t[_rows_of(v), _levels(v).argmax(1)] = 0.25
    return t


def _one_added(v: Tensor, w: Tensor) -> Tensor:
    t = v.clone()
    t[_rows_of(v), _levels(v).argmax(1)] += w[:, 0]
    return t


def _picked(v: Tensor, k: int) -> Tensor:
    return v[_rows_of(v), _levels(v).argmin(1)].unsqueeze(1)


def _row_of(m: Tensor, v: Tensor) -> Tensor:
    return m[_rows_of(m), v.argmax(1) % m.shape[1]]


def _gathered(m: Tensor, v: Tensor) -> Tensor:
    places = (v.argmax(1) % m.shape[1]).view(-1, 1, 1).expand(-1, 1, m.shape[2])
    return m.gather(1, places).squeeze(1)


def _scattered(m: Tensor, v: Tensor) -> Tensor:
    places = _levels(v).argsort(1) % m.shape[2]
    return torch.zeros_like(m[:, 0]).scatter_add(1, places, v) + m.mean(1)


def _jump(takes: str, function: Callable[..., Tensor], **options: Any) -> Operator:
    return Operator(takes, lambda v, p, k: function(*v), lambda *b: sum(b) + 0.25, smooth=False, **options)


INDICES = {
    "where it is large": Operator("a", lambda v, p, k: _masked(v[0]), lambda b: max(b, 0.1), smooth=False),
    "rows set to zero": Operator("v", lambda v, p, k: _masked_state(v[0]), smooth=False),
    "one place of a row": _of_equal(_one_written),
    "one element of a row": _of_equal(_picked),
    "added to one element": _jump("vv", _one_added),
    "one line of a matrix": _jump("mv", _row_of),
    "gathered line": _jump("mv", _gathered),
    "scattered": _jump("mv", lambda m, v: _scattered(m, v) * 0.3),
    "an element by an integer": Operator(
        "vi", lambda v, p, k: v[0][_rows_of(v[0]), v[1] % v[0].shape[1]].unsqueeze(1), lambda a, b: a, smooth=False
    ),
    "a line of a parameter": Operator(
        "v",
        lambda v, p, k: p[0][_levels(v[0]).argmax(1)],
        lambda b: 1.0,
        lambda s, k: [(s[0][0], 3)],
        smooth=False,
    ),
}
