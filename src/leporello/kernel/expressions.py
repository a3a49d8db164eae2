"""Operators as expressions: what a value is at an index, from the values it is made of. Rules are tables.

Knows ATen's operators; knows nothing of memory or of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from leporello.kernel.description import Along, Apply, Constant, Expression, Fetch, Index, Load, Place
from leporello.kernel.fx_nodes import dims, dtype_of, refuse, short
from leporello.kernel.partial_writes import PIECES
from leporello.kernel.views import PARTS, VIEWS, Places, cast, same
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments

if TYPE_CHECKING:
    from leporello.kernel.lower import Lowering

# Operators of one value at the same place.
UNARY = {
    "abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "relu", "erf", "erfc",
    "sign", "sgn", "floor", "ceil", "round", "trunc", "logical_not", "bitwise_not", "isnan", "isinf", "square",
    "lgamma", "signbit",
}  # fmt: skip
BINARY = {
    "add", "sub", "rsub", "mul", "div", "true_divide", "minimum", "maximum", "fmin", "fmax", "pow", "atan2", "fmod",
    "remainder", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "hypot", "copysign", "floor_divide",
}  # fmt: skip
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
LOGICAL = {"logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "signbit"}  # of any type
WHOLE = {"floor", "ceil", "round", "trunc"}  # which integers are already
OF_BOOLS = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
COSTLY = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "erf", "erfc", "div", "pow", "atan2",
    "fmod", "remainder", "hypot", "embedding", "gather", "index", "index_select", "lgamma", "floor_divide",
}  # fmt: skip
REDUCTIONS = {"sum", "amax", "amin", "prod", "argmax", "argmin", "any", "all"}
FETCHING = {"embedding", "gather", "index", "index_select"}  # these read their first argument in memory


def expression_of(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """The value of an operator at an index."""
    name = short(node)
    if name in UNARY:
        return _unary(lowering, name, node, index)
    if name in BINARY:
        return _binary(lowering, name, node, index)
    if name in RULES:
        return RULES[name](lowering, node, index)
    refuse(node)


def _operand(lowering: Lowering, argument: Any, node: fx.Node, index: Places) -> Expression:
    """An argument of a pointwise operator, spread to the operator's shape."""
    if not isinstance(argument, fx.Node):
        if not isinstance(argument, (bool, int, float)):
            refuse(node)
        return Constant(argument, _number_type(argument, dtype_of(node)))
    if not isinstance(argument.meta["val"], Tensor):
        refuse(node)
    own = dims(argument)
    behind = index[len(index) - len(own) :]
    places = tuple(
        None if size is None else Index() if size == 1 else place for size, place in zip(own, behind, strict=True)
    )
    for size, place in zip(own, behind, strict=True):
        if (size is None) != (place is None) and size != 1:
            refuse(node)
    return lowering.at(argument, places)


def _operands(lowering: Lowering, node: fx.Node, index: Places, dtype: torch.dtype | None = None) -> list[Expression]:
    """The first three arguments of an operator, where it has as many, in one type: the operator's own unless told."""
    wanted = dtype or dtype_of(node)
    return [cast(_operand(lowering, argument, node, index), wanted) for argument in arguments(node)[:3]]


def _number_type(number: bool | int | float, like: torch.dtype) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int) and not like.is_floating_point:
        return torch.int64
    return like if like.is_floating_point else torch.float64


def _common(node: fx.Node) -> torch.dtype:
    """The type in which two values are compared."""
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments(node)[:2]]
    found: torch.dtype = elementwise_dtypes(*values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)[0]
    return found


def _unary(lowering: Lowering, name: str, node: fx.Node, index: Places) -> Expression:
    dtype = dtype_of(node)
    value = _operand(lowering, arguments(node)[0], node, index)
    if len(arguments(node)) > 1 or "decimals" in node.kwargs:
        refuse(node)
    if name in LOGICAL:
        return Apply(name, (value,), dtype)
    value = cast(value, dtype)
    if name in WHOLE and not dtype.is_floating_point:
        return value
    return Apply(name, (value,), dtype)


def _binary(lowering: Lowering, name: str, node: fx.Node, index: Places) -> Expression:
    dtype = dtype_of(node)
    one, other = (_operand(lowering, argument, node, index) for argument in arguments(node)[:2])
    if name in LOGICAL:
        return Apply(name, (one, other), dtype)
    working = _common(node) if name in COMPARISONS else dtype
    one, other = cast(one, working), cast(other, working)
    alpha: Any = node.kwargs.get("alpha", arguments(node)[2] if len(arguments(node)) > 2 else 1)
    if name in ("add", "sub", "rsub") and alpha != 1:
        if name == "rsub":
            one = Apply("mul", (one, Constant(alpha, dtype)), dtype)
        else:
            other = Apply("mul", (other, Constant(alpha, dtype)), dtype)
    if name == "rsub":
        return Apply("sub", (other, one), dtype)
    if name in ("div", "true_divide", "floor_divide"):
        return _divided(name, node, one, other)
    if dtype == torch.bool:
        name = OF_BOOLS.get(name, name)
    return Apply(name, (one, other), dtype)


