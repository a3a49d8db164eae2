"""One step as a function of flat values: the cell with its parameters handed in, its feedback fed, its names heard.

Knows how a cell is called and what its forward names; knows nothing of graphs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError, StateMismatch
from leporello.loop.cell import Cell
from leporello.loop.naming import listening
from leporello.loop.state import Tree, described, leaf_names, same_structure

Step = Callable[[Any, Any], tuple[Any, Any]]


class FunctionCell(nn.Module):
    """A plain function with a cell's arguments, as a module."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.function(x, state)


def as_module(cell: Any) -> nn.Module:
    """A cell, a plain module or a function as a module."""
    if isinstance(cell, nn.Module):
        return cell
    if callable(cell):
        return FunctionCell(cell)
    raise ArgumentError(
        "the argument 'cell' is no step.",
        came=type(cell).__name__,
        expected="an lp.Cell, a module or a function (x, state) -> (output, next state)",
    )


def state_argument(cell: nn.Module) -> str:
    """The name of the state in the step's own signature."""
    forward = cell.function if isinstance(cell, FunctionCell) else cell.forward
    names = [name for name in inspect.signature(forward).parameters]
    return names[1] if len(names) > 1 else "state"


def state_names(cell: nn.Module, state: Tree) -> list[str]:
    """The names of a state's leaves: those declared, else keys and fields, else the argument's name."""
    if isinstance(cell, Cell):
        return cell.state_names()
    if state == () or state is None:
        return []
    return leaf_names(state, state_argument(cell))


def place_of(cell: nn.Module) -> str:
    """A cell in the user's words: its class, file and line."""
    source = cell.function if isinstance(cell, FunctionCell) else type(cell)
    name = getattr(source, "__name__", type(cell).__name__)
    try:
        path = inspect.getsourcefile(source) or ""
        line = inspect.getsourcelines(source)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({path.rsplit('/', 1)[-1]}, line {line})"


def take(cell: nn.Module, x: Tree, state: Tree) -> tuple[Tree, Tree]:
    """One step: output and next state, the state in the structure it came in and the feedback leaf fed."""
    result = cell.forward(x, state)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(
            "a step returns two results, the output and the next state.",
            cell=place_of(cell),
            came=described(result),
            tries="end forward with `return output, state` (state is () for a cell without one)",
        )
    output, after = result
    kept = same_structure(after, state)
    if kept is None:
        raise StateMismatch(
            "the state changes its structure during one step.",
            cell=place_of(cell),
            goes_in=described(state),
            comes_out=described(after),
            tries="return the state in the structure it came in with",
        )
    return output, _fed(cell, output, kept)


def _fed(cell: nn.Module, output: Tree, state: Tree) -> Tree:
    """The feedback leaf carries feed(output) where a cell defines `feed`."""
    leaf = cell.feedback_leaf() if isinstance(cell, Cell) else None
    if leaf is None or type(cell).feed is Cell.feed:  # type: ignore[union-attr]
        return state
    leaves, spec = torch.utils._pytree.tree_flatten(state)
    names = cell.state_names()  # type: ignore[operator]
    leaves[names.index(leaf)] = cell.feed(output)  # type: ignore[operator]
    return torch.utils._pytree.tree_unflatten(leaves, spec)


@contextmanager
def names_heard(cell: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Values a step names while it runs: by `lp.named`, and the local variables of the cells' own forward."""
    heard: dict[str, Tensor] = {}
    paths = {id(module): path for path, module in cell.named_modules() if isinstance(module, Cell) or module is cell}
    codes = {type(module).forward.__code__ for module in cell.modules() if id(module) in paths and _plain(module)}
    if isinstance(cell, FunctionCell) and hasattr(cell.function, "__code__"):
        codes.add(cell.function.__code__)

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if event != "return" or frame.f_code not in codes:
            return
        path = paths.get(id(frame.f_locals.get("self")), "")
        for name, value in frame.f_locals.items():
            if isinstance(value, Tensor):
                heard[f"{path}.{name}" if path else name] = value

    outer = sys.getprofile()
    with listening() as said:
        sys.setprofile(on_event)
        try:
            yield heard
        finally:
            sys.setprofile(outer)
        heard.update(said)


def _plain(module: nn.Module) -> bool:
    return hasattr(type(module).forward, "__code__")
