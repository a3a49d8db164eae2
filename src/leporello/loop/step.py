"""One step of a cell, a plain module or a function: how it is called, and what can be observed while it runs.

`take` calls it and checks the structure of what it returns. `observed` collects the names of values inside it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leporello.errors import ArgumentError, StateMismatch
from leporello.loop.cell import Cell, collected_names
from leporello.loop.context import context_argument, read_context
from leporello.loop.state import Tree, described, leaf_names, same_structure

Step = Callable[[Any, Any], tuple[Any, Any]]
_FROM_TORCH = "lp.from_torch(cell)"


class FunctionCell(nn.Module):
    """A function (x, state) -> (output, next state) as a module."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, state: Any, *context: Any) -> tuple[Any, Any]:
        return self.function(x, state, *context)


def as_module(cell: Any) -> nn.Module:
    """A cell, a plain module or a function as a module."""
    if isinstance(cell, nn.Module):
        if isinstance(cell, nn.RNNBase):
            raise ArgumentError(
                f"torch.nn.{type(cell).__name__} reads a whole sequence; a cell is one step.",
                tries="lp.from_torch(module) gives the same network here",
            )
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
    """The name of the state in the step's own signature; "state" where it has no second argument."""
    names = list(signature_of(cell).parameters)
    return names[1] if len(names) > 1 else "state"


def signature_of(cell: nn.Module) -> inspect.Signature:
    """The signature of a step, without self."""
    if isinstance(cell, torch.jit.ScriptModule):  # whose methods are no Python functions
        names = [argument.name for argument in cell.forward.schema.arguments[1:]]  # type: ignore[attr-defined]
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    return inspect.signature(cell.function if isinstance(cell, FunctionCell) else cell.forward)


def context_name(cell: nn.Module) -> str:
    """The name of the context in the step's own signature; "context" where it has no third argument."""
    argument = context_argument(signature_of(cell))
    return "context" if argument is None else argument.name


def state_names(cell: nn.Module, state: Tree) -> list[str]:
    """The names of a state's leaves: those declared, else keys and fields, else the argument's name."""
    if isinstance(cell, Cell):
        passed = state is not None and getattr(cell, "state_is_passed", False)
        return cell.names_of(state) if passed else cell.state_names()  # type: ignore[operator]
    if state == () or state is None:
        return []
    return leaf_names(state, state_argument(cell))


def place_of(cell: nn.Module) -> str:
    """A cell for error messages: its class, file and line; a wrapper of ours names the cells it holds."""
    if type(cell).__module__.startswith(("leporello.nets.", "leporello.loop.")) and not isinstance(cell, FunctionCell):
        inside = ", ".join(place_of(part) for part in _parts(cell))
        option = type(cell).__name__.startswith("_") or type(cell).__module__.startswith("leporello.loop.")
        return inside if option else f"{type(cell).__name__} of {inside}"
    source = cell.function if isinstance(cell, FunctionCell) else type(cell)
    name = getattr(source, "__name__", type(source).__name__)
    try:
        path = inspect.getsourcefile(source) or ""
        line = inspect.getsourcelines(source)[1]
    except (OSError, TypeError):
        return name
    return f"{name} ({path.rsplit('/', 1)[-1]}, line {line})"


def _parts(cell: nn.Module) -> list[nn.Module]:
    parts = [part for child in cell.children() for part in (child if isinstance(child, nn.ModuleList) else [child])]
    modules = [part for part in parts if not isinstance(part, nn.ParameterDict)]  # that of learned initial states
    return [part for part in modules if isinstance(part, Cell)] or modules  # Stateful holds a module that is no cell


def take(cell: nn.Module, x: Tree, state: Tree) -> tuple[Tree, Tree]:
    """Run one step, and return its output and the next state, in the structure of `state`.

    A step with a third argument gets the context of the call.
    Where the cell defines `feed`, the feedback leaf is feed(output). A step that returns anything but a pair, or a
    state of another structure, is refused.
    """
    named = cell.with_names(state) if isinstance(cell, Cell) else state
    hooked = cell._forward_hooks or cell._forward_pre_hooks
    run = functools.partial(nn.Module.__call__, cell) if hooked else cell.forward  # a call runs the hooks
    result = run(x, named, *_context_for(cell))
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ArgumentError(
            "a step returns two results, the output and the next state.",
            cell=place_of(cell),
            came=_counted(result),
            expected="(output, next state)",
            tries=_FROM_TORCH
            if isinstance(cell, nn.RNNCellBase)
            else "end forward with `return output, state`; the state is () for a cell without one",
        )
    output, after = result
    next_state = same_structure(after, state)
    if next_state is None:
        raise StateMismatch(
            "the state changes its structure during one step.",
            cell=place_of(cell),
            goes_in=described(state),
            comes_out=described(after),
            tries=_FROM_TORCH
            if isinstance(cell, nn.RNNCellBase)
            else "return the state in the structure it came in with",
        )
    return output, _with_feedback(cell, output, next_state)


