"""What changes the parameters, and at which rate.

Knows optimisers of torch; knows nothing of networks or text. `progress` is the share of the training that is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from leporello.errors import NotFinite
from leporello.language.config import Config
from leporello.modules.finite import Origin

RATES = {"sgd": 1.0}  # where none is told; 0.005 for the others
LAST = 0.02  # share of the rate at the end of a cosine


def optimiser_of(config: Config, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser of a configuration."""
    own: dict[str, Any] = {"lr": first_rate(config), "weight_decay": config.weight_decay}
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(parameters, foreach=True, **own)
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return kinds[config.optimiser](parameters, fused=True, **own)


def first_rate(config: Config) -> float:
    return config.rate or RATES.get(config.optimiser, 0.005)


def rate_at(config: Config, progress: float) -> float:
    """The learning rate when a share of the training is done."""
    rate = first_rate(config)
    if progress < config.warm_up:
        return rate * max(progress, 1e-3) / config.warm_up
    share = min(1.0, (progress - config.warm_up) / (1 - config.warm_up))
    if config.schedule == "linear":
        return rate * (1 - share)
    if config.schedule == "cosine":
        return rate * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * share)))
    return rate


# ---- (language.finite) What is said where a loss or a gradient is not finite: what it was, where it came from, and what to do.
#
# Knows the words; `leporello.modules.finite` finds the place.

# What helps, by the operator that made it; by where it was made for all others.
BY_OPERATOR = {
    "exp": "keep what exp reads small: subtract its largest value first, or clamp it",
    "log": "keep what log reads above 0: torch.log(value.clamp_min(1e-6)), or log_softmax instead of log of softmax",
    "sqrt": "keep what sqrt reads above 0: torch.sqrt(value + 1e-6)",
    "rsqrt": "keep what rsqrt reads above 0: torch.rsqrt(value + 1e-6)",
    "div": "keep the divisor away from 0: value / (divisor + 1e-6)",
    "reciprocal": "keep what it reads away from 0",
    "pow": "keep its base away from 0 and its result small",
    "norm": "keep what it reads away from 0: its root has an infinite gradient there",
    "linalg_vector_norm": "keep what it reads away from 0: its root has an infinite gradient there",
    "softmax": "leave at least one value of each row without a mask",
    "log_softmax": "leave at least one value of each row without a mask",
}
BY_PLACE = {
    "parameter": "begin again from the last checkpoint, with a smaller learning rate or gradient norm",
    "buffer": "look at what writes it: no step does",
    "input": "look at what makes the inputs: no step does",
    "state": "begin with a fresh state; look at the window before, which left it so",
    "forward": "a smaller learning rate or gradient norm: values have grown too large",
    "loss": "look at what the loss divides by and takes logarithms of",
    "backward": "lp.Full(clip_state=1.0) or lp.Truncated(35); a smaller learning rate",
}
NOWHERE = 'engine="reference": the same call in plain PyTorch gives finite values, so it lies at the edge of what fits'


def refuse_not_finite(
    number: float, what: str, search: Callable[[], Origin | None], *, update: int | None = None
) -> None:
    """Nothing for a finite number; else raise `NotFinite` with the place that the search finds.

    what     the number, in words: "the loss"
    search   `first_not_finite` of the call that failed, asked only where it is needed
    """
    if not math.isfinite(number):
        raise not_finite(number, what, search(), update=update)


def not_finite(number: float, what: str, origin: Origin | None, *, update: int | None = None) -> NotFinite:
    """The error that says where a loss or a gradient that is not finite came from.

    >>> print(not_finite(float("nan"), "the loss", Origin("parameter", "nan", name="inside.W"), update=12))
    the loss is nan.
      update  12
      first   the parameter inside.W holds nan already
      try     begin again from the last checkpoint, with a smaller learning rate or gradient norm
    """
    return NotFinite(
        f"{what} is {number:g}.",
        update=update,
        first=None if origin is None else origin,
        line=None if origin is None else origin.line,
        tries=NOWHERE if origin is None else advice(origin),
    )


def advice(origin: Origin) -> str:
    """What to do about it."""
    operator = (origin.operator or "").removeprefix("the gradient of ")
    return BY_OPERATOR.get(operator, BY_PLACE[origin.where])
