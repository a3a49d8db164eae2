"""A cell with other tensors in the place of its parameters and buffers, for as long as a block runs.

Each slot is exchanged once, however often its module or its tensor is shared, and put back whatever happens. Meanwhile
no other thread may read the cell: whoever reads one is `alone`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn

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
