"""`Layout`: where the leaves of a state, an input or an output lie in one vector of real numbers per row.

Integers have no derivative and no place in it; a complex number takes two. Knows ports; knows nothing of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.loop.port import Port


@dataclass(frozen=True)
class Layout:
    """The floating leaves side by side."""

    ports: tuple[Port, ...]
    device: torch.device

    @staticmethod
    def of(ports: Iterable[Port], device: torch.device) -> Layout:
        return Layout(tuple(port for port in ports if _floats(port)), device)

    @property
    def size(self) -> int:
        """How many numbers a row has."""
        return sum(map(_size, self.ports))

    @property
    def places(self) -> dict[str, slice]:
        """Where each leaf lies."""
        found, start = {}, 0
        for port in self.ports:
            found[port.name] = slice(start, start + _size(port))
            start += _size(port)
        return found

    def joined(self, leaves: Sequence[Tensor], *axes: int) -> Tensor:
        """From leaves (*axes, *shape), in the order of the ports, to (*axes, size)."""
        if not leaves:
            return torch.zeros(*axes, 0, dtype=torch.float64, device=self.device)
        parts = []
        for leaf, port in zip(leaves, self.ports, strict=True):
            real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            parts.append(real.reshape(*axes, _size(port)))
        return torch.cat(parts, -1)

    def parted(self, vector: Tensor) -> list[Tensor]:
        """From (rows, size) back to leaves (rows, *shape)."""
        leaves = []
        for port, place in zip(self.ports, self.places.values(), strict=True):
            part = vector[:, place]
            if port.dtype.is_complex:
                part = torch.view_as_complex(part.reshape(-1, *port.shape, 2))
            leaves.append(part.reshape(-1, *port.shape))
        return leaves


def _floats(port: Port) -> bool:
    return port.dtype.is_floating_point or port.dtype.is_complex


def _size(port: Port) -> int:
    return math.prod(port.shape) * (2 if port.dtype.is_complex else 1)