def _divided(name: str, node: fx.Node, one: Expression, other: Expression) -> Expression:
    dtype = dtype_of(node)
    mode = "floor" if name == "floor_divide" else node.kwargs.get("rounding_mode")
    if mode == "floor":
        return Apply("floor_divide", (one, other), dtype)
    found = Apply("div" if dtype.is_floating_point else "quotient", (one, other), dtype)
    return Apply("trunc", (found,), dtype) if mode == "trunc" and dtype.is_floating_point else found


# ---- operators with rules of their own


def _where(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    condition, *both = (_operand(lowering, argument, node, index) for argument in arguments(node)[:3])
    return Apply("where", (condition, *(cast(value, dtype_of(node)) for value in both)), dtype_of(node))


def _masked_fill(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    value, condition, other = (_operand(lowering, argument, node, index) for argument in arguments(node)[:3])
    dtype = dtype_of(node)
    return Apply("where", (condition, cast(other, dtype), cast(value, dtype)), dtype)


def _addcmul(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    one, two, three = _operands(lowering, node, index)
    dtype, factor = dtype_of(node), node.kwargs.get("value", 1)
    inner = Apply("mul" if short(node) == "addcmul" else "div", (two, three), dtype)
    if factor != 1:
        inner = Apply("mul", (inner, Constant(factor, dtype)), dtype)  # type: ignore[arg-type]
    return Apply("add", (one, inner), dtype)


def _clamped(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    dtype = dtype_of(node)
    value = cast(_operand(lowering, arguments(node)[0], node, index), dtype)
    low = node.kwargs.get("min", arguments(node)[1] if len(arguments(node)) > 1 else None)
    high = node.kwargs.get("max", arguments(node)[2] if len(arguments(node)) > 2 else None)
    if short(node) == "clamp_max":
        low, high = None, arguments(node)[1]
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            value = Apply(name, (value, cast(_operand(lowering, limit, node, index), dtype)), dtype)
    return value


def _constant(at: int | None, number: float | None = None) -> Any:
    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        value: Any = number if at is None else arguments(node)[at]
        if isinstance(value, fx.Node):
            return cast(_operand(lowering, value, node, index), dtype_of(node))
        if not isinstance(value, (bool, int, float)):
            refuse(node)
        return Constant(value, dtype_of(node))

    return rule


def _counted(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """arange, iota: the place itself, scaled and shifted."""
    numbers = [argument for argument in arguments(node) if isinstance(argument, (int, float))]
    if len(numbers) != len(arguments(node)) or index[0] is None:
        refuse(node)
    start: Any = numbers[0] if len(numbers) > 1 else node.kwargs.get("start", 0)
    step: Any = numbers[2] if len(numbers) > 2 else node.kwargs.get("step", 1)
    if short(node) == "iota":
        start, step = node.kwargs["start"], node.kwargs["step"]
    dtype = dtype_of(node)
    place: Expression = Place(index[0], dtype)
    if step != 1:
        place = Apply("mul", (place, Constant(step, dtype)), dtype)
    return place if start == 0 else Apply("add", (place, Constant(start, dtype)), dtype)


# ---- values whose place is computed


def _fetched(
    lowering: Lowering, node: fx.Node, places: Sequence[Index | None], by: dict[int, Expression]
) -> Expression:
    """The first argument's value at `places`, at axes in `by` at these numbers instead."""
    source = arguments(node)[0]
    sizes = dims(source)
    if any(sizes[axis] is None for axis in by):
        refuse(node, "chooses among rows")
    base = lowering.at(source, tuple(Index() if axis in by else place for axis, place in enumerate(places)))
    assert isinstance(base, Load), "what is fetched lies in memory"
    strides, stride = {}, 1
    for axis in reversed(range(len(sizes))):
        strides[axis] = stride
        stride *= sizes[axis] or 1
    along = tuple(Along(number, int(sizes[axis] or 1), strides[axis]) for axis, number in by.items())
    return Fetch(base.buffer, base.index, along)


def _embedded(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """Rows of a table, by numbers."""
    number = lowering.at(arguments(node)[1], index[:-1])
    return _fetched(lowering, node, (None, index[-1]), {0: number})


def _gathered(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    axis = int(arguments(node)[1]) % len(index)
    return _fetched(lowering, node, index, {axis: lowering.at(arguments(node)[2], index)})


def _index_selected(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    axis = int(arguments(node)[1]) % len(index)
    return _fetched(lowering, node, index, {axis: lowering.at(arguments(node)[2], (index[axis],))})


def _indexed(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
    """value[:, numbers]: tensors of numbers stand in the place of axes that lie beside each other."""
    source, given = arguments(node)[:2]
    chosen = {axis: numbers for axis, numbers in enumerate(given) if numbers is not None}
    begin = min(chosen)
    if list(chosen) != list(range(begin, begin + len(chosen))):
        refuse(node, "with numbers for axes that do not lie beside each other is not covered by kernels")
    if any(dtype_of(numbers) in (torch.bool, torch.uint8) for numbers in chosen.values()):
        refuse(node)
    count = max(len(dims(numbers)) for numbers in chosen.values())
    own, rest = index[begin : begin + count], iter((*index[:begin], *index[begin + count :]))
    places = [Index() if axis in chosen else next(rest) for axis in range(len(dims(source)))]
    by: dict[int, Expression] = {}
    for axis, numbers in chosen.items():
        size = dims(source)[axis]
        if size is None:
            refuse(node, "chooses among rows")
        number = _operand(lowering, numbers, node, own)
        kind = dtype_of(numbers)
        behind = Apply("add", (number, Constant(size, kind)), kind)  # -1 is the last
        by[axis] = Apply("where", (Apply("lt", (number, Constant(0, kind)), torch.bool), behind, number), kind)
    return _fetched(lowering, node, places, by)


def _derivative(of: str) -> Any:
    """Derivatives written by torch as one operator."""

    def rule(lowering: Lowering, node: fx.Node, index: Places) -> Expression:
        dtype = dtype_of(node)
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
    **dict.fromkeys(["full", "full_like", "fill"], _constant(1)),
    "new_full": _constant(2),
    "scalar_tensor": _constant(0),
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros", "zero"], _constant(None, 0)),
    **dict.fromkeys(["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"], _constant(None, 0)),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], _constant(None, 1)),
    **dict.fromkeys(["arange", "iota"], _counted),
    "embedding": _embedded,
    "gather": _gathered,
    "index": _indexed,
    "index_select": _index_selected,
    "tanh_backward": _derivative("tanh"),
    "sigmoid_backward": _derivative("sigmoid"),
    "threshold_backward": _derivative("threshold"),
}
CONSTANTS = {
    "full", "full_like", "fill", "new_full", "scalar_tensor", "zeros", "zeros_like", "new_zeros", "zero", "empty",
    "empty_like", "new_empty", "empty_strided", "new_empty_strided", "ones", "ones_like", "new_ones", "arange", "iota",
    "sym_size", "sym_numel",
}  # fmt: skip
FREE = {*VIEWS, *PARTS, *CONSTANTS}  # never worth memory of their own
COVERED = {*UNARY, *BINARY, *RULES, *PARTS, *CONSTANTS, *REDUCTIONS, *PIECES, "mm", "bmm"}


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
        refuse(node, "over no axis is not covered by kernels")
    if any(dims(source)[axis] is None for axis in axes):
        refuse(node, "gathers rows")
    return short(node), source, axes


POINTWISE = {
    "where", "masked_fill", "addcmul", "addcdiv", "clamp", "clamp_min", "clamp_max", "_to_copy", "tanh_backward",
    "sigmoid_backward", "threshold_backward",
}  # fmt: skip


NORMS = {"native_layer_norm", "native_layer_norm_backward"}
STREAMED = 1 << 17  # numbers of a matrix that leaves the cache between two steps


def is_pointwise(node: fx.Node) -> bool:
    """Whether an operator takes one value of each argument at a time: in a kernel it reads parts as it reads wholes."""
    return node.op == "call_function" and short(node) in {*UNARY, *BINARY, *POINTWISE}


def is_drawn_in(node: fx.Node) -> bool:
    """Whether an operator may as well run inside: pointwise, a view, a norm, or a product of rows with a parameter.

    There it costs what it costs outside, and no pass over memory. Not so where the parameter is large: inside it is
    read again for every step, outside once for many.
    """
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
        return False
    if short(node) in ("mm", "addmm"):
        left, right = arguments(node)[-2:]
        if has_rows(right.meta["val"]) or right.meta["val"].numel() > STREAMED:
            return False
        return has_rows(left.meta["val"])
    return short(node) in {*UNARY, *BINARY, *POINTWISE, *VIEWS, *PARTS, *NORMS, "cat"}
