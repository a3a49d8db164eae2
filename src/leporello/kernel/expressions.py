"""ATen operators as expressions: what an operator's value is at an index, from the values it is made of.

`EXPRESSION_RULES` has one entry for each ATen operator that is an expression: a pointwise operator, a view, a constant,
or a value fetched at computed positions. Products, reductions and values written part by part are blocks, which
`lower` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from leporello.kernel.description import Along, Apply, Constant, Expression, Fetch, Load, Position
from leporello.kernel.index import Index
from leporello.kernel.lowering_context import LoweringContext, Positions, cast, dims, dtype_of, refuse, short
from leporello.kernel.operators import OPERATORS
from leporello.kernel.partial_writes import PARTIAL_WRITES
from leporello.kernel.views import SPLITS, VIEW_RULES, broadcast, same_value
from leporello.loop.graph import arguments
from leporello.loop.sizes import Size

ExpressionRule = Callable[[LoweringContext, fx.Node, Positions], Expression]


def expression_of(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """The value of an operator at an index, by its rule; an operator without one is refused."""
    rule = EXPRESSION_RULES.get(short(node))
    if rule is None:
        refuse(node)
    return rule.expression(context, node, index)


# ---- operands


def _operand(context: LoweringContext, argument: Any, node: fx.Node, index: Positions) -> Expression:
    """An argument of a pointwise operator at an index of the operator's value, to which it is broadcast.

    A Python number gives a constant. The result has the argument's own type, which may differ from the operator's.
    """
    if not isinstance(argument, fx.Node):
        if not isinstance(argument, (bool, int, float, Size)):
            refuse(node)
        return Constant(argument, _type_of_number(argument, dtype_of(node)))
    if not isinstance(argument.meta["val"], Tensor):
        refuse(node)
    sizes = dims(argument)
    for size, position in zip(sizes, index[len(index) - len(sizes) :], strict=True):
        if (size is None) != (position is None) and size != 1:
            refuse(node)
    return context.at(argument, tuple(broadcast(argument, index)))


def _operands(context: LoweringContext, node: fx.Node, index: Positions, count: int) -> list[Expression]:
    """The first `count` arguments of a pointwise operator, each in its own type."""
    return [_operand(context, argument, node, index) for argument in arguments(node)[:count]]


def _type_of_number(number: bool | int | float | Size, result: torch.dtype) -> torch.dtype:
    """The type of a Python number beside tensors, by the type of the operator's result.

    As in torch, the number never widens a floating-point result.
    """
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, Size)) and not result.is_floating_point:
        return torch.int64
    return result if result.is_floating_point else torch.float64


def _common_type(node: fx.Node) -> torch.dtype:
    """The type in which an operator's first two arguments are compared: torch's promotion of both."""
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments(node)[:2]]
    dtype: torch.dtype = elementwise_dtypes(*values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)[0]
    return dtype


# ---- pointwise operators


def _unary(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    name, dtype = short(node), dtype_of(node)
    value = _operand(context, arguments(node)[0], node, index)
    if len(arguments(node)) > 1 or "decimals" in node.kwargs:
        refuse(node)
    if OPERATORS[name].operands == "any":
        return Apply(name, (value,), dtype)
    value = cast(value, dtype)
    if OPERATORS[name].integers == "identity" and not dtype.is_floating_point:
        return value
    return Apply(name, (value,), dtype)


def _binary(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    name, dtype = short(node), dtype_of(node)
    operator = OPERATORS[ALIASES.get(name, name)]
    one, other = _operands(context, node, index, 2)
    if operator.operands == "any":
        return Apply(name, (one, other), dtype)
    working = _common_type(node) if operator.operands == "common" else dtype
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
        return _division(name, node, one, other)
    if dtype == torch.bool:
        name = operator.on_bools or name
    return Apply(name, (one, other), dtype)


def _division(name: str, node: fx.Node, one: Expression, other: Expression) -> Expression:
    dtype = dtype_of(node)
    mode = "floor" if name == "floor_divide" else node.kwargs.get("rounding_mode")
    if mode == "floor":
        return Apply("floor_divide", (one, other), dtype)
    quotient = Apply("div" if dtype.is_floating_point else "quotient", (one, other), dtype)
    return Apply("trunc", (quotient,), dtype) if mode == "trunc" and dtype.is_floating_point else quotient


def _where(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    condition, *both = _operands(context, node, index, 3)
    return Apply("where", (condition, *(cast(value, dtype_of(node)) for value in both)), dtype_of(node))


def _masked_fill(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    value, condition, other = _operands(context, node, index, 3)
    dtype = dtype_of(node)
    return Apply("where", (condition, cast(other, dtype), cast(value, dtype)), dtype)


def _addcmul(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """addcmul: one + factor * (two * three); addcdiv: one + factor * (two / three)."""
    dtype, factor = dtype_of(node), node.kwargs.get("value", 1)
    one, two, three = (cast(value, dtype) for value in _operands(context, node, index, 3))
    inner = Apply("mul" if short(node) == "addcmul" else "div", (two, three), dtype)
    if factor != 1:
        inner = Apply("mul", (inner, Constant(factor, dtype)), dtype)  # type: ignore[arg-type]
    return Apply("add", (one, inner), dtype)


def _clamp(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    dtype = dtype_of(node)
    value = cast(_operand(context, arguments(node)[0], node, index), dtype)
    low = node.kwargs.get("min", arguments(node)[1] if len(arguments(node)) > 1 else None)
    high = node.kwargs.get("max", arguments(node)[2] if len(arguments(node)) > 2 else None)
    if short(node) == "clamp_max":
        low, high = None, arguments(node)[1]
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            value = Apply(name, (value, cast(_operand(context, limit, node, index), dtype)), dtype)
    return value


def _tanh_backward(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    dtype = dtype_of(node)
    gradient, value = _operands(context, node, index, 2)
    slope = Apply("sub", (Constant(1.0, dtype), Apply("mul", (value, value), dtype)), dtype)
    return Apply("mul", (gradient, slope), dtype)


def _sigmoid_backward(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    dtype = dtype_of(node)
    gradient, value = _operands(context, node, index, 2)
    slope = Apply("mul", (value, Apply("sub", (Constant(1.0, dtype), value), dtype)), dtype)
    return Apply("mul", (gradient, slope), dtype)


def _threshold_backward(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    dtype = dtype_of(node)
    gradient, value = _operands(context, node, index, 2)
    below = Apply("le", (value, Constant(float(arguments(node)[2]), dtype)), torch.bool)
    return Apply("where", (below, Constant(0.0, dtype), gradient), dtype)


# ---- constants


def _constant(argument: int | None, number: float | None = None) -> ExpressionRule:
    """Returns the rule of an operator whose elements are all equal.

    argument   the position of the operator's argument that is their value, a number or a node; None: it is `number`
    """

    def rule(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
        value: Any = number if argument is None else arguments(node)[argument]
        if isinstance(value, fx.Node):
            return cast(_operand(context, value, node, index), dtype_of(node))
        if not isinstance(value, (bool, int, float)):
            refuse(node)
        return Constant(value, dtype_of(node))

    return rule


def _arange(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """arange, iota: start + step * position."""
    numbers = [argument for argument in arguments(node) if isinstance(argument, (int, float))]
    if len(numbers) != len(arguments(node)) or index[0] is None:
        refuse(node)
    start: Any = numbers[0] if len(numbers) > 1 else node.kwargs.get("start", 0)
    step: Any = numbers[2] if len(numbers) > 2 else node.kwargs.get("step", 1)
    if short(node) == "iota":
        start, step = node.kwargs["start"], node.kwargs["step"]
    dtype = dtype_of(node)
    value: Expression = Position(index[0], dtype)
    if step != 1:
        value = Apply("mul", (value, Constant(step, dtype)), dtype)
    return value if start == 0 else Apply("add", (value, Constant(start, dtype)), dtype)


# ---- values at computed positions; their source is always in memory


def _fetch(
    context: LoweringContext, node: fx.Node, index: Sequence[Index | None], computed: Mapping[int, Expression]
) -> Expression:
    """An element of an operator's first argument, at a position that is partly computed in the step.

    index      the position along each axis of the first argument
    computed   axes with expressions that replace `index` there; values outside an axis are clamped to it
    """
    source = arguments(node)[0]
    sizes = dims(source)
    if any(sizes[axis] is None for axis in computed):
        refuse(node, "chooses among rows")
    base = context.at(source, tuple(Index() if axis in computed else place for axis, place in enumerate(index)))
    assert isinstance(base, Load), "what is fetched is in memory"
    strides, stride = {}, 1
    for axis in reversed(range(len(sizes))):
        strides[axis] = stride
        stride *= sizes[axis] or 1
    along = tuple(Along(number, sizes[axis] or 1, strides[axis]) for axis, number in computed.items())
    return Fetch(base.buffer, base.index, along)


def _embedding(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """embedding: an element of the table's line that the second argument names."""
    number = context.at(arguments(node)[1], index[:-1])
    return _fetch(context, node, (None, index[-1]), {0: number})


