"""Operators as expressions: what a value is at an index, from the values it is made of. Rules are tables.

Knows ATen's operators; knows nothing of memory or of targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from leporello.engine.kernel.description import Apply, Constant, Expression, Fetch, Place
from leporello.engine.kernel.index import Index
from leporello.engine.kernel.shapes import dims, refuse, short
from leporello.engine.kernel.views import PARTS, VIEWS, Places, same
from leporello.errors import EngineRefusal
from leporello.loop.family import has_rows
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.engine.kernel.lower import Lowering

# Operators of one value at the same place.
UNARY = {
    "abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "relu", "erf", "erfc",
    "sign", "sgn", "floor", "ceil", "round", "trunc", "logical_not", "bitwise_not", "isnan", "isinf", "square",
}  # fmt: skip
BINARY = {
    "add", "sub", "rsub", "mul", "div", "true_divide", "minimum", "maximum", "fmin", "fmax", "pow", "atan2", "fmod",
    "remainder", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "hypot", "copysign", "floor_divide",
}  # fmt: skip
COSTLY = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "erf", "erfc", "div", "pow", "atan2",
    "fmod", "remainder", "hypot", "embedding", "gather", "index", "index_select",
}  # fmt: skip
REDUCTIONS = {"sum", "amax", "amin", "prod", "argmax", "argmin", "any", "all"}


def expression_of(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """The value of an operator at an index."""
    name = short(node)
    if name in UNARY:
        return Apply(name, (_operand(lowering, arguments(node)[0], node, index),), _dtype(node))
    if name in BINARY:
        return _binary(lowering, name, node, index)
    if name in RULES:
        return RULES[name](lowering, node, index)
    refuse(node)


def _dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


def _operand(lowering: Lowering, argument: Any, node: fx.Node, index: Places) -> Expression:
    """An argument of a pointwise operator, spread to the operator's shape."""
    if not isinstance(argument, fx.Node):
        if not isinstance(argument, (bool, int, float)):
            refuse(node)
        return Constant(argument, _number_type(argument, _dtype(node)))
    if not isinstance(argument.meta["val"], Tensor):
        refuse(node)
    own = dims(argument)
    behind = index[len(index) - len(own) :]
    places = tuple(
        None if size is None else Index() if size == 1 else place for size, place in zip(own, behind, strict=True)
    )
    for size, place in zip(own, behind, strict=True):
        if (size is None) != (place is None) and size != 1 and not (size is None and place is None):
            refuse(node)
    return lowering.at(argument, places)


def _number_type(number: bool | int | float, like: torch.dtype) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int) and not like.is_floating_point:
        return torch.int64
    return like if like.is_floating_point else torch.float64


def _binary(lowering: Lowering, name: str, node: fx.Node, index: Places) -> Expression:
    dtype = _dtype(node)
    one, other = (_operand(lowering, argument, node, index) for argument in arguments(node)[:2])
    alpha: Any = node.kwargs.get("alpha", arguments(node)[2] if len(arguments(node)) > 2 else 1)
    if name in ("add", "sub", "rsub") and alpha != 1:
        if name == "rsub":
            one = Apply("mul", (one, Constant(alpha, dtype)), dtype)
        else:
            other = Apply("mul", (other, Constant(alpha, dtype)), dtype)
    mode = node.kwargs.get("rounding_mode")
    if name == "rsub":
        return Apply("sub", (other, one), dtype)
    if name == "true_divide" or (name == "div" and mode is None):
        return Apply("div", (one, other), dtype)
    if name == "div":
        if not dtype.is_floating_point:
            refuse(node)
        return Apply(str(mode), (Apply("div", (one, other), dtype),), dtype)
    if name == "floor_divide":
        refuse(node)
    return Apply(name, (one, other), dtype)


# ---- operators with rules of their own


