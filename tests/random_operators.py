"""What the step of a random cell can be made of: one row per operator, written the way users write steps.

Knows values of one step; knows nothing of programs, cells or hypothesis.

A row says what it takes, a letter per value: `a` any numbers, `s` numbers of the first one's shape, `v` a vector a row,
`m` a matrix per row, `i` an integer per row. `bound` turns bounds of what it takes into a bound of what it gives:
states stay within [-1, 1], so no value of a random cell overflows in any number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]
WIDTHS = (3, 1, 5, 6)
CLASSES = 5


@dataclass(frozen=True)
class Operator:
    """One way to compute a value.

    run      run(values, parameters, number) -> value; `number` is a small integer to choose by
    weights  weights(shapes of the values, number) -> shapes of the parameters it needs
    fits     which shapes it can take, beyond what `takes` says
    gives    the letter of what it gives, where that letter alone takes it (`tests/wild/contexts.py`)
    refused  whether kernels do not cover it
    """

    takes: str
    run: Callable[[Sequence[Tensor], Sequence[Tensor], int], Tensor]
    bound: Callable[..., float] = lambda *b: max(b)
    weights: Callable[[Sequence[Shape], int], list[Shape]] = lambda shapes, k: []
    fits: Callable[..., bool] = lambda *shapes: True
    smooth: bool = True
    draws: bool = False
    gives: str = ""
    refused: bool = False


def _pointwise(function: Callable[[Tensor], Tensor], bound: Callable[..., float], smooth: bool = True) -> Operator:
    return Operator("a", lambda v, p, k: function(v[0]), bound, smooth=smooth)


def _pair(function: Callable[[Tensor, Tensor], Tensor], bound: Callable[..., float], smooth: bool = True) -> Operator:
    return Operator("as", lambda v, p, k: function(v[0], v[1]), bound, smooth=smooth)


def _vector(function: Callable[[Tensor, int], Tensor], bound: Callable[..., float] = max, **options: bool) -> Operator:
    return Operator("v", lambda v, p, k: function(v[0], k), lambda b: bound(b, 0.0), **options)


def _one(*_: float) -> float:
    return 1.0


def _width(k: int) -> int:
    return WIDTHS[k % len(WIDTHS)]


def _without_gradient(v: Tensor) -> Tensor:
    with torch.no_grad():
        gain = torch.tanh(v) + 0.5
    return v * gain


def _parts_without_gradient(v: Tensor, k: int) -> Tensor:
    with torch.no_grad():
        parts = v.chunk(2, -1)
    return parts[k % len(parts)] * 0.5


def _written(v: Tensor) -> Tensor:
    t = v * 0.5
    t.add_(0.25)
    t.mul_(torch.sigmoid(v))
    return t.tanh_()


def _filled(v: Tensor) -> Tensor:
    t = torch.zeros_like(v)
    t += v
    t[..., :1] = 0.25
    return t


def _one_place_written(v: Tensor) -> Tensor:
    t = v.clone()
    t[..., 0] *= 0.5
    return t


def _room(v: Tensor, k: int) -> Tensor:
    t = torch.zeros(v.shape[0], v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    t[:, 1:] = v
    t[:, 0] = t[:, 1] * 0.5
    return t


def _coins_written(v: Tensor) -> Tensor:
    return v * torch.empty_like(v).bernoulli_(0.7)


def _heads_by_bmm(v: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(v.transpose(0, 1), w).transpose(0, 1)


def _attention(v: Tensor) -> Tensor:
    return torch.softmax(v @ v.transpose(1, 2), -1) @ v


def _regular(v: Tensor) -> Tensor:
    """A matrix per row that has an inverse."""
    return torch.tanh(v @ v.mT) * 0.1 + torch.eye(v.shape[1], dtype=v.dtype, device=v.device)


def _same_width(one: Shape, other: Shape) -> bool:
    return one[1] == other[1]


def _gains(shapes: Sequence[Shape], k: int) -> list[Shape]:
    return [shapes[0][-1:]] * 2


OPERATORS: dict[str, Operator] = {
    # pointwise
    "tanh": _pointwise(torch.tanh, _one),
    "sigmoid": _pointwise(torch.sigmoid, _one),
    "sin": _pointwise(torch.sin, _one),
    "relu": _pointwise(torch.relu, lambda b: b, smooth=False),
    "leaky_relu": _pointwise(F.leaky_relu, lambda b: b, smooth=False),
    "softplus": _pointwise(F.softplus, lambda b: b + 0.7),
    "silu": _pointwise(F.silu, lambda b: b),
    "gelu": _pointwise(F.gelu, lambda b: b),
    "exp of tanh": _pointwise(lambda v: torch.exp(torch.tanh(v)), lambda b: math.e),
    "half": _pointwise(lambda v: 0.5 * v - 0.25, lambda b: b / 2 + 0.25),
    "one minus": _pointwise(lambda v: 1 - v, lambda b: 1 + b),
    "negative": _pointwise(lambda v: -v, lambda b: b),
    "square": _pointwise(lambda v: v * v, lambda b: b * b),
    "cube": _pointwise(lambda v: v**3, lambda b: b**3),
    "root": _pointwise(lambda v: torch.sqrt(1 + v * v), lambda b: 1 + b),
    "bell": _pointwise(lambda v: 1 / (1 + v * v), _one),
    "elu": _pointwise(F.elu, lambda b: b),
    "erf": _pointwise(torch.erf, _one),
    "hypotenuse": _pointwise(lambda v: torch.hypot(v, torch.tensor(0.5)), lambda b: b + 0.5),
    "clamp": _pointwise(lambda v: v.clamp(-0.5, 0.5), lambda b: 0.5, smooth=False),
    "fill where large": _pointwise(lambda v: v.masked_fill(v > 0.4, 0.1), lambda b: b, smooth=False),
    # no gradient
    "detach": _pointwise(lambda v: v.detach(), lambda b: b),
    "no_grad": _pointwise(_without_gradient, lambda b: 1.5 * b),
    "no_grad chunk": _vector(_parts_without_gradient, smooth=False),
    "straight through": _pointwise(lambda v: v + (torch.round(v) - v).detach(), lambda b: b + 0.5, smooth=False),
    # in place, on fresh tensors
    "in place": _pointwise(_written, _one),
    "in place on zeros": _pointwise(_filled, lambda b: max(b, 0.25)),
    "in place on one": _pointwise(_one_place_written, lambda b: b),
    "in place in a room": _vector(_room),
    # constants
    "plus scalar tensor": _pointwise(lambda v: v + torch.tensor(0.3), lambda b: b + 0.3),
    "times constants": _pointwise(lambda v: v * torch.linspace(0.1, 0.9, v.shape[-1], device=v.device), lambda b: b),
    "times list": _vector(lambda v, k: v * torch.tensor([0.5 / (1 + i) for i in range(v.shape[-1])], device=v.device)),
    "plus ones": _vector(
        lambda v, k: v + 0.5 * torch.ones(v.shape[0], 1, dtype=v.dtype, device=v.device), lambda b, _: b + 0.5
    ),
    "zeros": _pointwise(torch.zeros_like, lambda b: 0.0),
    "rows of ones": _vector(
        lambda v, k: torch.ones(v.shape[0], _width(k), dtype=v.dtype, device=v.device) / 2, lambda b, _: 0.5
    ),
    "times identity": _vector(lambda v, k: v @ torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)),
    # two values
    "add": _pair(lambda a, b: a + b, lambda a, b: a + b),
    "subtract": _pair(lambda a, b: a - b, lambda a, b: a + b),
    "multiply": _pair(lambda a, b: a * b, lambda a, b: a * b),
    "gate": _pair(lambda a, b: torch.sigmoid(a) * b, lambda a, b: b),
    "lerp": _pair(lambda a, b: torch.lerp(a, b, 0.3), max),
    "addcmul": _pair(lambda a, b: torch.addcmul(a, a, b, value=0.5), lambda a, b: a + a * b / 2),
    "where": _pair(lambda a, b: torch.where(a > b, a, 0.5 * b), max, smooth=False),
    "maximum": _pair(torch.maximum, max, smooth=False),
    "mean of two": _pair(lambda a, b: torch.stack([a, b], 1).mean(1), max),
    "concatenate": Operator("vv", lambda v, p, k: torch.cat([v[0], v[1]], -1)),
    "outer product": Operator("vv", lambda v, p, k: torch.einsum("bi,bj->bij", v[0], v[1]), lambda a, b: a * b),
    "cut short": Operator("vv", lambda v, p, k: v[0] * v[1].mean(-1, keepdim=True), lambda a, b: a * b),
    # products with parameters
    "linear": Operator(
        "v",
        lambda v, p, k: F.linear(v[0], p[0], p[1]),
        lambda b: b + 0.3,
        lambda s, k: [(_width(k), s[0][0]), (_width(k),)],
    ),
    "matrix": Operator("v", lambda v, p, k: v[0] @ p[0].T, weights=lambda s, k: [(_width(k), s[0][0])]),
    "matrix twice": Operator("v", lambda v, p, k: v[0] @ p[0].T @ p[0], lambda b: 3 * b, lambda s, k: [(3, s[0][0])]),
    "square matrix": Operator("v", lambda v, p, k: v[0] @ p[0].T, weights=lambda s, k: [(s[0][0], s[0][0])]),
    "made matrix": Operator(
        "v", lambda v, p, k: v[0] @ torch.tanh(p[0] * 0.5).T, lambda b: b, lambda s, k: [(_width(k), s[0][0])]
    ),
    "joined linear": Operator(
        "vv",
        lambda v, p, k: F.linear(torch.cat([v[0], v[1]], -1), p[0], p[1]),
        lambda a, b: max(a, b) + 0.3,
        lambda s, k: [(_width(k), s[0][0] + s[1][0]), (_width(k),)],
    ),
    "joined matrix": Operator(
        "vv",
        lambda v, p, k: torch.cat([v[0], v[1], 0.5 * v[0]], 1) @ p[0].T,
        weights=lambda s, k: [(_width(k), 2 * s[0][0] + s[1][0])],
    ),
    "bilinear": Operator(
        "vv",
        lambda v, p, k: torch.einsum("bi,oij,bj->bo", v[0], p[0], v[1]),
        lambda a, b: 12 * a * b,
        lambda s, k: [(3, s[0][0], s[1][0])],
    ),
    "heads": Operator(
        "m", lambda v, p, k: torch.einsum("bhi,hij->bhj", v[0], p[0]), lambda b: 12 * b, lambda s, k: [(*s[0], s[0][1])]
    ),
    "heads by bmm": Operator(
        "m", lambda v, p, k: _heads_by_bmm(v[0], p[0]), lambda b: 12 * b, lambda s, k: [(*s[0], s[0][1])]
    ),
    "linear of matrix": Operator(
        "m",
        lambda v, p, k: F.linear(v[0], p[0], p[1]),
        lambda b: b + 0.3,
        lambda s, k: [(_width(k), s[0][1]), (_width(k),)],
    ),
    "convolution": Operator(
        "v",
        lambda v, p, k: F.conv1d(v[0].unsqueeze(1), p[0], p[1], padding=1).squeeze(1),
        lambda b: b + 0.3,
        lambda s, k: [(1, 1, 3), (1,)],
    ),
    "prelu": Operator("v", lambda v, p, k: F.prelu(v[0], p[0]), weights=lambda s, k: [s[0]], smooth=False),
    "glu": Operator("v", lambda v, p, k: F.glu(v[0], -1), fits=lambda s: s[0] % 2 == 0),
    "matrix of a vector": Operator(
        "v", lambda v, p, k: torch.tensordot(v[0], p[0], 1), lambda b: 12 * b, lambda s, k: [(s[0][0], 2, 3)]
    ),
    "cell of torch": Operator(
        "vv",
        lambda v, p, k: torch.gru_cell(v[0], v[1], p[0], p[1], p[2], p[2]),
        lambda a, b: max(1.0, b),
        lambda s, k: [(3 * s[1][0], s[0][0]), (3 * s[1][0], s[1][0]), (3 * s[1][0],)],
    ),
    # parameters alone
    "rows of a parameter": Operator(
        "v", lambda v, p, k: torch.tanh(p[0]).expand(v[0].shape[0], -1), _one, lambda s, k: [(_width(k),)]
    ),
    "times softplus of a parameter": Operator(
        "a", lambda v, p, k: v[0] * F.softplus(p[0]), lambda b: 1.4 * b, lambda s, k: [s[0]]
    ),
    # norms and reductions
    "layer norm": Operator(
        "a", lambda v, p, k: F.layer_norm(v[0], p[0].shape, p[0], p[1], eps=0.1), lambda b: 3.0, _gains
    ),
    "layer norm without gain": Operator(
        "a", lambda v, p, k: F.layer_norm(v[0], v[0].shape[-1:], eps=0.1), lambda b: 3.0
    ),
    "rms norm": Operator(
        "a", lambda v, p, k: F.rms_norm(v[0], p[0].shape, p[0], eps=0.1), lambda b: 3.0, lambda s, k: [s[0][-1:]]
    ),
    "group norm": Operator(
        "v",
        lambda v, p, k: F.group_norm(v[0], 1, p[0], p[1], eps=0.1),
        lambda b: 3.0,
        _gains,
        fits=lambda s: s[0] > 1,
    ),
    "softmax": _pointwise(lambda v: torch.softmax(v, -1), _one),
    "log_softmax": _pointwise(lambda v: torch.log_softmax(v, -1), lambda b: 2 * b + 3),
    "sum": _vector(lambda v, k: v.sum(-1, keepdim=True), lambda b, _: 12 * b),
    "mean": _pointwise(lambda v: v - v.mean(-1, keepdim=True), lambda b: 2 * b),
    "largest": _vector(lambda v, k: v.max(-1, keepdim=True).values, smooth=False),
    "share of the largest": _vector(lambda v, k: v - v.amax(-1, keepdim=True), lambda b, _: 2 * b, smooth=False),
    "logsumexp": _vector(lambda v, k: v.logsumexp(-1, keepdim=True), lambda b, _: b + 3),
    "variance": _vector(lambda v, k: v.var(-1, keepdim=True, unbiased=False), lambda b, _: b * b),
    "running sum": _vector(lambda v, k: v.cumsum(-1), lambda b, _: 12 * b),
    "length": _vector(lambda v, k: (v * v + 0.1).sum(-1).sqrt().unsqueeze(-1), lambda b, _: 4 * (b + 1)),
    "norm": _vector(lambda v, k: torch.linalg.vector_norm(v + 2, dim=-1, keepdim=True), lambda b, _: 4 * (b + 2)),
    "normalised": _vector(lambda v, k: F.normalize(v + 2, dim=-1), lambda b, _: 1.0),
    "product": _vector(lambda v, k: torch.tanh(v).prod(-1, keepdim=True), lambda b, _: 1.0),
    "running product": _vector(lambda v, k: torch.cumprod(torch.sigmoid(v), -1), lambda b, _: 1.0),
    "cross entropy": _vector(
        lambda v, k: F.cross_entropy(v, torch.softmax(v, -1), reduction="none").unsqueeze(1), lambda b, _: 2 * b + 3
    ),
    # parts and views
    "chunk": _vector(lambda v, k: (parts := v.chunk(2, -1))[k % len(parts)]),
    "split": _vector(lambda v, k: (parts := v.split([1, v.shape[-1] - 1], -1))[k % 2] + parts[0]),
    "slice": _vector(lambda v, k: v[:, k % v.shape[-1] :]),
    "every second": _vector(lambda v, k: v[:, ::2]),
    "picked": _vector(lambda v, k: v[:, [0, -1, 0]]),
    "flip": _vector(lambda v, k: v.flip(-1)),
    "roll": _vector(lambda v, k: torch.roll(v, 1, -1)),
    "pad": _vector(lambda v, k: F.pad(v, (1, 0), value=0.1), lambda b, _: max(b, 0.1)),
    "repeat": _vector(lambda v, k: v.repeat(1, 2)),
    "sorted": _vector(lambda v, k: v.sort(-1).values, smooth=False),
    "largest few": _vector(lambda v, k: v.topk(min(2, v.shape[-1]), -1).values, smooth=False),
    "windows": Operator("v", lambda v, p, k: v[0].unfold(1, 2, 1), fits=lambda s: s[0] > 1),
    "triangle": Operator("m", lambda v, p, k: torch.tril(v[0])),
    "unbind": _vector(lambda v, k: torch.stack(v.unbind(-1)[::-1], -1)),
    "as matrix": Operator("v", lambda v, p, k: v[0].view(v[0].shape[0], 2, 3), fits=lambda s: s == (6,)),
    "stacked": Operator("vs", lambda v, p, k: torch.stack([v[0], v[1]], 1)),
    "spread": _vector(lambda v, k: v.unsqueeze(1).expand(-1, 2, -1)),
    "flatten": Operator("m", lambda v, p, k: v[0].flatten(1)),
    "transpose": Operator("m", lambda v, p, k: v[0].transpose(1, 2)),
    "reshape transposed": Operator("m", lambda v, p, k: v[0].transpose(1, 2).reshape(v[0].shape[0], -1)),
    "first row": Operator("m", lambda v, p, k: v[0][:, 0]),
    "mean of rows": Operator("m", lambda v, p, k: v[0].mean(1)),
    "largest of rows": Operator("m", lambda v, p, k: v[0].amax(1), smooth=False),
    "attention": Operator("m", lambda v, p, k: _attention(v[0])),
    "torch's attention": Operator("m", lambda v, p, k: F.scaled_dot_product_attention(v[0], v[0], v[0])),
    "rows times rows": Operator("mm", lambda v, p, k: v[0] @ v[1].mT, lambda a, b: 12 * a * b, fits=_same_width),
    "solved": Operator("m", lambda v, p, k: torch.linalg.solve(_regular(v[0]), v[0]), lambda b: 3.0),
    # integers
    "argmax": Operator("v", lambda v, p, k: v[0].argmax(-1), lambda b: 12.0, smooth=False),
    "remainder": Operator("i", lambda v, p, k: v[0] % CLASSES, lambda b: CLASSES - 1.0, smooth=False),
    "embedding": Operator(
        "i", lambda v, p, k: F.embedding(v[0], p[0]), _one, lambda s, k: [(CLASSES, _width(k))], smooth=False
    ),
    "indexed": Operator("i", lambda v, p, k: p[0][v[0]], _one, lambda s, k: [(CLASSES, _width(k))], smooth=False),
    "one hot": Operator("i", lambda v, p, k: F.one_hot(v[0], CLASSES).double(), _one, smooth=False),
    "gather": Operator("vi", lambda v, p, k: v[0].gather(1, (v[1] % v[0].shape[1]).unsqueeze(1)), lambda a, b: a),
    "where integer": Operator(
        "vi", lambda v, p, k: torch.where((v[1] > 1).unsqueeze(-1), v[0], 0.5 * v[0]), lambda a, b: a
    ),
    # random numbers
    "dropout": Operator("a", lambda v, p, k: F.dropout(v[0], 0.3, training=True), lambda b: 1.5 * b, draws=True),
    "noise": Operator("a", lambda v, p, k: v[0] + 0.1 * torch.randn_like(v[0]), lambda b: b + 0.5, draws=True),
    "uniform": Operator("a", lambda v, p, k: v[0] * torch.rand_like(v[0]), lambda b: b, draws=True),
    "coins": Operator("a", lambda v, p, k: v[0] * torch.bernoulli(torch.sigmoid(v[0])), lambda b: b, draws=True),
    "coins in place": Operator("a", lambda v, p, k: _coins_written(v[0]), lambda b: b, draws=True),
    "a coin per row": Operator(
        "v", lambda v, p, k: torch.where(torch.rand(v[0].shape[0], 1) < 0.5, v[0], 0.5 * v[0]), draws=True
    ),
    "noise for all rows": Operator(
        "a", lambda v, p, k: v[0] + 0.1 * torch.randn(v[0].shape[1:]), lambda b: b + 0.5, draws=True
    ),
    "weights dropped": Operator(
        "v",
        lambda v, p, k: torch.tanh(v[0] @ F.dropout(p[0], 0.5, training=True)),
        _one,
        lambda s, k: [(s[0][-1], _width(k))],
        draws=True,
    ),
}
