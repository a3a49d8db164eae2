"""What the rules of lowering share: what they ask of a node (operator, row axis, features), how they refuse it, and
`LoweringContext`, the kernel while it is made.

`lower.py` provides the context; the rules in expressions.py, views.py and partial_writes.py take it as their first
argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.kernel.description import Apply, Expression, dtype_of_expression
from leporello.kernel.index import Index, Variable
from leporello.loop.fake_tensors import clean_row_axis, has_rows, size_of
from leporello.loop.sizes import AnySize

# Operators of torch's `prims` that mean what the ATen operator of their name means; others have arguments of their own.
SAME_PRIMS = {
    "abs", "acos", "acosh", "add", "amax", "amin", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_in_dim", "ceil", "clone", "convert_element_type",
    "copysign", "cos", "cosh", "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fmax", "fmin", "fmod", "ge",
    "gt", "hypot", "iota", "le", "lgamma", "log", "log10", "log1p", "log2", "lt", "maximum", "minimum", "mul", "ne",
    "neg", "pow", "prod", "reciprocal", "remainder", "round", "rsqrt", "sign", "signbit", "sin", "sinh", "sqrt",
    "sub", "sum", "tan", "tanh", "trunc", "where",
}  # fmt: skip


def short(node: fx.Node) -> str:
    """An operator's name without its overload: "add"; those of torch's `prims` that ATen lacks as "prims.name"."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    family, name = schema.name.split("::")
    return f"prims.{name}" if family == "prims" and name not in SAME_PRIMS else name


def row_axis(node: fx.Node) -> int | None:
    """The axis that holds the rows; None where a value has none or several, or where it holds features too."""
    value = node.meta["val"]
    return clean_row_axis(value) if has_rows(value) else None


def dims(node: fx.Node) -> tuple[AnySize | None, ...]:
    """The sizes of a value's axes, None for the rows; a value without a clean row axis, or no tensor, is refused."""
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        refuse(node)
    rows = row_axis(node)
    if rows is None and has_rows(value):
        refuse(node, "joins rows with features")
    return tuple(None if axis == rows else size_of(size) for axis, size in enumerate(value.shape))


def features(node: fx.Node) -> list[AnySize]:
    """The sizes of a value's axes without the row axis."""
    return [size for size in dims(node) if size is not None]


def dtype_of(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def refuse(node: fx.Node, why: str = "is not covered by kernels") -> NoReturn:
    """Raise an `EngineRefusal` with the operator, and its label and the user's line where the trace knows them."""
    parts = node.users if isinstance(node.meta.get("val"), (tuple, list)) else ()  # of several results each has a name
    label = next((one.meta["label"] for one in (node, *parts) if one.meta.get("label")), None)
    details = [f"in '{label}'"] if label else []
    details += [node.meta["line"]] if node.meta.get("line") else []
    where = f" ({', '.join(details)})" if details else ""
    raise EngineRefusal(f"the operator {node.meta.get('origin') or short(node)}{where} {why}.")


Positions = tuple[Index | None, ...]  # along the axes of a value; None stands on the row axis


class LoweringContext(Protocol):
    """A kernel while it is made.

    ranges   how many values each variable of the present loops takes
    """

    ranges: dict[Variable, AnySize]

    def at(self, node: fx.Node, index: Positions) -> Expression:
        """The value of a node at an index: a load if it is in memory, else the operator's own expression.

        A value that must be in memory is put there first: this may add blocks.
        """
        ...

    def variables(self, sizes: Sequence[AnySize], letter: str = "i") -> list[Index]:
        """Variables for loops over these sizes, as `loop_variables` gives them; `ranges` gets theirs."""
        ...

    def with_rows(self, node: fx.Node, indices: Sequence[Index]) -> Positions:
        """An index of a node's value from those of its features: None is put in at the row axis."""
        ...


def cast(value: Expression, dtype: torch.dtype) -> Expression:
    """The value converted to `dtype`; the value itself where it has that type."""
    return value if dtype_of_expression(value) == dtype else Apply("cast", (value,), dtype)
