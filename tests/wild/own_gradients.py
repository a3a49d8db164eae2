"""Functions whose gradients are written by hand, as in spiking networks: rows as in `tests/random_operators.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import leporello as lp
from tests.random_operators import Operator

# ---- gradients written by hand


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return gradient / (1 + 10 * v.abs()) ** 2


class _Scaled(torch.autograd.Function):
    """Keeps its result, and has a number as an argument."""

    @staticmethod
    def forward(v: Tensor, rate: float) -> Tensor:
        return torch.tanh(v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.rate = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        return gradient * ctx.rate * (1 - result), None


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return v.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.4, 0.5)


class _Linear(torch.autograd.Function):
    """A product whose gradients are those of another matrix: feedback alignment."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(v, matrix)
        return v @ matrix.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        v, matrix = ctx.saved_tensors
        return gradient @ torch.sign(matrix), gradient.T @ v


class _SumAndProduct(torch.autograd.Function):
    """Two inputs, and three results, one without a gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(a, b)
        sign = torch.sign(a)
        ctx.mark_non_differentiable(sign)
        return a + b, a * b, sign

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return one + 0.5 * other * b, one + 2 * other * a


class _Signs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return torch.sign(matrix)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (matrix,) = ctx.saved_tensors
        return torch.where(matrix.abs() < 0.4, gradient, torch.zeros_like(gradient))


# ---- writes that leave gradients as they are


def _data_written(v: Tensor) -> Tensor:
    t = 0.5 * v
    t.data.masked_fill_(v > 0.2, 0.1)
    return torch.sin(t) * t


def _written_without_gradient(v: Tensor) -> Tensor:
    t = torch.sigmoid(v) * v
    t = t * 0.9
    with torch.no_grad():
        t[..., :1] = 0.3
        t.mul_(0.5)
    return t


def _by_hand(run: Callable[..., Tensor], bound: Callable[..., float], takes: str = "a", **options: Any) -> Operator:
    return Operator(takes, lambda v, p, k: run(*v, *p), bound, smooth=False, **options)


def _sums(a: Tensor, b: Tensor) -> Tensor:
    added, multiplied, sign = _SumAndProduct.apply(a, b)
    return added * sign + multiplied


OWN_GRADIENTS = {
    "spike": _by_hand(_Spike.apply, lambda b: 1.0),
    "spike of lp": _by_hand(lp.surrogate.arctan(), lambda b: 1.0),
    "straight through of lp": _by_hand(lp.surrogate.straight_through(), lambda b: 1.0),
    "own tanh": _by_hand(lambda v: _Scaled.apply(v, 0.7), lambda b: 1.0),
    "clipped gradient": _by_hand(_Clipped.apply, lambda b: b),
    "feedback alignment": _by_hand(_Linear.apply, lambda b: 12 * b, "v", weights=lambda s, k: [(3, s[0][0])]),
    "binary weights": _by_hand(
        lambda v, w: v @ _Signs.apply(w).T, lambda b: 12 * b, "v", weights=lambda s, k: [(3, s[0][0])]
    ),
    "data written": _by_hand(_data_written, lambda b: b + 0.1),
    "written without gradient": _by_hand(_written_without_gradient, lambda b: b + 0.3),
    "own sum and product": _by_hand(_sums, lambda a, b: a + b + a * b, "as"),
}
