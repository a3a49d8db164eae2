"""What changes the parameters, and at which rate.

Knows optimisers of torch; knows nothing of networks or text. `progress` is the share of the training that is done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from leporello.language.config import Config

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
