"""`Family`: the stand-in tensors of one trace, all of whose batches are one symbol.

A Loop and all its rewrites belong to one family, so that a rewrite can compute the shape of what it adds.
Knows symbolic shapes; knows nothing of steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

_SIZES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # the batch a trace imagines: the first that is no feature size


class Family:
    """One symbol for the number of rows, and tensors without data that carry it."""

    def __init__(self, taken: Sequence[int] = (), imagined: int | None = None) -> None:
        self.imagined = imagined or next((size for size in _SIZES if size not in taken), 37)
        self.shapes = ShapeEnv(duck_shape=False, specialize_zero_one=imagined is None)
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=False)
        source = ConstantSource("rows")
        symbol = self.shapes.create_symbol(
            self.imagined, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self.rows: Any = self.shapes.create_symintnode(symbol, hint=self.imagined, source=source)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, rows: bool) -> Tensor:
        """A tensor without data: [rows, *shape], or [*shape] for what has no row axis."""
        full = (self.rows, *shape) if rows else tuple(shape)
        with self.mode:
            return torch.empty(full, dtype=dtype, device=device)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Operators on tensors of this family compute shapes only."""
        with self.mode, enable_python_dispatcher():
            yield

    def guarded(self) -> list[str]:
        """What the trace had to assume about the number of rows: empty for a step that works for every batch."""
        return [str(guard.expr) for guard in self.shapes.guards]


def row_axes(value: Tensor) -> list[int]:
    """The axes of a stand-in tensor whose size is the number of rows, or a multiple of it."""
    return [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]


def clean_row_axis(value: Any) -> int | None:
    """The one axis that is the rows and nothing else; None if there is none, several, or a merged one."""
    if not isinstance(value, Tensor):
        return None
    axes = row_axes(value)
    if len(axes) != 1 or not value.shape[axes[0]].node.expr.is_symbol:
        return None
    return axes[0]


def has_rows(value: Any) -> bool:
    """Whether a value of a graph, or any of its parts, carries the row axis."""
    if isinstance(value, (tuple, list)):
        return any(has_rows(part) for part in value)
    return isinstance(value, Tensor) and bool(row_axes(value))
