"""`Port`: one input or output of a Loop.

Knows a kind, a name, a shape; knows nothing of graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kind = Literal["sequence", "invariant", "draw", "state", "total"]


@dataclass(frozen=True)
class Port:
    """One input or output of a Loop.

    kind          sequence: one value a step; invariant: the same at every step; draw: random numbers, one set a step;
                  state: what a delay hands on; total: summed over steps
    rows          whether it has the row axis in front (a total without it is summed over rows too)
    shape         the sizes of the other axes
    distribution  of a draw: "uniform" on [0, 1) or "normal"
    """

    kind: Kind
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    rows: bool = True
    distribution: str | None = None

    def __str__(self) -> str:
        sizes = ", ".join(["rows"] * self.rows + [str(n) for n in self.shape])
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"
