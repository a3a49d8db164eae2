"""Surrogate gradients: a spike is a step function forward, and passes gradients on as a smooth function would.

Each function here returns a `Surrogate`, which is called with a potential relative to its threshold and returns 0 or 1.

>>> spike = fast_sigmoid(slope=10)
>>> v = torch.tensor([-0.1, 0.1], requires_grad=True)
>>> spike(v).tolist()
[0.0, 1.0]
>>> torch.autograd.grad(spike(v).sum(), v)[0].tolist()
[0.25, 0.25]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.cells.parameters import is_number
from leporello.errors import ArgumentError


@dataclass(frozen=True)
class Surrogate:
    """A spike, 1 where v > 0 and else 0, whose derivative is taken to be `derivative(v, scale)`.

    derivative   from a potential relative to its threshold, and the scale, to the factor of the gradient
    """

    derivative: Callable[[Tensor, float], Tensor]
    scale: float

    def __call__(self, v: Tensor) -> Tensor:
        spikes: Tensor = _Spike.apply(v, self)
        return spikes


class _Spike(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, surrogate: Surrogate) -> Tensor:
        return (v > 0).to(v.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Surrogate], output: Tensor) -> None:
        v, ctx.surrogate = inputs
        ctx.save_for_backward(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (v,) = ctx.saved_tensors
        return gradient * ctx.surrogate.derivative(v, ctx.surrogate.scale), None


def fast_sigmoid(slope: float = 25.0) -> Surrogate:
    """The derivative is 1 / (1 + slope |v|)^2 (Zenke and Ganguli 2018)."""
    return Surrogate(_fast_sigmoid, _positive(slope=slope))


def arctan(alpha: float = 2.0) -> Surrogate:
    """The derivative is (alpha / 2) / (1 + (pi alpha v / 2)^2) (Fang et al. 2021)."""
    return Surrogate(_arctan, _positive(alpha=alpha))


def straight_through() -> Surrogate:
    """The derivative is 1 everywhere (Bengio, Léonard and Courville 2013)."""
    return Surrogate(_one, 1.0)


def boxcar(width: float = 1.0) -> Surrogate:
    """The derivative is 1 / width where |v| < width / 2, else 0."""
    return Surrogate(_boxcar, _positive(width=width))


def _fast_sigmoid(v: Tensor, slope: float) -> Tensor:
    return 1 / (1 + slope * v.abs()) ** 2


def _arctan(v: Tensor, alpha: float) -> Tensor:
    return alpha / 2 / (1 + (math.pi / 2 * alpha * v) ** 2)


def _one(v: Tensor, scale: float) -> Tensor:
    return torch.ones_like(v)


def _boxcar(v: Tensor, width: float) -> Tensor:
    return (v.abs() < width / 2).to(v.dtype) / width


def _positive(**argument: float) -> float:
    ((name, value),) = argument.items()
    if not is_number(value) or not 0 < value < math.inf:
        raise ArgumentError(
            f"'{name}' is no scale of a surrogate gradient.",
            came=repr(value),
            expected="a finite number above 0",
            tries=f"{name}=1.0",
        )
    return float(value)