def _where(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    return Apply(
        "where", tuple(_operand(lowering, argument, node, index) for argument in arguments(node)[:3]), _dtype(node)
    )


def _masked_fill(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    value, condition, other = (_operand(lowering, argument, node, index) for argument in arguments(node)[:3])
    return Apply("where", (condition, other, value), _dtype(node))


def _addcmul(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    one, two, three = (_operand(lowering, argument, node, index) for argument in arguments(node)[:3])
    dtype, factor = _dtype(node), _factor(node)
    inner = Apply("mul" if short(node) == "addcmul" else "div", (two, three), dtype)
    if factor != 1:
        inner = Apply("mul", (inner, Constant(factor, dtype)), dtype)
    return Apply("add", (one, inner), dtype)


def _factor(node: fx.Node) -> Any:
    return node.kwargs.get("value", 1)


def _clamped(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    dtype = _dtype(node)
    value = _operand(lowering, arguments(node)[0], node, index)
    low = node.kwargs.get("min", arguments(node)[1] if len(arguments(node)) > 1 else None)
    high = node.kwargs.get("max", arguments(node)[2] if len(arguments(node)) > 2 else None)
    if short(node) == "clamp_max":
        low, high = None, arguments(node)[1]
    if low is not None:
        value = Apply("maximum", (value, _operand(lowering, low, node, index)), dtype)
    if high is not None:
        value = Apply("minimum", (value, _operand(lowering, high, node, index)), dtype)
    return value


def _constant(at: int | None, number: float | None = None) -> Any:
    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        value: Any = number if at is None else arguments(node)[at]
        if not isinstance(value, (bool, int, float)):
            refuse(node)
        return Constant(value, _dtype(node))

    return rule


def _counted(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """arange: the place itself, scaled and shifted."""
    numbers = [argument for argument in arguments(node) if isinstance(argument, (int, float))]
    start = numbers[0] if len(numbers) > 1 else 0
    step = numbers[2] if len(numbers) > 2 else 1
    if len(numbers) != len(arguments(node)) or index[0] is None:
        refuse(node)
    dtype = _dtype(node)
    place: Expression = Place(index[0], dtype)
    if step != 1:
        place = Apply("mul", (place, Constant(step, dtype)), dtype)
    return place if start == 0 else Apply("add", (place, Constant(start, dtype)), dtype)


def _embedded(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """Rows of a table, by numbers."""
    table, by = arguments(node)[0], arguments(node)[1]
    sizes = dims(table)
    if None in sizes or len(sizes) != 2 or table not in lowering.home:
        refuse(node)
    number = lowering.at(by, index[:-1])
    return Fetch(lowering.home[table], number, int(sizes[0] or 0), int(sizes[1] or 0), index[-1] or Index())


def _derivative(of: str) -> Any:
    """Derivatives written by torch as one operator."""

    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        dtype = _dtype(node)
        gradient, value = (_operand(lowering, argument, node, index) for argument in arguments(node)[:2])
        one = Constant(1.0, dtype)
        if of == "tanh":
            inner = Apply("sub", (one, Apply("mul", (value, value), dtype)), dtype)
        elif of == "sigmoid":
            inner = Apply("mul", (value, Apply("sub", (one, value), dtype)), dtype)
        else:
            limit = Constant(float(arguments(node)[2]), dtype)
            return Apply("where", (Apply("le", (value, limit), torch.bool), Constant(0.0, dtype), gradient), dtype)
        return Apply("mul", (gradient, inner), dtype)

    return rule


RULES: dict[str, Callable[[Any, fx.Node, Places], Expression]] = {
    **VIEWS,
    **dict.fromkeys(["_to_copy", "convert_element_type"], same),
    "where": _where,
    "masked_fill": _masked_fill,
    **dict.fromkeys(["addcmul", "addcdiv"], _addcmul),
    **dict.fromkeys(["clamp", "clamp_min", "clamp_max"], _clamped),
    **dict.fromkeys(["full", "full_like"], _constant(1)),
    "new_full": _constant(2),
    "scalar_tensor": _constant(0),
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros"], _constant(None, 0)),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], _constant(None, 1)),
    "arange": _counted,
    "embedding": _embedded,
    "tanh_backward": _derivative("tanh"),
    "sigmoid_backward": _derivative("sigmoid"),
    "threshold_backward": _derivative("threshold"),
}
CONSTANTS = {
    "full", "full_like", "new_full", "scalar_tensor", "zeros", "zeros_like", "new_zeros", "ones", "ones_like",
    "new_ones", "arange", "sym_size",
}  # fmt: skip
FREE = {*VIEWS, *PARTS, *CONSTANTS}  # never worth memory of their own
COVERED = {*UNARY, *BINARY, *RULES, *PARTS, *CONSTANTS, *REDUCTIONS, "mm", "bmm", "cat", "stack"}


def reduction_of(node: fx.Node) -> tuple[str, fx.Node, list[int]]:
    """What a reduction gathers, of which value, over which of its axes."""
    source: Any = arguments(node)[0]
    count = len(dims(source))
    asked: Any = node.kwargs.get("dim", arguments(node)[1] if len(arguments(node)) > 1 else None)
    if asked is None or asked == []:
        axes = list(range(count))
    else:
        axes = sorted(int(axis) % count for axis in (asked if isinstance(asked, (list, tuple)) else [asked]))
    if not axes:
        raise EngineRefusal(f"the operator {short(node)} over no axis.")
    return short(node), source, axes


POINTWISE = {
    "where", "masked_fill", "addcmul", "addcdiv", "clamp", "clamp_min", "clamp_max", "_to_copy", "tanh_backward",
    "sigmoid_backward", "threshold_backward",
}  # fmt: skip


def is_drawn_in(node: fx.Node) -> bool:
    """Whether an operator may as well run inside: pointwise, a view, or a product of rows with a parameter.

    There it costs what it costs outside, and no pass over memory.
    """
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
        return False
    if short(node) in ("mm", "addmm"):
        left, right = arguments(node)[-2:]
        return has_rows(left.meta["val"]) and not has_rows(right.meta["val"])
    return short(node) in {*UNARY, *BINARY, *POINTWISE, *VIEWS, *PARTS}
