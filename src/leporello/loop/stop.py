"""The operator `stop`: a value through which no gradient passes, as the user's `detach` and `no_grad` mean it.

An operator of its own, because autograd leaves detached values in traced gradients that mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("leporello::stop", mutates_args=())
def _stop(value: Tensor) -> Tensor:
    return value.clone()


@_stop.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def _no_gradient(context: Any, gradient: Tensor) -> None:
    return None


_stop.register_autograd(_no_gradient)
stop = torch.ops.leporello.stop.default
