"""Random texts that have something to learn."""

from __future__ import annotations

import torch
from torch import Tensor


def skewed(length: int, size: int, seed: int = 0) -> Tensor:
    """Tokens of which low ones are frequent and high ones rare; a third repeats what stood seven tokens before."""
    generator = torch.Generator().manual_seed(seed)
    tokens = (size * torch.rand(length, generator=generator) ** 3).long()
    again = torch.rand(length, generator=generator) < 1 / 3
    for i in range(7, length):
        if again[i]:
            tokens[i] = tokens[i - 7]
    return tokens
