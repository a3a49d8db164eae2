"""LIF: leaky integrate-and-fire neurons, which send spikes and are trained with surrogate gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.cells.parameters import check_choice, check_sizes, constant, is_number, uniform
from leporello.cells.surrogate import fast_sigmoid
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell

RESETS = ("subtract", "zero")


class LIF(Cell):
    """reset="subtract":  v' = decay v - threshold z + U x + W z + b;  z' = 1 if v' > threshold else 0.
    reset="zero":      v' = decay v (1 - z) + U x + W z + b;         z' = 1 if v' > threshold else 0.

    v is the membrane potential, z the spikes; the output is z'. U (hidden, inputs), W (hidden, hidden), b (hidden). At
    first U and W are uniform within 1/sqrt(columns), b is zero. Gradients pass a spike as the surrogate says
    (Neftci, Mostafa and Zenke 2019).

    decay       of the potential in one step, from 0 to 1: a number for all neurons, or one per neuron
    threshold   above which a neuron fires, above 0
    surrogate   one of `lp.surrogate`, or a function of v - threshold that returns spikes; fast_sigmoid(25) by default
    recurrent   whether neurons receive spikes of the step before: W
    """

    fixed_decay: float | Tensor

    def __init__(
        self,
        inputs: int,
        hidden: int,
        *,
        decay: float | Sequence[float] | Tensor = 0.9,
        threshold: float = 1.0,
        surrogate: Callable[[Tensor], Tensor] | None = None,
        recurrent: bool = True,
        reset: str = "subtract",
        learned: bool = False,
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        check_choice("reset", reset, RESETS)
        _check_threshold(threshold)
        super().__init__(learned=learned, v=hidden, z=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        self.threshold, self.reset, self.recurrent = float(threshold), reset, recurrent
        self.surrogate = fast_sigmoid() if surrogate is None else _checked(surrogate)
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.W = uniform(hidden, hidden, bound=hidden**-0.5) if recurrent else None
        self.b = constant(hidden, value=0)
        self._set_decay(_decay_of(decay, hidden))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        v, z = state
        a = self.b + x @ self.U.T
        if self.W is not None:
            a = a + z @ self.W.T
        v = a + (self.fixed_decay * v * (1 - z) if self.reset == "zero" else self.fixed_decay * v - self.threshold * z)
        z = self.surrogate(v - self.threshold)
        return z, (v, z)

    def _set_decay(self, decay: Tensor) -> None:
        if decay.dim():
            self.register_buffer("fixed_decay", decay.to(self.U))
        else:
            self.fixed_decay = decay.item()


def _decay_of(argument: float | Sequence[float] | Tensor, hidden: int) -> Tensor:
    """The argument `decay` in float64, of shape () or (hidden,)."""
    try:
        decay = torch.as_tensor(argument, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError):
        decay = torch.full((), math.nan, device="cpu")
    if decay.shape not in ((), (hidden,)) or not ((decay >= 0) & (decay <= 1)).all():
        raise ArgumentError(
            "'decay' is no decay of these neurons.",
            came=f"shape {list(argument.shape)}" if isinstance(argument, Tensor) else repr(argument),
            expected=f"a number, or {hidden} of them, from 0 to 1",
            tries="decay = exp(-step size / time constant), 0.9 for example",
        )
    return decay


def _check_threshold(threshold: float) -> None:
    if not is_number(threshold) or not 0 < threshold < math.inf:
        raise ArgumentError(
            "'threshold' is no threshold.",
            came=repr(threshold),
            expected="a finite number above 0",
            tries="threshold=1.0",
        )


def _checked(surrogate: object) -> Callable[[Tensor], Tensor]:
    if not callable(surrogate) or isinstance(surrogate, type):
        raise ArgumentError(
            "'surrogate' is no function.",
            came=repr(surrogate),
            expected="a function from v - threshold to spikes",
            tries="lp.surrogate.fast_sigmoid(25)",
        )
    return surrogate
