"""Masks and Dale's law on a recurrent matrix: which connections exist, and with which sign.

Rows of the matrix belong to receiving units, columns to sending ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError


def constrained(W: Tensor, signs: Tensor | None, mask: Tensor | None) -> Tensor:
    """The matrix with its constraints: |W| times signs, column by column (W where the sign is 0), times the mask."""
    if signs is not None:
        W = torch.where(signs == 0, W, W.abs() * signs)
    if mask is not None:
        W = W * mask
    return W


def balanced(W: Tensor, signs: Tensor | None, mask: Tensor | None) -> Tensor:
    """An initial W, scaled: excitation and inhibition balance, and the constrained matrix has a spectral radius near 1.

    Without this the positive mean of |W| is an eigenvalue that grows with the number of units (Song, Yang and Wang
    2016). Without cycles the spectral radius is 0, and W is not scaled.
    """
    dtype, W = (
        W.dtype,
        W.to(torch.promote_types(W.dtype, torch.float32)),
    )  # half precision is too coarse for the scaling
    if signs is not None:
        excitatory, inhibitory = (signs > 0).sum(), (signs < 0).sum()
        ratio = torch.where(inhibitory > 0, excitatory / inhibitory.clamp_min(1), 1.0)
        W = torch.where((signs < 0) & (excitatory > 0), W * ratio, W)
    radius = _spectral_radius(constrained(W, signs, mask))
    return (W / torch.where(radius > 0, radius, 1.0)).to(dtype)


def _spectral_radius(W: Tensor) -> Tensor:
    """Gelfand's formula: the n-th root of |W^n|, n = 1024, by squaring; eigenvalues can take 100 times longer."""
    log = torch.zeros((), dtype=W.dtype)
    for k in range(11):
        size = W.norm()
        log = log + size.log() / 2**k
        W = W / size.clamp_min(torch.finfo(W.dtype).tiny)  # 0 for a matrix without cycles
        W = W @ W
    return log.exp()


def signs_of(signs: Sequence[float] | Tensor, hidden: int) -> Tensor:
    """The argument `signs` as a tensor: +1, -1 or 0 for each sending unit."""
    return _entries("signs", signs, (hidden,), {-1.0, 0.0, 1.0}, "+1 (excites), -1 (inhibits) or 0 (free) per unit")


def mask_of(mask: Sequence[Sequence[float]] | Tensor, hidden: int) -> Tensor:
    """The argument `mask` as a tensor: 1 where a connection exists, 0 where it does not."""
    return _entries("mask", mask, (hidden, hidden), {0.0, 1.0}, "0 or 1 for each connection, a row per receiving unit")


def _entries(name: str, argument: Any, shape: tuple[int, ...], allowed: set[float], meaning: str) -> Tensor:
    """An argument as a float32 tensor on the CPU; raises unless it has the shape and allowed values only.

    name, meaning   of the argument, and what its values mean, for the error
    """
    try:
        values = torch.as_tensor(argument, dtype=torch.float32, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError):
        values = None
    if values is None or values.shape != shape or not set(values.flatten().tolist()) <= allowed:
        came = repr(argument) if values is None else f"{list(values.shape)} with values from {_range(values)}"
        raise ArgumentError(
            f"'{name}' does not fit {shape[0]} hidden units.",
            came=came,
            expected=f"shape {list(shape)}: {meaning}",
            tries=f"leave {name} out for a net without them",
        )
    return values


def _range(values: Tensor) -> str:
    return f"{values.min().item():g} to {values.max().item():g}" if values.numel() else "none"
