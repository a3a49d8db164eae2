"""`record`: a cell whose output also holds chosen values of every step."""

from __future__ import annotations

from typing import Any

import torch

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, collected_names, features_of
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import place_of, take


class Recorded(Cell):
    """A cell with the output `(output, {"h": …, "r": …})`; see `record`."""

    def __init__(self, cell: Cell, names: tuple[str, ...]) -> None:
        super().__init__()
        self.cell = cell
        self.names = names or tuple(cell.state_names())
        self.inputs = features_of(cell)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        with collected_names() as said:
            output, after = take(self.cell, x, state)
        known = {**said, **dict(zip(self.cell.state_names(), leaves_of(after), strict=False))}
        for name in self.names:
            if name not in known:
                raise ArgumentError(
                    f"the cell has no value '{name}' to record.",
                    cell=place_of(self.cell),
                    known=", ".join(known) or "none",
                    tries=f'name it in the step: lp.named(value, "{name}")',
                )
        return (output, {name: known[name] for name in self.names}), after

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return self.cell.initial_state(batch, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return self.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf()


def record(cell: Cell, *names: str) -> Recorded:
    """A cell whose output is `(output, {name: value})` at every step, differentiable.

    names   state leaves (their next values) and what `lp.named` names in the step; all state leaves by default

    >>> from leporello.cells import LSTM
    >>> (output, values), state = record(LSTM(3, 4), "c")(torch.zeros(2, 3))
    >>> values["c"].shape
    torch.Size([2, 4])
    """
    if not isinstance(cell, Cell):
        raise ArgumentError(
            "only cells that declare their state can be recorded.", came=type(cell).__name__, expected="lp.Cell"
        )
    return Recorded(cell, names)
