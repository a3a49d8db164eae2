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
from leporello.loop.cell import Cell, listening
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
    if callable(cell) and not isinstance(cell, type):
        return FunctionCell(cell)
    raise ArgumentError(
        "the argument 'cell' is no step.",
        came=f"the class {cell.__name__}" if isinstance(cell, type) else type(cell).__name__,
        expected="an lp.Cell, a module or a function (x, state) -> (output, next state)",
        tries=f"{cell.__name__}(...) makes one" if isinstance(cell, type) else None,
    )


def state_argument(cell: nn.Module) -> str:
    """The name of the state in the step's own signature."""
    forward = cell.function if isinstance(cell, FunctionCell) else cell.forward
    names = list(inspect.signature(forward).parameters)
    return names[1] if len(names) > 1 else "state"


def state_names(cell: nn.Module, state: Tree) -> list[str]:
    """The names of a state's leaves: those declared, else keys and fields, else the argument's name."""
    if isinstance(cell, Cell):
        return cell.state_names()
    if state == () or state is None:
        return []
    return leaf_names(state, state_argument(cell))


def place_of(cell: nn.Module) -> str:
    """A cell in the user's words: its class, file and line; one of ours that goes round others names them."""
    if type(cell).__module__.startswith("leporello.nets."):
        inside = ", ".join(place_of(part) for part in _parts(cell))
        return inside if type(cell).__name__.startswith("_") else f"{type(cell).__name__} of {inside}"
    source = cell.function if isinstance(cell, FunctionCell) else type(cell)
    name = getattr(source, "__name__", type(source).__name__)
    try:
        path = inspect.getsourcefile(source) or ""
        line = inspect.getsourcelines(source)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({path.rsplit('/', 1)[-1]}, line {line})"


def _parts(cell: nn.Module) -> list[nn.Module]:
    found = [part for child in cell.children() for part in (child if isinstance(child, nn.ModuleList) else [child])]
    return [part for part in found if isinstance(part, Cell)]


def take(cell: nn.Module, x: Tree, state: Tree) -> tuple[Tree, Tree]:
    """One step: output and next state, the state in the structure it came in and the feedback leaf fed."""
    result = cell.forward(x, state)
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(
            "a step returns two results, the output and the next state.",
            cell=place_of(cell),
            came=_counted(result),
            expected="(output, next state)",
            tries="lp.from_torch(cell)"
            if isinstance(cell, nn.RNNCellBase)
            else "end forward with `return output, state`; the state is () for a cell without one",
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


def _counted(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values: {described(result)}"
    return "None" if result is None else f"one value: {described(result)}"


def _fed(cell: nn.Module, output: Tree, state: Tree) -> Tree:
    """The feedback leaf carries feed(output) where a cell defines `feed`."""
    if not isinstance(cell, Cell) or type(cell).feed is Cell.feed:
        return state
    leaf = cell.feedback_leaf()
    if leaf is None:
        return state
    leaves, spec = torch.utils._pytree.tree_flatten(state)
    leaves[cell.state_names().index(leaf)] = cell.feed(output)
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
            _profile_again(outer)
        heard.update(said)


def _profile_again(outer: Any) -> None:
    """The profiler that was at work before; cProfile's is an object that has to be started, not a function."""
    sys.setprofile(outer if outer is None or callable(outer) else None)
    if hasattr(outer, "enable"):
        outer.enable()


def _plain(module: nn.Module) -> bool:
    return hasattr(type(module).forward, "__code__")
