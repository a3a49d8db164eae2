"""A cell with other tensors in the place of its parameters and buffers, for as long as a block runs.

Each slot is exchanged once, however often its module or its tensor is shared, and put back whatever happens. Meanwhile
no other thread may read the cell: whoever reads one is `alone`, or looks at `swaps` before and after.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.errors import UntraceableStep

reading = threading.RLock()


class Swaps:
    """Which modules hold other tensors at this moment.

    modules   their ids, in a list that is replaced at every change. A cached call, which takes no lock, compares the
              list before it has read a cell with the list after, by identity: if it is the same, no swap came between
    """

    __slots__ = ("modules",)

    def __init__(self) -> None:
        self.modules: list[int] = []


swaps = Swaps()
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def alone(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """One thread at a time in all functions so marked: those that read a cell, and the one that swaps."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        with reading:
            return function(*args, **options)

    return run


@contextmanager
def swapped(cell: nn.Module, instead: Mapping[int, Tensor]) -> Iterator[None]:
    """Put tensors in the place of those whose `id` they are listed under."""
    slots: list[tuple[dict[str, Any], str, Tensor]] = [
        (table, name, value)
        for module in cell.modules()
        for table in (module._parameters, module._buffers)
        for name, value in table.items()
        if value is not None and id(value) in instead
    ]
    others = swaps.modules
    try:
        swaps.modules = [*others, *map(id, cell.modules())]
        for table, name, value in slots:
            table[name] = instead[id(value)]
        _lists_in_step(cell)
        yield
    finally:
        for table, name, value in slots:
            table[name] = value
        _lists_in_step(cell)
        swaps.modules = list(others)


def _lists_in_step(cell: nn.Module) -> None:
    """torch.nn's recurrent modules keep a list of their parameters beside the table."""
    for module in cell.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


_INSTEAD = (
    "make it a state leaf: what a step hands on to the next is state; "
    "modules that keep statistics (batch norm, spectral norm) write only in train(), so use eval()"
)


class NoWrites(TorchDispatchMode):
    """While active, an operator that writes to one of the named tensors, or to a view of one, is refused."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {_memory(value): name for name, value in reversed([*named.items()])}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for index, argument in enumerate(func._schema.arguments):
                given = args[index] if index < len(args) else kwargs.get(argument.name)
                if argument.is_write and isinstance(given, Tensor) and _memory(given) in self.names:
                    raise _refusal(self.names[_memory(given)])
        return func(*args, **kwargs)


def _memory(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def _refusal(name: str) -> UntraceableStep:
    return UntraceableStep(
        f"the step writes to '{name}', which all steps share.",
        expected="a step that only reads its parameters, buffers and attributes",
        tries=_INSTEAD,
    )


Held = dict[str, tuple[nn.Module, str, Any]]


def held_tensors(cell: nn.Module) -> Held:
    """The parameters and buffers of a cell, by full name."""
    found: Held = {}
    for path, module in cell.named_modules():
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            found[f"{path}.{name}" if path else name] = (module, name, value)
    return found


def refuse_exchanged(cell: nn.Module, before: Held) -> None:
    """A step may not put another tensor in the place of a buffer either."""
    after = held_tensors(cell)
    for name in {**before, **after}:
        if name not in before or name not in after or before[name][2] is not after[name][2]:
            raise _refusal(name)


@contextmanager
def unchanged(cell: nn.Module) -> Iterator[None]:
    """Attributes a step sets are put back, and refused by name."""
    before = {path: (module, _contents(vars(module))) for path, module in cell.named_modules()}
    try:
        yield
    except BaseException:
        _put_back(before)
        raise
    changed = _put_back(before)
    if changed is not None:
        raise UntraceableStep(
            f"the step sets the attribute '{changed}', which all steps share.",
            expected="a step that only reads its parameters, buffers and attributes",
            tries="make it a state leaf if the next step reads it; lp.record shows values of every step",
        )


_KEPT_BY_TORCH = ("_parameters", "_buffers", "_modules")
_Contents = dict[str, tuple[Any, Any]]  # of a module's attributes: the value, and what a container held


def _contents(attributes: Mapping[str, Any]) -> _Contents:
    own = {name: value for name, value in attributes.items() if name not in _KEPT_BY_TORCH}
    return {name: (value, value.copy() if _container(value) else None) for name, value in own.items()}


def _container(value: Any) -> bool:
    return isinstance(value, (list, dict, set))


def _put_back(before: Mapping[str, tuple[nn.Module, _Contents]]) -> str | None:
    """Undo what was set; the name of one attribute that was, None if none was."""
    changed = None
    for path, (module, old) in before.items():
        names = [
            name for name in {**old, **vars(module)} if name not in _KEPT_BY_TORCH and _restored(module, name, old)
        ]
        if names and not isinstance(module, nn.RNNBase):  # those keep lists of their parameters in step with them
            changed = f"{path}.{names[0]}" if path else names[0]
    return changed


def _restored(module: nn.Module, name: str, old: _Contents) -> bool:
    """Put one attribute back; whether it had changed."""
    if name not in old:
        del module.__dict__[name]
        return True
    value, held = old[name]
    replaced = name not in vars(module) or vars(module)[name] is not value
    module.__dict__[name] = value
    if not _container(value) or _same(value, held):
        return replaced
    value.clear()
    value.extend(held) if isinstance(value, list) else value.update(held)
    return True


def _same(one: Any, other: Any) -> bool:
    """Whether containers hold the very same things; tensors are not compared by value."""
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in other}
    mine, theirs = (list(each.items()) if isinstance(each, dict) else list(enumerate(each)) for each in (one, other))
    return len(mine) == len(theirs) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(mine, theirs, strict=True))
