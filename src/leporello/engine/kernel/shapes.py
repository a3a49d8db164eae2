"""Shapes of values as a kernel sees them: the row axis, and the features beside it."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.loop.family import clean_row_axis, has_rows


def short(node: fx.Node) -> str:
    """An operator's name without its overload."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else getattr(node.target, "__name__", str(node.target))


def row_axis(node: fx.Node) -> int | None:
    value = node.meta["val"]
    return clean_row_axis(value) if has_rows(value) else None


def dims(node: fx.Node) -> tuple[int | None, ...]:
    """The sizes of a value's axes, None for the rows."""
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        refuse(node)
    rows = row_axis(node)
    if rows is None and has_rows(value):
        raise EngineRefusal(f"the value {node.name} has no axis of rows alone.")
    return tuple(None if axis == rows else int(size) for axis, size in enumerate(value.shape))


def features(node: fx.Node) -> list[int]:
    return [size for size in dims(node) if size is not None]


def refuse(node: fx.Node) -> NoReturn:
    label = node.meta.get("label")
    named = f" (in '{label}')" if label else ""
    raise EngineRefusal(f"the operator {short(node)}{named} is not covered by kernels.")
