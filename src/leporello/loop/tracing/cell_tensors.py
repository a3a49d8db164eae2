"""The tensors and attributes of a cell while it is traced: parameters replaced, writes refused, one thread at a time.

`tensors_replaced` runs a cell on fake parameters. `NoWrites`, `refuse_replaced` and `attributes_unchanged` refuse a
step that writes to its parameters or attributes: a graph is made from one run of the step, so a write would happen
once, while tracing, and never again. What a step writes in place to a buffer is noted: the graph writes it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.errors import UntraceableStep
from leporello.loop.tracing.attribute_lines import line_that_sets
from leporello.loop.tracing.trace_errors import current_line

CELL_LOCK = threading.RLock()  # held by whoever reads the tensors of a cell, or replaces them; not by cached calls


class Replacements:
    """Which modules hold replaced tensors at this moment.

    modules   their ids, in a list that is itself replaced at every change. A cached call takes no lock: it compares the
              list before it has read a cell with the list after, by identity, and reads again if it is another one
    """

    __slots__ = ("modules",)

    def __init__(self) -> None:
        self.modules: list[int] = []


replacements = Replacements()
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def under_cell_lock(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate a function that reads a cell, so that no other thread replaces the cell's tensors meanwhile."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        with CELL_LOCK:
            return function(*args, **options)

    return run


@contextmanager
def tensors_replaced(cell: nn.Module, instead: Mapping[int, Tensor]) -> Iterator[None]:
    """Replace parameters and buffers of a cell while a block runs.

    instead   the new tensor by the `id` of the old one; a tensor that several modules share is replaced in all of them
    """
    slots: list[tuple[dict[str, Any], str, Tensor]] = [
        (table, name, value)
        for module in cell.modules()
        if not isinstance(module, torch.jit.ScriptModule)  # the tracer replaces what these hold where it is read
        for table in (module._parameters, module._buffers)
        for name, value in table.items()
        if value is not None and id(value) in instead
    ]
    others = replacements.modules
    try:
        replacements.modules = [*others, *map(id, cell.modules())]
        for table, name, value in slots:
            table[name] = instead[id(value)]
        _update_flat_weights(cell)
        yield
    finally:
        for table, name, value in slots:
            table[name] = value
        _update_flat_weights(cell)
        replacements.modules = list(others)


@contextmanager
def buffers_restored(module: nn.Module) -> Iterator[None]:
    """After the block, buffers hold what they held before: what steps have written to them is undone."""
    before = [(buffer, buffer.detach().clone(), buffer.requires_grad) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value, had_gradient in before:
                if buffer.requires_grad and not had_gradient:
                    buffer.detach_()
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _update_flat_weights(cell: nn.Module) -> None:
    """Make the list of parameters that torch.nn's recurrent modules keep agree with their table of parameters."""
    for module in cell.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]


_MAKE_IT_STATE = (
    "make it a state leaf: what a step hands on to the next is state; statistics of all steps are a buffer "
    "(self.register_buffer) that is written in place: add_, copy_"
)


class NoWrites(TorchDispatchMode):
    """While active, an operator that writes to one of the given tensors, or to a view of one, is refused.

    tensors      by the name that the error gives them
    buffers      names of those that may be written to
    written      by the name of such a buffer that was written to: the user's line
    saw_writes   whether an operator has written to any tensor
    """

    def __init__(self, tensors: Mapping[str, Tensor], buffers: Collection[str] = ()) -> None:
        super().__init__()
        self.saw_writes, self.buffers = False, buffers
        self.written: dict[str, str | None] = {}
        self.names = {_storage_id(value): name for name, value in reversed([*tensors.items()])}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self.saw_writes = True
            for index, argument in enumerate(func._schema.arguments):
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                if argument.is_write and isinstance(value, Tensor) and _storage_id(value) in self.names:
                    name = self.names[_storage_id(value)]
                    if name not in self.buffers:
                        raise _write_refusal(name)
                    self.written.setdefault(name, current_line())
        return func(*args, **kwargs)


