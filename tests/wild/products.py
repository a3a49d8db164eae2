"""Convolutions; products of two values of a row; heads, graphs and attention.

Rows as in `tests/random_operators.py`. A matrix per row is some channels of a line, an image, or heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_operators import Operator, Shape

# ---- convolutions: a matrix per row is some channels of a line, or an image


def _many(*bounds: float) -> float:
    """Of a sum of at most a dozen terms, each at most 1 times a value, and a bias."""
    return 12 * max(bounds) + 0.3


def _convolution(
    run: Callable[..., Tensor], weights: Callable[[Shape, int], list[Shape]], fits: Callable[..., bool]
) -> Operator:
    return Operator("m", lambda v, p, k: run(v[0], p[0], p[1], k), _many, lambda s, k: weights(s[0], k), fits=fits)


def _image(v: Tensor) -> Tensor:
    return v.unsqueeze(1)


def _two_images(v: Tensor) -> Tensor:
    return torch.stack([v, torch.tanh(2 * v)], 1)


def _wide(shape: Shape) -> bool:
    return shape[1] > 1


def _square(shape: Shape) -> bool:
    return min(shape) > 1


CONVOLUTIONS = {
    "conv1d": _convolution(
        lambda v, w, b, k: F.conv1d(v, w, b, stride=1 + k % 2, padding=k % 3),
        lambda s, k: [(2, s[0], 2), (2,)],
        _wide,
    ),
    "conv1d in groups": _convolution(
        lambda v, w, b, k: F.conv1d(v, w, b, padding="same", groups=v.shape[1]),
        lambda s, k: [(s[0], 1, 3), (s[0],)],
        _wide,
    ),
    "conv1d, dilated": _convolution(
        lambda v, w, b, k: F.conv1d(v, w, b, padding=2, dilation=1 + k % 2), lambda s, k: [(2, s[0], 3), (2,)], _wide
    ),
    "conv2d": _convolution(
        lambda v, w, b, k: F.conv2d(_image(v), w, b, stride=1 + k % 2, padding=1).flatten(2),
        lambda s, k: [(1 + k % 2, 1, 3, 3), (1 + k % 2,)],
        _square,
    ),
    "conv2d in groups": _convolution(
        lambda v, w, b, k: F.conv2d(_two_images(v), w, b, stride=(1, 1 + k % 2), padding=(1, 0), groups=2).flatten(2),
        lambda s, k: [(2, 1, 2, 2), (2,)],
        _square,
    ),
    "transposed conv1d": _convolution(
        lambda v, w, b, k: F.conv_transpose1d(v, w, b, stride=1 + k % 2, padding=k % 2),
        lambda s, k: [(s[0], 2, 3), (2,)],
        _wide,
    ),
    "transposed conv2d": _convolution(
        lambda v, w, b, k: F.conv_transpose2d(_image(v), w, b, stride=1 + k % 2, padding=k % 2).flatten(2),
        lambda s, k: [(1, 1, 2, 2), (1,)],
        _square,
    ),
    "transposed conv2d in groups": _convolution(
        lambda v, w, b, k: F.conv_transpose2d(_two_images(v), w, b, padding=1, groups=2).flatten(2),
        lambda s, k: [(2, 1, 3, 3), (2,)],
        _square,
    ),
    "conv3d": _convolution(
        lambda v, w, b, k: F.conv3d(_two_images(v).unsqueeze(1), w, b, padding=(0, 1, 0)).flatten(2),
        lambda s, k: [(2, 1, 2, 2, 2), (2,)],
        _square,
    ),
    "pooled": Operator("m", lambda v, p, k: F.avg_pool1d(v[0], 2, 1), fits=lambda s: s[1] > 1),
}


# ---- products of two values of a row; heads; an invariant on the left


def _product(takes: str, function: Callable[..., Tensor], fits: Callable[..., bool]) -> Operator:
    return Operator(takes, lambda v, p, k: function(*v), lambda *b: 12 * max(1.0, *b) ** len(b), fits=fits)


def _with_matrix(run: Callable[..., Tensor], weights: Callable[[Shape], list[Shape]]) -> Operator:
    return Operator("m", lambda v, p, k: run(v[0], *p), _many, lambda s, k: weights(s[0]))


def _of_heads(v: Tensor) -> Tensor:
    """Attention of torch with a batch and two heads in front."""
    heads = torch.stack([v, torch.tanh(v)], 1)
    return F.scaled_dot_product_attention(heads, heads, heads).flatten(1, 2)


def _multihead(v: Tensor, into: Tensor, out: Tensor) -> Tensor:
    size = v.shape[2]
    rows = v.transpose(0, 1)
    made, _ = F.multi_head_attention_forward(
        rows, rows, rows, size, 1, into, None, None, None, False, 0.0, out, None, training=False
    )
    return made.transpose(0, 1)


def _columns(one: Shape, other: Shape, *more: Shape) -> bool:
    return one[1] == other[0]


def _rank_one(m: Shape, a: Shape, b: Shape) -> bool:
    return m == (*a, *b)


PRODUCTS = {
    "matrix times vector": _product("mv", lambda m, v: torch.einsum("bij,bj->bi", m, v), _columns),
    "vector times matrix": _product("mv", lambda m, v: (v.unsqueeze(1) @ m).squeeze(1), lambda m, v: m[0] == v[0]),
    "matrix times vector by bmm": _product("mv", lambda m, v: torch.bmm(m, v.unsqueeze(2)).squeeze(2), _columns),
    "bmm": _product("mm", torch.bmm, _columns),
    "outer": _product("vv", lambda a, b: a.unsqueeze(2) * b.unsqueeze(1), lambda a, b: True),
    "outer by bmm": _product("vv", lambda a, b: torch.bmm(a.unsqueeze(2), b.unsqueeze(1)), lambda a, b: True),
    "fast weights": _product("mvv", lambda m, a, b: 0.9 * m + 0.1 * torch.einsum("bi,bj->bij", a, b), _rank_one),
    "delta rule": _product(
        "mvv",
        lambda m, a, b: m - torch.einsum("bi,bj,bkj->bik", a, b, m).mT,
        lambda m, a, b: m[1] == b[0] and a[0] == m[1],
    ),
    "baddbmm": _product("mvv", lambda m, a, b: torch.baddbmm(m, a.unsqueeze(2), b.unsqueeze(1), beta=0.5), _rank_one),
    "dot": _product("vv", lambda a, b: torch.einsum("bi,bi->b", a, b).unsqueeze(1), lambda a, b: a == b),
    "form": _product("mvv", lambda m, a, b: torch.einsum("bi,bij,bj->b", a, m, b).unsqueeze(1), _rank_one),
    "addressed": _product(
        "mv",
        lambda m, v: (torch.softmax(torch.cosine_similarity(m + 2, v.unsqueeze(1) + 2, 2), 1).unsqueeze(1) @ m)[:, 0],
        _columns,
    ),
    "heads of rows": _with_matrix(lambda v, w: (v.unsqueeze(2) @ w).squeeze(2), lambda s: [(*s, s[1])]),
    "graph": _with_matrix(lambda v, w: torch.einsum("nm,bmf->bnf", w, v), lambda s: [(2, s[0])]),
    "invariant on the left": _with_matrix(lambda v, w: w @ v, lambda s: [(3, s[0])]),
    "graph of heads": _with_matrix(lambda v, w: torch.einsum("fnm,bmf->bnf", w, v), lambda s: [(s[1], 2, s[0])]),
    "attention of heads": Operator("m", lambda v, p, k: _of_heads(v[0])),
    "multihead attention": _with_matrix(_multihead, lambda s: [(3 * s[1], s[1]), (s[1], s[1])]),
}
