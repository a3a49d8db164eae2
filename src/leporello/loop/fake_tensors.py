"""`FakeTensorFamily`: the stand-in tensors of one trace, all of whose batches are one symbol.

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
from torch._subclasses import FakeTensorMode
from torch.backends import opt_einsum
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

_SIZES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # the batch a trace imagines: the first that is no feature size


class FakeTensorFamily:
    """One symbol for the number of rows, and tensors without data that carry it.

    taken   feature sizes, which the number of rows imagined by a trace must not be confused with
    rows    a number instead of the symbol, for a step that decides by it
    """

    def __init__(self, taken: Sequence[int] = (), rows: int | None = None) -> None:
        self.imagined = rows if rows is not None else next((size for size in _SIZES if size not in taken), 37)
        self.shapes = ShapeEnv(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )  # numbers and sizes made of data are refused where they are asked for: in the user's line
        self.mode = FakeTensorMode(shape_env=self.shapes, allow_non_fake_inputs=False)
        self.rows: Any = self.imagined if rows is not None else self._symbol()

    def _symbol(self) -> Any:
        from torch._dynamo.source import ConstantSource  # here, because it loads all of dynamo: most of a second

        source = ConstantSource("rows")
        symbol = self.shapes.create_symbol(
            self.imagined, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        return self.shapes.create_symintnode(symbol, hint=self.imagined, source=source)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, rows: bool) -> Tensor:
        """A tensor without data: [rows, *shape], or [*shape] for what has no row axis."""
        full = (self.rows, *shape) if rows else tuple(shape)
        with self.mode:
            return torch.empty(full, dtype=dtype, device=device)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Operators on tensors of this family compute shapes only."""
        with self.mode, enable_python_dispatcher(), opt_einsum.flags(enabled=False):  # which would ask for the batch
            yield

    @contextlib.contextmanager
    def sealed(self) -> Iterator[None]:
        """Whoever decides by the number of rows inside fails, unless it is decided already."""
        if self.decided():
            yield
            return
        strict = getattr(
            self.shapes, "error_on_new_guards", contextlib.nullcontext
        )  # older torch tells only afterwards
        with strict():
            yield
        if self.decided():
            raise RuntimeError(f"guards are frozen, and one was added: {self.guards()[0].expr}")

    def guards(self) -> list[Any]:
        """What the trace assumes about the number of rows, and where: empty for a step that works for every batch."""
        return list(self.shapes.guards)

    def decided(self) -> bool:
        """Whether the number of rows is a plain number: asked for, or made one by the step."""
        return isinstance(self.rows, int) or bool(self.shapes.guards)


def row_axes(value: Tensor) -> list[int]:
    """The axes of a stand-in tensor whose size is the number of rows, or a multiple of it."""
    return [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]


def clean_row_axis(value: Any) -> int | None:
    """The one axis that is the rows and nothing else; None if there is none, several, or a merged one."""
    if not isinstance(value, Tensor):
        return None
    axes = row_axes(value)
    if len(axes) != 1 or not _is_symbol(value.shape[axes[0]]):
        return None
    return axes[0]


def _is_symbol(size: Any) -> bool:
    return bool(size.node.expr.is_symbol)


def has_rows(value: Any) -> bool:
    """Whether a value of a graph, or any of its parts, carries the row axis."""
    if isinstance(value, (tuple, list)):
        return any(has_rows(part) for part in value)
    return isinstance(value, Tensor) and bool(row_axes(value))
