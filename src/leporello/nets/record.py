"""`record`: a step whose output also holds chosen values of every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, collected_names, features_of
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import FunctionCell, as_module, forwards_of, observed, place_of, state_names, take

Chosen = str | int


class Recorded(Cell):
    """A cell with the output `(output, {"h": …, "r": …})`; see `record`."""

    def __init__(self, cell: Cell, names: tuple[Chosen, ...]) -> None:
        super().__init__()
        self.cell = cell
        self.names = names or tuple(cell.state_names())
        self.inputs = features_of(cell)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return _recorded(self.cell, x, state, self.names)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return self.cell.initial_state(batch, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return self.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf()


class RecordedModule(nn.Module):
    """A plain module or function with the output `(output, {"h": …, "r": …})`; see `record`."""

    is_step = True  # though it is one of our modules and no Cell

    def __init__(self, cell: nn.Module, names: tuple[Chosen, ...]) -> None:
        super().__init__()
        self.cell = cell
        self.names = names

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return _recorded(self.cell, x, state, self.names)


def _recorded(cell: nn.Module, x: Any, state: Any, names: tuple[Chosen, ...]) -> tuple[Any, Any]:
    """One step, and its output with the values of the names; of all state leaves where there are no names."""
    with observed(cell) if _reads_locals(cell, names) else collected_names() as inside:
        output, after = take(cell, x, state)
    leaves, of_state = leaves_of(after), state_names(cell, state)
    known: dict[Chosen, Any] = {name: value for name, value in inside.items()}  # noqa: C416
    known.update(zip(of_state, leaves, strict=False))
    by_position: dict[Chosen, Any] = dict(enumerate(leaves))
    for name in names:
        if name not in known and name not in by_position:
            raise ArgumentError(
                f"the cell has no value {name!r} to record.",
                cell=place_of(cell),
                known=", ".join(map(str, known)) or "none",
                tries=f"a position of the state from 0 to {len(leaves) - 1}"
                if isinstance(name, int)
                else f'name it in the step: lp.named(value, "{name}")',
            )
    values = known | by_position
    return (output, {name: values[name] for name in names or of_state}), after


def _reads_locals(cell: nn.Module, names: tuple[Chosen, ...]) -> bool:
    """Whether one of the names is a local variable of the step, which is not one of a cell's own state leaves."""
    if isinstance(cell, FunctionCell):
        variables = set(getattr(getattr(cell.function, "__code__", None), "co_varnames", ()))
    else:
        variables = {name for code in forwards_of(type(cell)) for name in code.co_varnames}
    declared = cell.state_names() if isinstance(cell, Cell) else []
    return any(name in variables and name not in declared for name in names)


def record(cell: Any, *names: Chosen) -> Recorded | RecordedModule:
    """A step whose output is `(output, {name: value})` at every step, differentiable.

    cell    a cell, or any module or function (x, state) -> (output, next state)
    names   state leaves (their next values) by name or by position, what `lp.named` names in the step, and local
            variables of the step as they are when it returns; all state leaves by default

    >>> from leporello.cells import LSTM
    >>> (output, values), state = record(LSTM(3, 4), "c")(torch.zeros(2, 3))
    >>> values["c"].shape
    torch.Size([2, 4])
    >>> def step(x, state):
    ...     h, c = state
    ...     a = x + h
    ...     return a, (torch.tanh(a), c + 1)
    >>> (output, values), state = record(step, 0, "a")(torch.ones(2), (torch.ones(2), torch.zeros(2)))
    >>> values["a"]
    tensor([2., 2.])
    """
    if type(cell).__module__.startswith("leporello.nets.") and not isinstance(cell, (Cell, RecordedModule)):
        raise ArgumentError(
            "a network runs over a sequence; its step is what can be recorded.",
            came=type(cell).__name__,
            expected="an lp.Cell, a module or a function (x, state) -> (output, next state)",
            tries="lp.Recurrent(lp.record(cell, ...))",
        )
    if isinstance(cell, nn.RNNCellBase):
        raise ArgumentError(
            "this module of torch returns a state and no output, so it is no step.",
            came=type(cell).__name__,
            tries="lp.record(lp.from_torch(cell))",
        )
    return Recorded(cell, names) if isinstance(cell, Cell) else RecordedModule(as_module(cell), names)
