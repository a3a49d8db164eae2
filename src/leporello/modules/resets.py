"""`resets_after`: from the done flags of reinforcement learning to resets."""

from __future__ import annotations

import torch
from torch import Tensor


def resets_after(dones: Tensor, first: Tensor | None = None) -> Tensor:
    """Resets one step later: an episode that is done after step t begins anew before step t+1.

    dones   (length, batch) booleans
    first   (batch,) booleans: whether the first step begins anew (not by default)

    >>> resets_after(torch.tensor([[False], [True], [False]])).squeeze(1).tolist()
    [False, False, True]
    """
    dones = dones.bool()
    begin = torch.zeros_like(dones[:1]) if first is None else first.bool().unsqueeze(0)
    return torch.cat([begin, dones[:-1]])
