"""`time`: the number of the present step, as a tensor that a step can compute with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from leporello.errors import ArgumentError


class _Present(threading.local):
    """The time of the step that runs in this thread; None where none does."""

    value: Tensor | None = None


_present = _Present()


class Clock:
    """`lp.time()` inside of a step: the number of the step, (batch, 1) integers, from 0.

    It begins at the call's argument `time`, which is 0 by default: a number, or one per row for rows that began at
    different times. As of all integers in torch, the quotient `lp.time() / 7` has the default dtype, and
    `lp.time().to(x.dtype) / 7` that of x.

    Where a cell is called by hand, `with lp.time.at(3): cell(x, state)` says which step it is.

    >>> with time.at(3):
    ...     time() % 2 == 0
    tensor([[False]])
    """

    def __call__(self) -> Tensor:
        if _present.value is None:
            raise ArgumentError(
                "lp.time() is read outside of a network, where no step has a number.",
                expected="a step that lp.Recurrent runs",
                tries="with lp.time.at(0): cell(x, state)",
            )
        return _present.value

    @contextmanager
    def at(self, number: int | Tensor) -> Iterator[None]:
        """While the block runs, `lp.time()` gives this number; a tensor has one per row, (batch,) or (batch, 1)."""
        value = torch.as_tensor(number)
        before, _present.value = _present.value, value.reshape(-1, 1) if value.dim() < 2 else value
        try:
            yield
        finally:
            _present.value = before

    def __repr__(self) -> str:
        return "lp.time"


time = Clock()
