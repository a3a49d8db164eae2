"""One update of the parameters: scores, loss, gradient, clipping, optimiser step, learning rate.

A loss or gradient that is not finite is refused with the place where it arose and with advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import NotFinite
from leporello.language.config import Config
from leporello.nets.non_finite import Origin, first_not_finite
from leporello.nets.recurrent import Recurrent

DEFAULT_RATES = {"adam": 0.005, "adamw": 0.005, "rmsprop": 0.005, "sgd": 1.0}
LAST_COSINE_SHARE = 0.02  # of the rate, at the end of a cosine schedule
# Advice by the operator that made a number that is not finite; by where it was made for all other operators.
ADVICE_BY_OPERATOR = {
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
ADVICE_BY_PLACE = {
    "parameter": "begin again from the last checkpoint, with a smaller learning rate or gradient norm",
    "buffer": "look at what writes it: no step does",
    "input": "look at what makes the inputs: no step does",
    "state": "begin with a fresh state; look at the window before, which left it so",
    "forward": "a smaller learning rate or gradient norm: values have grown too large",
    "loss": "look at what the loss divides by and takes logarithms of",
    "backward": "lp.Full(clip_state=1.0) or lp.Truncated(35); a smaller learning rate",
}
ADVICE_WITHOUT_ORIGIN = (
    'engine="reference": the same call in plain PyTorch gives finite values, so it lies at the edge of what fits'
)


@dataclass(frozen=True)
class UpdateResult:
    """What an update measured.

    loss    the mean surprise of the targets, in nats
    norm    of the gradient, before clipping
    state   after the window, still with its graph
    """

    loss: float
    norm: float
    state: Any


class Updater:
    """Changes the parameters of a network, one window at a time.

    data_parallel   the network as it is called in training: itself, or wrapped to average gradients over processes
    """

    def __init__(self, net: Recurrent, data_parallel: nn.Module, config: Config, device: torch.device) -> None:
        self.net, self.data_parallel, self.config, self.device = net, data_parallel, config, device
        self.parameters = [value for value in net.parameters() if value.requires_grad]
        self.optimiser = optimiser_of(config, self.parameters)

    def update(
        self, window: Tensor, state: Any, *, progress: float, forcing: float | None, number: int
    ) -> UpdateResult:
        """Update the parameters once; a loss or gradient that is not finite is refused before they change.

        window     (steps + 1, batch) tokens: each step predicts the next
        state      before the window; None: the initial state
        progress   the finished share of the training, which sets the learning rate
        forcing    the probability of teacher forcing; None for a net without feedback
        number     of updates before this one, for errors
        """
        inputs, targets = window[:-1], window[1:]
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(self.config, progress)
        feedback = {} if forcing is None else {"targets": targets, "forcing": forcing}
        with self._autocast():
            scores, new_state = self.data_parallel(inputs, state, **feedback)
            loss = cross_entropy(scores, targets)
        self.optimiser.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm or math.inf))
        result = UpdateResult(float(loss.detach()), norm, new_state)

        def origin() -> Origin | None:
            return first_not_finite(self.net, inputs, state, loss=cross_entropy, targets=targets, forcing=forcing)

        refuse_not_finite(result.loss, "the loss", origin, update=number)
        refuse_not_finite(norm, "the norm of the gradient", origin, update=number)
        self.optimiser.step()
        return result

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean surprise of the targets (steps, batch) under the scores (steps, batch, size), in nats."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def optimiser_of(config: Config, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser of a configuration."""
    options: dict[str, Any] = {"lr": _full_rate(config), "weight_decay": config.weight_decay}
    if config.optimiser == "rmsprop":
        return torch.optim.RMSprop(parameters, foreach=True, **options)
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    return kinds[config.optimiser](parameters, fused=True, **options)


def rate_at(config: Config, progress: float) -> float:
    """The learning rate when a share of the training is done."""
    rate = _full_rate(config)
    if progress < config.warm_up:
        return rate * max(progress, 1e-3) / config.warm_up
    share = min(1.0, (progress - config.warm_up) / (1 - config.warm_up))
    if config.schedule == "linear":
        return rate * (1 - share)
    if config.schedule == "cosine":
        return rate * (LAST_COSINE_SHARE + (1 - LAST_COSINE_SHARE) * 0.5 * (1 + math.cos(math.pi * share)))
    return rate


def _full_rate(config: Config) -> float:
    """The learning rate from which the schedule starts."""
    return config.rate or DEFAULT_RATES[config.optimiser]


def refuse_not_finite(
    number: float, what: str, search: Callable[[], Origin | None], *, update: int | None = None
) -> None:
    """Raise `NotFinite` for a number that is not finite, with the place that the search finds.

    what     the number, in words: "the loss"
    search   calls `first_not_finite` for the call that failed; only used for a number that is not finite
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
        tries=ADVICE_WITHOUT_ORIGIN if origin is None else advice(origin),
    )


def advice(origin: Origin) -> str:
    """What to do about a number that is not finite."""
    operator = (origin.operator or "").removeprefix("the gradient of ")
    return ADVICE_BY_OPERATOR.get(operator, ADVICE_BY_PLACE[origin.where])
