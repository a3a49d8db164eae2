"""`OPERATORS`: how ATen's operators on numbers are written in ONNX, a row each; those on shapes are in `onnx_views`.

A rule gets the writer, the operator and its arguments by name, and returns the names of its results. What is not here
is decomposed into what is, or refused by name. A contract test walks the tables with onnxruntime beside torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from leporello.nets.export.onnx_step import Rule, StepWriter

Arguments = Mapping[str, Any]


def _one(kind: str) -> Rule:
    """A function of one value, computed in the type of its result."""
    return lambda at, node, a: at.graph(kind, at.value(node.args[0], at.result(node)))


def _test(kind: str) -> Rule:
    """A property of one value, a boolean."""
    return lambda at, node, a: at.graph(kind, at.value(node.args[0]))


def _composed(function: Callable[[StepWriter, str, torch.dtype], str]) -> Rule:
    """A function of one value, in the type of its result, for which ONNX has no operator of its own."""
    return lambda at, node, a: function(at, at.value(node.args[0], at.result(node)), at.result(node))


def _two(kind: str, on_bools: str | None = None) -> Rule:
    """A function of two values, computed in the type of its result."""

    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        dtype = at.result(node)
        one, other = (at.value(value, dtype) for value in node.args[:2])
        alpha = a.get("alpha", 1)
        if alpha != 1:
            other = at.graph("Mul", other, at.graph.constant(alpha, dtype))
        return at.graph(on_bools if on_bools is not None and dtype is torch.bool else kind, one, other)

    return rule


def _reversed_difference(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    one, other = at.value(a["self"], dtype), at.value(a["other"], dtype)
    if a.get("alpha", 1) != 1:
        one = at.graph("Mul", one, at.graph.constant(a["alpha"], dtype))
    return at.graph("Sub", other, one)


def _common_type(one: Any, other: Any) -> torch.dtype:
    found = [argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in (one, other)]
    return torch.result_type(*found)


def _comparison(kind: str, negated: bool = False) -> Rule:
    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        dtype = _common_type(*node.args[:2])
        if dtype is torch.bool and kind != "Equal":
            dtype = torch.int32
        found = at.graph(kind, *(at.value(value, dtype) for value in node.args[:2]))
        return at.graph("Not", found) if negated else found

    return rule


def _logical(kind: str) -> Rule:
    return lambda at, node, a: at.graph(kind, *(at.value(value, torch.bool) for value in node.args))


def _bitwise(kind: str, on_bools: str) -> Rule:
    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        dtype = at.result(node)
        return at.graph(on_bools if dtype is torch.bool else kind, *(at.value(value, dtype) for value in node.args))

    return rule


def _number(at: StepWriter, value: float, dtype: torch.dtype) -> str:
    return at.graph.constant(value, dtype)


# ---- functions that ONNX has no operator for


def _log1p(at: StepWriter, x: str, dtype: torch.dtype) -> str:
    """log(1 + x), also for small x: the rounding of 1 + x is divided out."""
    one = _number(at, 1, dtype)
    above = at.graph("Add", x, one)
    rounded = at.graph("Sub", above, one)
    exact = at.graph("Mul", at.graph("Log", above), at.graph("Div", x, rounded))
    is_small = at.graph("Equal", rounded, _number(at, 0, dtype))
    is_infinite = at.graph("Equal", above, _number(at, math.inf, dtype))
    return at.graph("Where", is_small, x, at.graph("Where", is_infinite, above, exact))


def _expm1(at: StepWriter, x: str, dtype: torch.dtype) -> str:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), also for small x."""
    half = at.graph("Tanh", at.graph("Mul", x, _number(at, 0.5, dtype)))
    return at.graph("Mul", half, at.graph("Add", at.graph("Exp", x), _number(at, 1, dtype)))


def _scaled(kind: str, factor: float) -> Callable[[StepWriter, str, torch.dtype], str]:
    return lambda at, x, dtype: at.graph("Mul", at.graph(kind, x), _number(at, factor, dtype))


def _truncated(at: StepWriter, x: str, dtype: torch.dtype) -> str:
    return at.graph("Mul", at.graph("Sign", x), at.graph("Floor", at.graph("Abs", x)))


def _tangent(at: StepWriter, x: str, dtype: torch.dtype) -> str:
    return at.graph("Div", at.graph("Sin", x), at.graph("Cos", x))


