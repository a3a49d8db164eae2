"""Writes that autograd does not record: to `value.data`, to `value.detach()`, or to a value under `torch.no_grad()`.

Such a write changes the value and leaves its gradient as it was: `scores.data.masked_fill_(mask, -1e9)`. A functional
graph would pass the gradient through what is written instead. `UnrecordedWrites` gives the written value the gradient
of the one before: by an `autograd.Function`, as a user would write it.

Known shortcoming: a view that was taken before the write, and is read after it, has the gradient of what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from leporello.errors import UntraceableStep
from leporello.loop.state import Tree

_DATA: Any = torch.Tensor.data
_READS_DATA, _SETS_DATA = _DATA.__get__, _DATA.__set__
_DETACHES = (torch.Tensor.detach, torch.detach)
_WRITE_NO_VALUE = ("detach_", "requires_grad_", "retain_grad_")


class _WithGradientOf(torch.autograd.Function):
    """One value, with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, before: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class UnrecordedWrites(TorchFunctionMode):
    """While active, what autograd does not record leaves gradients as they are; `finish` at the end of the step.

    sources   by the id of a tensor that autograd does not follow: it, and the one whose memory it shares
    written   by the id of a tensor that was written to: it, and a copy from before
    mixed     by the id of a tensor of `sources`: it, if something was written to it that may have a gradient itself
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[int, tuple[Tensor, Tensor]] = {}
        self.written: dict[int, tuple[Tensor, Tensor]] = {}
        self.mixed: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _SETS_DATA:
            return self._set_data(*args)
        followed = torch.is_grad_enabled() and func not in _DETACHES and func != _READS_DATA
        target = next(_written_by(func, args, kwargs), None)
        if target is not None and not (followed and id(target) not in self.sources):
            self._note_write(self._source(target))
            if followed and any(map(self._may_have_gradient, pytree.tree_leaves((args[1:], kwargs)))):
                self.mixed[id(target)] = target
        elif self.written:
            self._read(pytree.tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        first = args[0] if args else None
        if not followed or id(first) in self.sources:
            self._note_alias(result, first)
        return result

    def finish(self, results: Tree) -> None:
        """Give what was written, and not read since, its gradient; `results` are what the step returns."""
        self._read([*pytree.tree_leaves(results), *(value for value, _ in self.written.values())])

    def _read(self, values: Sequence[Any]) -> None:
        for value in values:
            self._settle(value)
            if id(value) in self.mixed:
                raise UntraceableStep(
                    "the step reads a detached value after something that may have a gradient was written to it.",
                    because="the value and what it was detached from share their memory, but not their gradient",
                    tries=".detach().clone() before the write",
                )

    def _may_have_gradient(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point() and id(value) not in self.sources

    def _source(self, value: Tensor) -> Tensor:
        return self.sources[id(value)][1] if id(value) in self.sources else value

    def _note_alias(self, result: Any, first: Any) -> None:
        if not isinstance(result, Tensor) or not isinstance(first, Tensor) or result is first:
            return
        if result.untyped_storage()._cdata == first.untyped_storage()._cdata:
            self.sources[id(result)] = result, self._source(first)

    def _note_write(self, value: Tensor) -> None:
        if id(value) not in self.written and (value.is_floating_point() or value.is_complex()):
            with torch.enable_grad():
                self.written[id(value)] = value, value.clone()

    def _settle(self, value: Any) -> None:
        """Give a value the gradient that it had before it was written to."""
        if isinstance(value, Tensor) and id(value) in self.written:
            _, before = self.written.pop(id(value))
            with torch.enable_grad():
                value.copy_(_WithGradientOf.apply(value.detach(), before))

    def _set_data(self, value: Tensor, data: Tensor) -> None:
        if value.shape != data.shape or value.dtype != data.dtype:
            raise UntraceableStep(
                "the step gives a tensor data of another shape or dtype.",
                tries="a new name for the new value, and .detach() where no gradient is to pass",
            )
        self._note_write(self._source(value))
        value.copy_(data.detach())


def _written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """What a function of torch writes to."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name not in _WRITE_NO_VALUE
    in_place = in_place or name == "__setitem__" or name.startswith("__i") or kwargs.get("inplace") is True
    if in_place and args and isinstance(args[0], Tensor):
        yield args[0]
    if isinstance(kwargs.get("out"), Tensor):
        yield kwargs["out"]
