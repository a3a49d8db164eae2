"""`Feedback`: any cell made autoregressive: it reads what it put out a step before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import take


class Feedback(Cell):
    """A cell that reads feed(o(t-1)), joined with x(t) if there is an input.

    cell   the step inside; it reads the input's features and behind them what is fed back
    feed   what is fed back of an output: the output itself by default, softmax or a one-hot choice for discrete ones
    size   the size of what is fed back, where the cell has no attribute `outputs`

    The state is the pair of the cell's state and `fed`; `targets` and `forcing` act on `fed`, as for Jordan.

    >>> from leporello.cells import LSTM
    >>> decoder = Feedback(LSTM(3 + 4, 4))
    >>> output, state = decoder(torch.zeros(2, 3))
    >>> output.shape, state[1].shape
    (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(self, cell: Cell, feed: Callable[[Any], Tensor] | None = None, *, size: int | None = None) -> None:
        super().__init__()
        if not isinstance(cell, Cell):
            raise ArgumentError(
                "feedback goes round a cell that declares its state.",
                came=type(cell).__name__,
                expected="lp.Cell",
                tries="derive the cell from lp.Cell",
            )
        self.cell = cell
        self.way = feed
        self.size = size if size is not None else _fed_size(cell, feed)

    def feed(self, output: Any) -> Any:
        return output if self.way is None else self.way(output)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        own, fed = state
        read = fed if not leaves_of(x) or x is None else torch.cat([x, fed.to(x.dtype)], -1)
        output, own = take(self.cell, read, own)
        return output, (own, self.feed(output))

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        parameter = next(self.parameters(), None)
        device = device or (parameter.device if parameter is not None else None)
        dtype = dtype or (parameter.dtype if parameter is not None else None)
        own = self.cell.initial_state(batch, device=device, dtype=dtype)
        return own, torch.zeros(batch, self.size, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return [*self.cell.state_names(), "fed"]

    def feedback_leaf(self) -> str:
        return "fed"


def _fed_size(cell: Cell, feed: Callable[[Any], Tensor] | None) -> int:
    outputs = getattr(cell, "outputs", None)
    if not isinstance(outputs, int):
        raise ArgumentError(
            "the size of what is fed back is not known.",
            came=f"{type(cell).__name__} without an attribute 'outputs'",
            expected="the argument 'size'",
            tries="lp.Feedback(cell, feed, size=10)",
        )
    return outputs if feed is None else int(feed(torch.zeros(1, outputs)).shape[-1])