def _sign_bit(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    value = node.args[0]
    assert isinstance(value, fx.Node)
    dtype = at.result(value)
    inverse = at.graph("Div", _number(at, 1, dtype), at.value(value)) if dtype.is_floating_point else at.value(value)
    negative = at.graph("Less", at.value(value), _number(at, 0, dtype))
    return at.graph("Or", negative, at.graph("Less", inverse, _number(at, 0, dtype)))  # 1 / -0 is -inf


def _hypotenuse(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """sqrt(x² + y²), with the larger factored out: no square overflows."""
    dtype = at.result(node)
    one, other = (at.graph("Abs", at.value(value, dtype)) for value in node.args)
    larger, smaller = at.graph("Max", one, other), at.graph("Min", one, other)
    divisor = at.graph("Where", at.graph("Equal", larger, _number(at, 0, dtype)), _number(at, 1, dtype), larger)
    ratio = at.graph("Div", smaller, divisor)
    root = at.graph("Sqrt", at.graph("Add", at.graph("Mul", ratio, ratio), _number(at, 1, dtype)))
    return at.graph("Mul", larger, root)


def _arc_tangent_of_two(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """The angle of (x, y): atan(y / x), and half a turn more where x is negative."""
    dtype = at.result(node)
    y, x = (at.value(value, dtype) for value in node.args)
    zero = _number(at, 0, dtype)
    below = at.graph("Less", y, zero)
    half_turn = at.graph("Where", below, _number(at, -math.pi, dtype), _number(at, math.pi, dtype))
    right = at.graph("Atan", at.graph("Div", y, x))
    angle = at.graph("Where", at.graph("Less", x, zero), at.graph("Add", right, half_turn), right)
    both_zero = at.graph("And", at.graph("Equal", x, zero), at.graph("Equal", y, zero))
    return at.graph("Where", both_zero, zero, angle)


def _copied_sign(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    size = at.graph("Abs", at.value(a["self"], dtype))
    negative = at.graph("Less", at.value(a["other"], dtype), _number(at, 0, dtype))
    return at.graph("Where", negative, at.graph("Neg", size), size)


def _rounded(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype, decimals = at.result(node), a.get("decimals", 0)
    value, scale = at.value(a["self"], dtype), 10.0 ** abs(decimals)
    if not decimals:
        return at.graph("Round", value)
    forth, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    scaled = at.graph(forth, value, _number(at, scale, dtype))
    return at.graph(back, at.graph("Round", scaled), _number(at, scale, dtype))


def _softplus(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    x = at.value(a["self"], dtype)
    scaled = x if a["beta"] == 1 else at.graph("Mul", x, _number(at, a["beta"], dtype))
    curve = at.graph("Softplus", scaled)
    curve = curve if a["beta"] == 1 else at.graph("Div", curve, _number(at, a["beta"], dtype))
    return at.graph("Where", at.graph("Greater", scaled, _number(at, a["threshold"], dtype)), x, curve)


# ---- division


def _remainder(at: StepWriter, one: str, other: str, dtype: torch.dtype) -> str:
    """What is left of a division that is rounded down: it has the sign of the divisor."""
    if not dtype.is_floating_point:
        return at.graph("Mod", one, other)
    zero = _number(at, 0, dtype)
    left = at.graph("Mod", one, other, fmod=1)
    signs_differ = at.graph("Xor", at.graph("Less", left, zero), at.graph("Less", other, zero))
    wrong = at.graph("And", signs_differ, at.graph("Not", at.graph("Equal", left, zero)))
    return at.graph("Where", wrong, at.graph("Add", left, other), left)


def _rounded_down(at: StepWriter, one: str, other: str, dtype: torch.dtype) -> str:
    whole = at.graph("Div", at.graph("Sub", one, _remainder(at, one, other, dtype)), other)
    return at.graph("Round", whole) if dtype.is_floating_point else whole


def _division(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    one, other = (at.value(value, dtype) for value in node.args[:2])
    mode = a.get("rounding_mode")
    if mode == "floor":
        return _rounded_down(at, one, other, dtype)
    quotient = at.graph("Div", one, other)  # of integers it is rounded towards zero
    return _truncated(at, quotient, dtype) if mode == "trunc" and dtype.is_floating_point else quotient


def _by_division(function: Callable[[StepWriter, str, str, torch.dtype], str]) -> Rule:
    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        dtype = at.result(node)
        return function(at, at.value(node.args[0], dtype), at.value(node.args[1], dtype), dtype)

    return rule


# ---- choice, limits, types


def _clamp(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    value = at.value(a["self"], dtype)
    for kind, limit in (("Max", a.get("min")), ("Min", a.get("max"))):
        if limit is not None:
            value = at.graph(kind, value, at.value(limit, dtype))
    return value


def chosen(at: StepWriter, condition: str, one: str, other: str, dtype: torch.dtype) -> str:
    """One value where the condition holds, else the other; onnxruntime has no Where for all types."""
    if dtype is torch.bool:
        left = at.graph("And", at.graph("Not", condition), other)
        return at.graph("Or", at.graph("And", condition, one), left)
    if dtype is torch.int16:
        wide = at.graph("Where", condition, at.graph.cast(one, torch.int32), at.graph.cast(other, torch.int32))
        return at.graph.cast(wide, dtype)
    return at.graph("Where", condition, one, other)


def _where(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    condition, one, other = node.args
    return chosen(at, at.value(condition, torch.bool), at.value(one, dtype), at.value(other, dtype), dtype)


def _masked_fill(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    return chosen(at, at.value(a["mask"]), at.value(a["value"], dtype), at.value(a["self"], dtype), dtype)


def _to_copy(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.value(node.args[0], at.result(node))


# ---- products


def _product(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    return at.graph("MatMul", *(at.value(value, dtype) for value in node.args))


def _added_product(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    factors = [at.value(a[name], dtype) for name in ("mat1", "mat2", "self")]
    return at.graph("Gemm", *factors, alpha=float(a["alpha"]), beta=float(a["beta"]))


def _convolution(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    operands = [at.value(a[name], dtype) for name in ("input", "weight", "bias") if a[name] is not None]
    places = node.meta["val"].dim() - 2
    padding, stride, dilation = (_for_each(a[name], places) for name in ("padding", "stride", "dilation"))
    options: dict[str, Any] = {"strides": stride, "dilations": dilation, "pads": padding * 2, "group": a["groups"]}
    if a["transposed"]:
        options["output_padding"] = _for_each(a["output_padding"], places)
    return at.graph("ConvTranspose" if a["transposed"] else "Conv", *operands, **options)


def _for_each(numbers: list[int], places: int) -> list[int]:
    return list(numbers) * places if len(numbers) == 1 else list(numbers)


# ---- reductions


def _axes(node: fx.Node, dim: Any) -> list[int]:
    count = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    given = [dim] if isinstance(dim, int) else list(dim or range(count))
    return [axis % count for axis in given] if count else []


def _reduction(kind: str) -> Rule:
    """A reduction over axes; over all, where none is named."""

    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        dtype = at.result(node)
        value = at.value(node.args[0], dtype)
        if dtype is torch.bool:  # ONNX reduces numbers
            value = at.graph.cast(value, torch.int32)
        axes = _axes(node, a.get("dim"))
        if axes:
            value = at.graph(kind, value, at.graph.ints(*axes), keepdims=int(bool(a.get("keepdim", False))))
        return at.graph.cast(value, dtype) if dtype is torch.bool else value

    return rule


def _position(kind: str) -> Rule:
    """The place of the largest or smallest number; of all, where no axis is named."""

    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        value = at.value(a["self"])
        axis, keep = a.get("dim"), int(bool(a.get("keepdim", False)))
        if axis is None:
            value, axis, keep = at.graph.reshape(value, -1), 0, 0
        return at.graph(kind, value, axis=axis, keepdims=keep)

    return rule


def _extreme_with_place(reduction: str, position: str) -> Rule:
    """The largest or smallest number along an axis, and its place; of all, the number alone."""

    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> Any:
        value = at.value(a["self"])
        if "dim" not in a:
            return at.graph(reduction, value, keepdims=0)
        keep = int(bool(a["keepdim"]))
        best = at.graph(reduction, value, at.graph.ints(a["dim"]), keepdims=keep)
        return best, at.graph(position, value, axis=a["dim"], keepdims=keep)

    return rule


def _softmax(kind: str) -> Rule:
    return lambda at, node, a: at.graph(kind, at.value(a["self"], at.result(node)), axis=a["dim"])


def _layer_norm(at: StepWriter, node: fx.Node, a: Arguments) -> tuple[str, ...]:
    dtype = node.meta["val"][0].dtype
    shape = a["normalized_shape"]
    scale = at.graph.constant(torch.ones(shape, dtype=dtype)) if a["weight"] is None else at.value(a["weight"], dtype)
    shift = [] if a["bias"] is None else [at.value(a["bias"], dtype)]
    read = {user.args[1] for user in node.users}
    names = ["normed" if index == 0 or index in read else "" for index in range(3)]
    while not names[-1]:
        names.pop()
    options = {"axis": -len(shape), "epsilon": float(a["eps"])}
    found = at.graph.several("LayerNormalization", at.value(a["input"]), scale, *shift, names=names, **options)
    return tuple(found)


def _running_sum(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.graph("CumSum", at.value(a["self"], at.result(node)), at.graph.constant(a["dim"], torch.int64))


def _running_product(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """Part by part: ONNX has no running product."""
    value, axis = at.value(a["self"], at.result(node)), a["dim"]
    count = node.meta["val"].shape[axis]
    if count == 1:
        return value
    parts = at.graph.several("Split", value, at.graph.ints(*[1] * count), names=["part"] * count, axis=axis)
    for index in range(1, count):
        parts[index] = at.graph("Mul", parts[index - 1], parts[index])
    return at.graph("Concat", *parts, axis=axis)


def _sorted_part(at: StepWriter, node: fx.Node, a: Arguments) -> tuple[str, ...]:
    """topk, and sort, which takes all."""
    value = a["self"]
    axis, size = a["dim"], value.meta["val"].shape[a["dim"]]
    count, largest = (a["k"], a["largest"]) if "k" in a else (size, a["descending"])
    options = {"axis": axis, "largest": int(largest), "sorted": 1}
    return tuple(at.graph.several("TopK", at.value(value), at.graph.ints(count), names=["values", "places"], **options))


OPERATORS: dict[str, Rule] = {
    # arithmetic
    "add": _two("Add", on_bools="Or"),
    "sub": _two("Sub"),
    "rsub": _reversed_difference,
    "mul": _two("Mul", on_bools="And"),
    "div": _division,
    "neg": _one("Neg"),
    "abs": _one("Abs"),
    "reciprocal": _one("Reciprocal"),
    "pow": _two("Pow"),
    "floor_divide": _by_division(_rounded_down),
    "remainder": _by_division(_remainder),
    "fmod": _by_division(lambda at, one, other, dtype: at.graph("Mod", one, other, fmod=1)),
    # exponentials, powers, logarithms
    "exp": _one("Exp"),
    "exp2": _composed(lambda at, x, dtype: at.graph("Pow", _number(at, 2, dtype), x)),
    "expm1": _composed(_expm1),
    "log": _one("Log"),
    "log2": _composed(_scaled("Log", 1 / math.log(2))),
    "log10": _composed(_scaled("Log", 1 / math.log(10))),
    "log1p": _composed(_log1p),
    "sqrt": _one("Sqrt"),
    "rsqrt": _composed(lambda at, x, dtype: at.graph("Reciprocal", at.graph("Sqrt", x))),
    "sigmoid": _one("Sigmoid"),
    "erf": _one("Erf"),
    "erfc": _composed(lambda at, x, dtype: at.graph("Sub", _number(at, 1, dtype), at.graph("Erf", x))),
    "softplus": _softplus,
    # circles and hyperbolas
    "sin": _one("Sin"),
    "cos": _one("Cos"),
    "tan": _composed(_tangent),
    "asin": _one("Asin"),
    "acos": _one("Acos"),
    "atan": _one("Atan"),
    "atan2": _arc_tangent_of_two,
    "hypot": _hypotenuse,
    "sinh": _one("Sinh"),
    "cosh": _one("Cosh"),
    "tanh": _one("Tanh"),
    "asinh": _one("Asinh"),
    "acosh": _one("Acosh"),
    "atanh": _one("Atanh"),
    # limits, signs, rounding
    "relu": _composed(lambda at, x, dtype: at.graph("Max", x, _number(at, 0, dtype))),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "minimum": _two("Min", on_bools="And"),
    "maximum": _two("Max", on_bools="Or"),
    "sign": _one("Sign"),
    "sgn": _one("Sign"),
    "copysign": _copied_sign,
    "floor": _one("Floor"),
    "ceil": _one("Ceil"),
    "trunc": _composed(_truncated),
    "round": _rounded,
    # comparisons, logic, bits
    "eq": _comparison("Equal"),
    "ne": _comparison("Equal", negated=True),
    "lt": _comparison("Less"),
    "le": _comparison("LessOrEqual"),
    "gt": _comparison("Greater"),
    "ge": _comparison("GreaterOrEqual"),
    "isnan": _test("IsNaN"),
    "isinf": _test("IsInf"),
    "signbit": _sign_bit,
    "logical_not": _logical("Not"),
    "logical_and": _logical("And"),
    "logical_or": _logical("Or"),
    "logical_xor": _logical("Xor"),
    "bitwise_not": _bitwise("BitwiseNot", "Not"),
    "bitwise_and": _bitwise("BitwiseAnd", "And"),
    "bitwise_or": _bitwise("BitwiseOr", "Or"),
    "bitwise_xor": _bitwise("BitwiseXor", "Xor"),
    # choice and conversion
    "where": _where,
    "masked_fill": _masked_fill,
    "_to_copy": _to_copy,
    "convert_element_type": _to_copy,
    # products
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "dot": _product,
    "addmm": _added_product,
    "convolution": _convolution,
    # reductions
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "prod": _reduction("ReduceProd"),
    "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"),
    "any": _reduction("ReduceMax"),
    "all": _reduction("ReduceMin"),
    "argmax": _position("ArgMax"),
    "argmin": _position("ArgMin"),
    "max": _extreme_with_place("ReduceMax", "ArgMax"),
    "min": _extreme_with_place("ReduceMin", "ArgMin"),
    "_softmax": _softmax("Softmax"),
    "_log_softmax": _softmax("LogSoftmax"),
    "native_layer_norm": _layer_norm,
    "cumsum": _running_sum,
    "cumprod": _running_product,
    "sort": _sorted_part,
    "topk": _sorted_part,
}
