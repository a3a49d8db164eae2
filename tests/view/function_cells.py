"""Cells written as one function, and their textbook view: what its tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import leporello as lp
from leporello.draw.picture import Picture

X = torch.zeros(2, 3)


class Written(lp.Cell):
    """A cell from a function of (its matrices A to E, x, state)."""

    def __init__(self, step: Callable[..., Any], **leaves: int) -> None:
        super().__init__(**leaves)
        self.step = step
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(3, 3) for _ in range(5))

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.step(self, x, state)


def drawn(step: Callable[..., Any], x: Any = X, **leaves: int) -> Picture:
    return lp.fold(Written(step, **leaves), x).picture()
