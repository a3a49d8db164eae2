"""Who sends to whom, and with which sign: masks and Dale's law on a recurrent matrix.

Knows matrices whose columns belong to the sending units; knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError


def wired(W: Tensor, signs: Tensor | None, mask: Tensor | None) -> Tensor:
    """The matrix that acts: |W| signs column by column (W itself where the sign is 0), times the mask."""
    if signs is not None:
        W = torch.where(signs == 0, W, W.abs() * signs)
    if mask is not None:
        W = W * mask
    return W


def balanced(W: Tensor, signs: Tensor | None, mask: Tensor | None) -> Tensor:
    """A fresh W scaled: excitation and inhibition weigh the same, the wired matrix has a spectral radius near 1.

    Without this the positive mean of |W| is an eigenvalue that grows with the number of units (Song, Yang and Wang
    2016). A wiring without cycles has no spectral radius to scale; it stays as it is.
    """
    dtype, W = W.dtype, W.to(torch.promote_types(W.dtype, torch.float32))  # half precision: too coarse to scale by
    if signs is not None:
        excitatory, inhibitory = (signs > 0).sum(), (signs < 0).sum()
        stronger = torch.where(inhibitory > 0, excitatory / inhibitory.clamp_min(1), 1.0)
        W = torch.where((signs < 0) & (excitatory > 0), W * stronger, W)
    radius = _spectral_radius(wired(W, signs, mask))
    return (W / torch.where(radius > 0, radius, 1.0)).to(dtype)


def _spectral_radius(W: Tensor) -> Tensor:
    """Gelfand's formula: the n-th root of |W^n|, n = 1024, by squaring; eigenvalues can take a hundred times longer."""
    log = torch.zeros((), dtype=W.dtype)
    for k in range(11):
        size = W.norm()
        log = log + size.log() / 2**k
        W = W / size.clamp_min(torch.finfo(W.dtype).tiny)  # 0 where there is no cycle
        W = W @ W
    return log.exp()


def signs_of(given: Sequence[float] | Tensor, hidden: int) -> Tensor:
    """+1, -1 or 0 for each of the sending units."""
    return _entries("signs", given, (hidden,), {-1.0, 0.0, 1.0}, "+1 (excites), -1 (inhibits) or 0 (free) per unit")


def mask_of(given: Sequence[Sequence[float]] | Tensor, hidden: int) -> Tensor:
    """1 where a connection exists, 0 where it does not: rows receive, columns send."""
    return _entries("mask", given, (hidden, hidden), {0.0, 1.0}, "0 or 1 for each connection, a row per receiving unit")


def _entries(name: str, given: Any, shape: tuple[int, ...], allowed: set[float], meaning: str) -> Tensor:
    try:
        values = torch.as_tensor(given, dtype=torch.float32, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError):
        values = None
    if values is None or values.shape != shape or not set(values.flatten().tolist()) <= allowed:
        came = repr(given) if values is None else f"{list(values.shape)} with values from {_range(values)}"
        raise ArgumentError(
            f"'{name}' does not fit {shape[0]} hidden units.",
            came=came,
            expected=f"shape {list(shape)}: {meaning}",
            tries=f"leave {name} out for a net without them",
        )
    return values


def _range(values: Tensor) -> str:
    return f"{values.min().item():g} to {values.max().item():g}" if values.numel() else "none"