def _storage_id(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def refuse_aliases(tensors: Sequence[tuple[str, Tensor]], written: Mapping[str, str | None]) -> None:
    """Refuse a step that writes to a buffer whose memory another of its tensors has: the graph takes them apart.

    written   names of such buffers, with the user's line
    """
    owners: dict[int, list[str]] = {}
    for name, tensor in tensors:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # under a transform a write is refused anyway
            owners.setdefault(_storage_id(tensor), []).append(name)
    for names in owners.values():
        for name in names if len(names) > 1 else ():
            if name in written:
                other = next(each for each in names if each != name)
                raise UntraceableStep(
                    f"the step writes to the buffer '{name}', whose memory '{other}' has too.",
                    line=written[name],
                    tries="one buffer, of which the step itself takes views",
                )


def _write_refusal(name: str, line: str | None = None) -> UntraceableStep:
    return UntraceableStep(
        f"the step writes to '{name}', which all steps share.",
        line=line,
        expected="a step that only reads its parameters and attributes",
        tries=_MAKE_IT_STATE,
    )


def tensors_of(cell: nn.Module) -> dict[str, Tensor | None]:
    """The parameters and buffers of a cell, by full name; a shared one under each of its names.

    None for a name that is registered without a tensor.
    """
    return {
        f"{path}.{name}" if path else name: value
        for path, module in cell.named_modules()
        for name, value in (*module._parameters.items(), *module._buffers.items())
    }


def refuse_replaced(cell: nn.Module, before: Mapping[str, Tensor | None]) -> None:
    """Refuse a step that assigned another tensor to a parameter or buffer; `before` is `tensors_of` before the step."""
    after = tensors_of(cell)
    for name in {**before, **after}:
        if name not in before or name not in after or before[name] is not after[name]:
            raise _write_refusal(name, line_that_sets(cell, name))


@contextmanager
def attributes_unchanged(cell: nn.Module) -> Iterator[None]:
    """Restore the attributes that a step has set while the block ran, and refuse the step by the name of one.

    Lists, dicts and sets are restored with their items. An error of the block itself passes.
    """
    before = {path: (module, _contents(vars(module))) for path, module in cell.named_modules()}
    try:
        yield
    except BaseException:
        _restore_all(before)
        raise
    changed = _restore_all(before)
    if changed is not None:
        raise UntraceableStep(
            f"the step sets the attribute '{changed}', which all steps share.",
            line=line_that_sets(cell, changed),
            expected="a step that only reads its parameters, buffers and attributes",
            tries="make it a state leaf if the next step reads it, as lp.Stateful(module, names) does; lp.record shows "
            "values of every step",
        )


_MANAGED_BY_TORCH = ("_parameters", "_buffers", "_modules")
_Contents = dict[str, tuple[Any, Any]]  # by attribute: the value, and a copy of it if it is a container


def _contents(attributes: Mapping[str, Any]) -> _Contents:
    plain = {name: value for name, value in attributes.items() if name not in _MANAGED_BY_TORCH}
    return {name: (value, value.copy() if _is_container(value) else None) for name, value in plain.items()}


def _is_container(value: Any) -> bool:
    return isinstance(value, (list, dict, set))


def _restore_all(before: Mapping[str, tuple[nn.Module, _Contents]]) -> str | None:
    """Restore every attribute, and return the name of one that had changed; None if none had."""
    changed = None
    for path, (module, old) in before.items():
        names = [
            name for name in {**old, **vars(module)} if name not in _MANAGED_BY_TORCH and _restore(module, name, old)
        ]
        if names and not isinstance(module, nn.RNNBase):  # those update lists of their parameters themselves
            changed = f"{path}.{names[0]}" if path else names[0]
    return changed


def _restore(module: nn.Module, name: str, old: _Contents) -> bool:
    """Restore one attribute, and return whether it had changed."""
    if name not in old:
        del module.__dict__[name]
        return True
    value, copy = old[name]
    replaced = name not in vars(module) or vars(module)[name] is not value
    module.__dict__[name] = value
    if not _is_container(value) or _same_items(value, copy):
        return replaced
    value.clear()
    value.extend(copy) if isinstance(value, list) else value.update(copy)
    return True


def _same_items(one: Any, other: Any) -> bool:
    """Whether two containers hold the same objects, compared by identity: tensors cannot be compared by value."""
    if isinstance(one, set):
        return {id(item) for item in one} == {id(item) for item in other}
    first, second = (list(each.items()) if isinstance(each, dict) else list(enumerate(each)) for each in (one, other))
    return len(first) == len(second) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(first, second, strict=True))