def _context_for(cell: nn.Module) -> tuple[Any, ...]:
    """The third argument of a step, in a tuple: the context of the call; empty where the step does not take one."""
    argument = _context_argument(cell)
    return () if argument is None else passed_context(cell, argument)


def passed_context(cell: nn.Module, argument: inspect.Parameter) -> tuple[Any, ...]:
    """The context of the call, in a tuple, for a step that takes it as this argument; refused where there is none."""
    context = read_context()
    if context is not None:
        return (context,)
    if argument.default is not inspect.Parameter.empty:
        return ()
    raise ArgumentError(
        f"the step reads a context, '{argument.name}', and the call has none.",
        cell=place_of(cell),
        expected="the argument 'context': a tensor, or a tree of them, with the batch in front",
        tries="net(inputs, context=...); a step of one input and one state has no third argument",
    )


def _context_argument(cell: nn.Module) -> inspect.Parameter | None:
    """The third argument of a step, kept with the function that has it: a step by hand is taken many times."""
    if isinstance(cell, torch.jit.ScriptModule) or "forward" in vars(cell):
        return context_argument(signature_of(cell))
    function = cell.function if isinstance(cell, FunctionCell) else type(cell).forward
    try:
        return _context_arguments[function]
    except (KeyError, TypeError):  # new, or what no weak reference can refer to
        argument = context_argument(signature_of(cell))
    with contextlib.suppress(TypeError):
        _context_arguments[function] = argument
    return argument


_context_arguments: weakref.WeakKeyDictionary[Any, inspect.Parameter | None] = weakref.WeakKeyDictionary()


def _counted(result: Any) -> str:
    if isinstance(result, tuple):
        return f"{len(result)} values: {described(result)}"
    return "None" if result is None else f"one value: {described(result)}"


def _with_feedback(cell: nn.Module, output: Tree, state: Tree) -> Tree:
    """The state with feed(output) in the feedback leaf, where a cell defines `feed`."""
    if not isinstance(cell, Cell) or type(cell).feed is Cell.feed:
        return state
    leaf = cell.feedback_leaf()
    if leaf is None:
        return state
    leaves, spec = torch.utils._pytree.tree_flatten(state)
    leaves[cell.state_names().index(leaf)] = cell.feed(output)
    return torch.utils._pytree.tree_unflatten(leaves, spec)


@contextmanager
def observed(cell: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the named values of a step that runs in the block.

    The block gets a dict of the values by name, complete at its end. Named are what is passed to `lp.named` and the
    local variables of the cells' own forward (of an inner cell with its path: `cells.0.h`); where it calls that of its
    base, those too that only the base has. A profile hook reads these when a forward returns, in this thread only. It
    is off inside of torch's functions, where it would take as long as the trace.
    """
    values: dict[str, Tensor] = {}
    paths = {id(module): path for path, module in cell.named_modules() if isinstance(module, Cell) or module is cell}
    codes = {code for module in cell.modules() if id(module) in paths for code in forwards_of(type(module))}
    if isinstance(cell, FunctionCell) and hasattr(cell.function, "__code__"):
        codes.add(cell.function.__code__)

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if event != "return" or frame.f_code not in codes:
            return
        path = paths.get(id(frame.f_locals.get("self")), "")
        for name, value in frame.f_locals.items():
            if isinstance(value, Tensor):
                values[f"{path}.{name}" if path else name] = value

    outer = sys.getprofile()
    with collected_names() as passed_to_named:
        sys.setprofile(on_event)
        try:
            with _HookOffInTorch(on_event):
                yield values
        finally:
            _restore_profiler(outer)
        values.update(passed_to_named)


class _HookOffInTorch(TorchFunctionMode):
    """While active, the profile hook is off inside of torch's functions."""

    def __init__(self, hook: Any) -> None:
        super().__init__()
        self.hook = hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sys.setprofile(None)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            sys.setprofile(self.hook)


def _restore_profiler(outer: Any) -> None:
    """Install the profiler that was active before; cProfile's is an object that has to be enabled, not a function."""
    sys.setprofile(outer if outer is None or callable(outer) else None)
    if hasattr(outer, "enable"):
        outer.enable()


def forwards_of(kind: type) -> list[CodeType]:
    """The code of a class's forward, and of those of its bases, which it may call: `super().forward(x, h)`.

    Of torch's classes only the one that the class itself has for its own.
    """
    own = inspect.getattr_static(kind, "forward", None)
    bases = [base for base in kind.__mro__ if not base.__module__.startswith("torch.")]
    functions = [own, *(vars(base).get("forward") for base in bases)]
    return [function.__code__ for function in functions if hasattr(function, "__code__")]
