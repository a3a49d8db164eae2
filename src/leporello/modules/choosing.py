"""`Choosing`: how tokens are chosen from logits, checked: which numbers a call has, and which structure they ask for.

Knows the user's words for what is wrong; knows nothing of networks.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.rewrite.sample import TEMPERATURE, TOP_K, TOP_P


@dataclass(frozen=True)
class Choosing:
    """Temperature, and what is left to draw from.

    top_k, top_p   None where all tokens are
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _refuse("temperature", self.temperature, _is_number(self.temperature) and 0 <= self.temperature < math.inf,
                "a number from 0 up: 0 for the most probable token, 1 for the network's own probabilities")  # fmt: skip
        whole = isinstance(self.top_k, numbers.Integral) and not isinstance(self.top_k, bool)
        _refuse("top_k", self.top_k, self.top_k is None or (whole and self.top_k >= 1),
                "an integer of at least 1: so many most probable tokens; or None for all")  # fmt: skip
        _refuse("top_p", self.top_p, self.top_p is None or (_is_number(self.top_p) and 0 < self.top_p <= 1),
                "a number above 0 and up to 1: a probability; or None for all tokens")  # fmt: skip

    def structure(self, size: int) -> dict[str, bool]:
        """The options of `sample` for so many tokens; numbers that change nothing ask for nothing."""
        greedy = self.temperature == 0
        return {
            "greedy": greedy,
            "top_k": not greedy and self.top_k is not None and self.top_k < size,
            "top_p": not greedy and self.top_p is not None and self.top_p < 1,
        }

    def values(self, dtype: torch.dtype, device: torch.device) -> dict[tuple[str, str], Tensor]:
        """The numbers as invariants of a sampled loop."""
        found = {TEMPERATURE: self.temperature, TOP_K: self.top_k, TOP_P: self.top_p}
        return {
            ("invariant", name): torch.tensor(float(value), dtype=dtype, device=device)
            for name, value in found.items()
            if value is not None
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _refuse(argument: str, value: Any, fits: bool, expected: str) -> None:
    if not fits:
        raise ArgumentError(f"the argument '{argument}' is out of range.", came=repr(value), expected=expected)
