"""Jordan's cells for tokens: what is fed back of the scores is the probability of each token.

A true value fed back in its place is a one-hot row, so that both are probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells import ElmanJordan, Jordan


class TokenJordan(Jordan):
    """Jordan with feed(o) = softmax o."""

    def feed(self, output: Tensor) -> Tensor:
        return torch.softmax(output, -1)


class TokenElmanJordan(ElmanJordan):
    """ElmanJordan with feed(o) = softmax o."""

    def feed(self, output: Tensor) -> Tensor:
        return torch.softmax(output, -1)
