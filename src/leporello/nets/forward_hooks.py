"""Forward hooks on the modules of a step: they are called with the values of every step, after the last one.

A step is traced once and not run by its modules, so hooks have no call of their own to watch. While a hook is there, a
call runs a cell whose output also holds what the hooked modules got and returned at each step, as `lp.record` has it;
then the hooks are called with these values, step by step, in the order in which the modules ran. What a hook returns or
writes cannot reach the steps any more: such a hook is refused by name.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from leporello.errors import UntraceableStep
from leporello.loop.batch_axis import BatchAxis
from leporello.loop.cell import Cell, features_of
from leporello.loop.state import Tree, batch_of
from leporello.loop.step import place_of, take

_TABLES = ("_forward_pre_hooks", "_forward_hooks")
_OPTIONS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


def has_forward_hooks(cell: nn.Module) -> bool:
    """Whether a module of a cell has a forward hook or a forward pre-hook, and the cell is no `observed_cell`."""
    modules = list(cell.modules())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    return hooked and not any(hasattr(module, "calls_hooks") for module in modules)


class _Plain:
    """What is no tensor, in a tree of tensors: a node without leaves."""

    def __init__(self, value: Any) -> None:
        self.value = value


pytree.register_pytree_node(
    _Plain,
    lambda plain: ([], plain.value),
    lambda children, value: _Plain(value),
    serialized_type_name="leporello._Plain",
    flatten_with_keys_fn=lambda plain: ([], plain.value),
)


class _Turned:
    """A tensor whose batch is not its first axis, with the batch in front.

    axis   where the batch is; None for a tensor that all rows share
    """

    def __init__(self, tensor: Any, axis: int | None) -> None:
        self.tensor, self.axis = tensor, axis

    def in_place(self) -> Tensor:
        """The value of one step, (batch, ...), as it was."""
        own: Tensor = self.tensor[0] if self.axis is None else self.tensor.movedim(0, self.axis)
        return own


pytree.register_pytree_node(
    _Turned,
    lambda turned: ([turned.tensor], turned.axis),
    lambda children, axis: _Turned(next(iter(children)), axis),
    serialized_type_name="leporello._Turned",
    flatten_with_keys_fn=lambda turned: ([(pytree.SequenceKey(0), turned.tensor)], turned.axis),
)


def observed_cell(cell: nn.Module) -> nn.Module:
    """A cell with the output `(output, calls)`: for each call of a hooked module what it got and returned."""
    if isinstance(cell, BatchAxis):
        return BatchAxis(observed_cell(cell.cell), cell.axes)
    return _Observed(cell) if isinstance(cell, Cell) else _ObservedModule(cell)


class _Observed(Cell):
    """An `lp.Cell` with the calls of its hooked modules in its output."""

    calls_hooks = True

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.inputs = features_of(cell)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return _with_calls(self.cell, x, state)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return self.cell.initial_state(batch, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return self.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf()


class _ObservedModule(nn.Module):
    """A plain module with the calls of its hooked modules in its output."""

    is_step = True  # though it is one of our modules and no Cell
    calls_hooks = True

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return _with_calls(self.cell, x, state)


def _with_calls(cell: nn.Module, x: Any, state: Any) -> tuple[Any, Any]:
    with _recorded(cell) as calls:
        output, after = take(cell, x, state)
    batch = batch_of((x, state))
    return (output, [(_Plain(path), _Plain(when), *_in_rows(values, batch)) for path, when, *values in calls]), after


def _in_rows(values: Tree, batch: Any) -> tuple[Tree, ...]:
    """The values of one call as outputs, with the batch in front; () where that is not possible."""
    try:
        return tuple(pytree.tree_map(lambda leaf: _in_row(leaf, batch), values))
    except _NoRows:
        return ()


class _NoRows(Exception):
    """A value has an axis in which rows are mixed with something else."""


def _in_row(leaf: Any, batch: Any) -> Any:
    if not isinstance(leaf, Tensor):
        if isinstance(leaf, torch.SymInt):
            raise _NoRows
        return leaf if leaf is None else _Plain(leaf)
    axes = [axis for axis, size in enumerate(leaf.shape) if isinstance(size, torch.SymInt)]
    if not axes:  # all rows share it; or it is whole, in a trace for one number of rows
        with_rows = isinstance(batch, int) and leaf.dim() > 0 and leaf.shape[0] == batch
        return leaf if with_rows else _Turned(leaf.unsqueeze(0).expand(batch, *leaf.shape), None)
    if len(axes) > 1 or leaf.shape[axes[0]].node.expr != batch.node.expr:  # type: ignore[attr-defined]
        raise _NoRows
    return leaf if axes == [0] else _Turned(leaf.movedim(axes[0], 0), axes[0])


@contextmanager
def _recorded(cell: nn.Module) -> Iterator[list[Any]]:
    """While the block runs, the hooks of a cell's modules do not; their calls are collected in their place.

    A call is (path of the module, "before" or "after", arguments, keyword arguments, result).
    """
    calls: list[Any] = []
    saved = []

    def before(path: str) -> Callable[..., None]:
        return lambda module, args, options: calls.append((path, "before", args, options))

    def after(path: str) -> Callable[..., None]:
        return lambda module, args, options, result: calls.append((path, "after", args, options, result))

    for path, module in cell.named_modules():
        saved.append((module, {name: vars(module)[name] for name in (*_TABLES, *_OPTIONS)}))
        for table, make in zip(_TABLES, (before, after), strict=True):
            if getattr(module, table):
                setattr(module, table, OrderedDict({-1: make(path)}))
                setattr(module, f"{table}_with_kwargs", OrderedDict({-1: True}))
        module._forward_hooks_always_called = OrderedDict()
    try:
        yield calls
    finally:
        for module, tables in saved:
            vars(module).update(tables)


def call_hooks(cell: nn.Module, calls: Tree, *, batch_first: bool, one_step: bool = False) -> None:
    """Call the hooks of a cell's modules with what the modules got and returned, step by step.

    calls   the second part of the outputs of `observed_cell`; its tensors are (length, batch, ...), with `batch_first`
            the other way round, with `one_step` (batch, ...)
    """

    def in_time(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return pad_packed_sequence(leaf)[0]
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.unsqueeze(0) if one_step else leaf.transpose(0, 1) if batch_first else leaf

    calls = pytree.tree_map(in_time, calls, is_leaf=lambda leaf: isinstance(leaf, PackedSequence))
    tensors = [leaf for leaf in pytree.tree_leaves(calls) if isinstance(leaf, Tensor)]
    around, cell = (cell, cell.cell) if isinstance(cell, BatchAxis) else (None, cell)
    modules, versions = dict(cell.named_modules()), [tensor._version for tensor in tensors]
    attributes = {path: _attributes(module) for path, module in modules.items()}
    for time in range(len(tensors[0]) if tensors else 0):
        for path, when, *values in calls:
            module = modules[path.value]
            for hooked in (module, around if module is cell else None):
                if hooked is None or not values:
                    continue
                if _called(hooked, when.value, *(_at(time, value) for value in values)) is not None:
                    _refuse(cell, path.value, "returns a value, which cannot reach the steps any more", module)
    for path, module in modules.items():
        if _changed(attributes[path], _attributes(module)):
            _refuse(cell, path, "sets an attribute or a parameter of it, which the steps have read before", module)
    if versions != [tensor._version for tensor in tensors]:
        _refuse(cell, "", "writes to a value in place, which cannot reach the steps any more", cell)
    for path in dict.fromkeys(path.value for path, _, *values in calls if not values):
        warnings.warn(
            f"the forward hook on {_name(path, modules[path])} of {place_of(cell)} is not called: the rows of the "
            "batch have no axis of their own in a value that the module gets or returns.",
            stacklevel=4,
        )


def _at(time: int, values: Tree) -> Tree:
    """The values of one step."""

    def at(leaf: Any) -> Any:
        if isinstance(leaf, _Turned):
            return _Turned(leaf.tensor[time], leaf.axis).in_place()
        return leaf[time] if isinstance(leaf, Tensor) else leaf.value if isinstance(leaf, _Plain) else leaf

    return pytree.tree_map(at, values, is_leaf=lambda leaf: isinstance(leaf, (_Plain, _Turned)))


def _called(module: nn.Module, when: str, args: Tree, options: Tree, result: Tree = None) -> Any:
    """Call the hooks of a module; the first value that one of them returns, else None."""
    table = "_forward_pre_hooks" if when == "before" else "_forward_hooks"
    with_options = getattr(module, f"{table}_with_kwargs")
    for number, hook in list(getattr(module, table).items()):
        given = (args, options) if number in with_options else (args,)
        returned = hook(module, *given) if when == "before" else hook(module, *given, result)
        if returned is not None:
            return returned
    return None


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What a step may read of a module, but for what torch keeps of hooks."""
    own = {name: value for name, value in vars(module).items() if "_hooks" not in name}
    return own | dict(module._parameters) | dict(module._buffers)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    plain = (int, float, str, bool)
    return any(
        name not in after or not (after[name] is value or (isinstance(value, plain) and after[name] == value))
        for name, value in before.items()
    )


def _name(path: str, module: nn.Module) -> str:
    return f"'{path}' ({type(module).__name__})" if path else type(module).__name__


def _refuse(cell: nn.Module, path: str, what: str, module: nn.Module) -> None:
    raise UntraceableStep(
        f"a forward hook on a module of the cell {what}.",
        cell=place_of(cell),
        module=_name(path, module),
        expected="a hook that only looks on: it is called with the values of every step, after the last one",
        tries="do its work in forward, or read values with lp.record; for weight norm use "
        "torch.nn.utils.parametrizations",
    )
