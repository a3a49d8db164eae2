"""`LoweringContext`: what the rules of lowering may ask for while a kernel is made.

`lower.py` provides it; the rules in expressions.py, views.py and partial_writes.py take it as their first argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import fx

from leporello.kernel.description import Apply, Expression, dtype_of_expression
from leporello.kernel.index import Index, Variable

Positions = tuple[Index | None, ...]  # along the axes of a value; None stands on the row axis


class LoweringContext(Protocol):
    """A kernel while it is made.

    ranges   how many values each variable of the present loops takes
    """

    ranges: dict[Variable, int]

    def at(self, node: fx.Node, index: Positions) -> Expression:
        """The value of a node at an index: a load if it is in memory, else the operator's own expression."""
        ...

    def variables(self, sizes: Sequence[int], letter: str = "i") -> list[Index]:
        """Loop variables for loops over these sizes; their ranges are noted."""
        ...

    def with_rows(self, node: fx.Node, indices: Sequence[Index]) -> Positions:
        """An index of a node's value from those of its features: the row axis is put between them."""
        ...


def cast(value: Expression, dtype: torch.dtype) -> Expression:
    """A value in another type, where it has another."""
    return value if dtype_of_expression(value) == dtype else Apply("cast", (value,), dtype)
