"""What is said where a loss or a gradient is not finite: what it was, where it came from, and what to do.

Knows the words; `leporello.nets.non_finite` finds the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from leporello.errors import NotFinite
from leporello.nets.non_finite import Origin

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