def _gather(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    axis = int(arguments(node)[1]) % len(index)
    return _fetch(context, node, index, {axis: context.at(arguments(node)[2], index)})


def _index_select(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    axis = int(arguments(node)[1]) % len(index)
    return _fetch(context, node, index, {axis: context.at(arguments(node)[2], (index[axis],))})


def _indexing(context: LoweringContext, node: fx.Node, index: Positions) -> Expression:
    """value[:, numbers]: integer tensors index adjacent axes, broadcast together; negative values count from the end.

    Masks, indices for axes that are not adjacent, and indices into the row axis are refused.
    """
    source, numbers_by_axis = arguments(node)[:2]
    chosen = {axis: numbers for axis, numbers in enumerate(numbers_by_axis) if numbers is not None}
    begin = min(chosen)
    if list(chosen) != list(range(begin, begin + len(chosen))):
        refuse(node, "with numbers for axes that do not lie beside each other is not covered by kernels")
    if any(dtype_of(numbers) in (torch.bool, torch.uint8) for numbers in chosen.values()):
        refuse(node)
    count = max(len(dims(numbers)) for numbers in chosen.values())
    of_numbers, rest = index[begin : begin + count], iter((*index[:begin], *index[begin + count :]))
    positions = [Index() if axis in chosen else next(rest) for axis in range(len(dims(source)))]
    computed: dict[int, Expression] = {}
    for axis, numbers in chosen.items():
        size = dims(source)[axis]
        if size is None:
            refuse(node, "chooses among rows")
        number, dtype = _operand(context, numbers, node, of_numbers), dtype_of(numbers)
        from_end = Apply("add", (number, Constant(size, dtype)), dtype)
        negative = Apply("lt", (number, Constant(0, dtype)), torch.bool)
        computed[axis] = Apply("where", (negative, from_end, number), dtype)
    return _fetch(context, node, positions, computed)


# ---- the table


@dataclass(frozen=True)
class OperatorRule:
    """How an ATen operator is lowered to an expression.

    expression  the rule: from the context, the operator and an index, its value there
    kind        "pointwise": one element of each argument for each element; "view"; "constant"; "fetch": at computed
                positions of its first argument, which is then materialised
    streamed    as in `Operator`: written out at every reader rather than materialised
    """

    expression: ExpressionRule
    kind: Literal["pointwise", "view", "constant", "fetch"]
    streamed: bool = True


ALIASES = {"true_divide": "div", "rsub": "sub"}  # ATen operators that are another with its arguments exchanged or not
_GENERIC = {
    name: operator
    for name, operator in OPERATORS.items()
    if not operator.reduction and name not in ("cast", "quotient")
}
EXPRESSION_RULES: dict[str, OperatorRule] = {
    **{
        n: OperatorRule(_unary, "pointwise", operator.streamed)
        for n, operator in _GENERIC.items()
        if operator.arity == 1
    },
    **{
        n: OperatorRule(_binary, "pointwise", operator.streamed)
        for n, operator in _GENERIC.items()
        if operator.arity == 2
    },
    **{n: OperatorRule(_binary, "pointwise", OPERATORS[name].streamed) for n, name in ALIASES.items()},
    "where": OperatorRule(_where, "pointwise"),
    "masked_fill": OperatorRule(_masked_fill, "pointwise"),
    **dict.fromkeys(["addcmul", "addcdiv"], OperatorRule(_addcmul, "pointwise")),
    **dict.fromkeys(["clamp", "clamp_min", "clamp_max"], OperatorRule(_clamp, "pointwise")),
    **dict.fromkeys(["_to_copy", "convert_element_type"], OperatorRule(same_value, "pointwise")),
    "tanh_backward": OperatorRule(_tanh_backward, "pointwise"),
    "sigmoid_backward": OperatorRule(_sigmoid_backward, "pointwise"),
    "threshold_backward": OperatorRule(_threshold_backward, "pointwise"),
    **{name: OperatorRule(view, "view") for name, view in VIEW_RULES.items()},
    **dict.fromkeys(["full", "full_like", "fill"], OperatorRule(_constant(1), "constant")),
    "new_full": OperatorRule(_constant(2), "constant"),
    "scalar_tensor": OperatorRule(_constant(0), "constant"),
    **dict.fromkeys(["zeros", "zeros_like", "new_zeros", "zero"], OperatorRule(_constant(None, 0), "constant")),
    **dict.fromkeys(
        ["empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"],
        OperatorRule(_constant(None, 0), "constant"),
    ),
    **dict.fromkeys(["ones", "ones_like", "new_ones"], OperatorRule(_constant(None, 1), "constant")),
    **dict.fromkeys(["arange", "iota"], OperatorRule(_arange, "constant")),
    "embedding": OperatorRule(_embedding, "fetch", streamed=False),
    "gather": OperatorRule(_gather, "fetch", streamed=False),
    "index": OperatorRule(_indexing, "fetch", streamed=False),
    "index_select": OperatorRule(_index_select, "fetch", streamed=False),
}
SIZES = {"sym_size", "sym_numel"}  # numbers that follow from the number of rows
PRODUCTS = {"mm", "bmm"}
REDUCTIONS = {name for name, operator in OPERATORS.items() if operator.reduction}
POINTWISE = {name for name, rule in EXPRESSION_RULES.items() if rule.kind == "pointwise"}
FETCHES = {name for name, rule in EXPRESSION_RULES.items() if rule.kind == "fetch"}
NOT_STREAMED = {name for name, rule in EXPRESSION_RULES.items() if not rule.streamed}
NEVER_MATERIALISED = (
    {name for name, rule in EXPRESSION_RULES.items() if rule.kind in ("view", "constant")} | SPLITS | SIZES
)
COVERED = {*EXPRESSION_RULES, *SPLITS, *SIZES, *PRODUCTS, *REDUCTIONS, *PARTIAL_WRITES}


def is_pointwise(node: fx.Node) -> bool:
    """Whether each element of an operator's value needs one element of each argument: it may be applied to slices."""
    return node.op == "call_function" and short(node) in POINTWISE
