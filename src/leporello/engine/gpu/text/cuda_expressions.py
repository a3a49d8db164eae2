"""Expressions as statements of C++: numbers are computed in float32, whole numbers in their own type."""

from __future__ import annotations

from collections.abc import Callable

import torch

from leporello.engine.cpu.c_operators import INTEGER_SPELLING, POWERS, SPELLING, TYPES, literal
from leporello.errors import EngineRefusal
from leporello.kernel.description import (
    Apply,
    Constant,
    Expression,
    Fetch,
    Load,
    Position,
    dtype_of_expression,
)
from leporello.kernel.index import Index, Quotient

STORAGE = {**TYPES, torch.float16: "u16", torch.bfloat16: "u16"}
FROM_STORAGE = {torch.float16: "from_f16({0})", torch.bfloat16: "from_bf16({0})"}
TO_STORAGE = {torch.float16: "to_f16({0})", torch.bfloat16: "to_bf16({0})"}
GPU_SPELLING = {**SPELLING, "signbit": "negative({0})", "isinf": "fabsf({0}) == INFINITE", "rsqrt": "rsqrtf({0})"}


def computed_type(dtype: torch.dtype) -> str:
    """The C++ type that values of a dtype are computed in."""
    return "float" if dtype.is_floating_point else TYPES[dtype]


def index_text(index: Index, variables: dict[str, str]) -> str:
    """An index with the texts of its loop variables."""
    parts = [
        f"{factor} * {_variable(v, variables)}" if factor != 1 else _variable(v, variables) for v, factor in index.terms
    ]
    parts += [str(index.const)] if index.const or not parts else []
    return " + ".join(parts)


def _variable(variable: object, variables: dict[str, str]) -> str:
    if isinstance(variable, str):
        return variables[variable]
    sign = "/" if isinstance(variable, Quotient) else "%"
    return f"(({index_text(variable.index, variables)}) {sign} {variable.size})"  # type: ignore[attr-defined]


class Body:
    """Statements while they are written; each expression is computed once.

    load        the text of a load from memory, a register or a vector
    variables   texts of the loop variables
    """

    def __init__(
        self, load: Callable[[Body, Load | Fetch, str | None], str], variables: dict[str, str], count: list[int]
    ) -> None:
        self.load, self.variables = load, variables
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self._alive: list[Expression] = []  # ids of expressions that are kept are not used again
        self._count = count

    def named(self, text: str, kind: str) -> str:
        if text.isidentifier():
            return text
        self._count[0] += 1
        name = f"t{self._count[0]}"
        self.lines.append(f"const {kind} {name} = {text};")
        return name

    def value(self, expression: Expression) -> str:
        """The name or literal of an expression's value; statements that compute it are added where it is new."""
        if id(expression) in self.names:
            return self.names[id(expression)]
        text = self._text(expression)
        if isinstance(expression, (Apply, Load, Fetch)):
            text = self.named(text, computed_type(dtype_of_expression(expression)))
        self.names[id(expression)] = text
        self._alive.append(expression)
        return text

    def offset(self, fetch: Fetch) -> str:
        """The position that a fetch reads."""
        parts = [index_text(fetch.index, self.variables)]
        for along in fetch.by:
            number, last = self.value(along.number), int(along.size) - 1
            parts.append(f"({number} < 0 ? 0 : {number} > {last} ? {last} : (long){number}) * {along.stride}")
        return " + ".join(parts)

    def _text(self, expression: Expression) -> str:
        if isinstance(expression, Load):
            return self.load(self, expression, None)
        if isinstance(expression, Fetch):
            return self.load(self, expression, self.offset(expression))
        if isinstance(expression, Constant):
            if expression.dtype.is_floating_point:
                return _float_literal(expression)
            return literal(expression.value, expression.dtype)
        if isinstance(expression, Position):
            return f"(({computed_type(expression.dtype)})({index_text(expression.index, self.variables)}))"
        return self._applied(expression)

    def _applied(self, expression: Apply) -> str:
        arguments = [self.value(argument) for argument in expression.arguments]
        if expression.operator == "pow" and isinstance(expression.arguments[1], Constant):
            exponent = expression.arguments[1].value
            if exponent in POWERS:
                return POWERS[exponent].format(arguments[0])
        types = [dtype_of_expression(argument) for argument in expression.arguments]
        floating = any(dtype.is_floating_point for dtype in types)
        if expression.operator == "cast" and not floating:
            floating = expression.dtype.is_floating_point
        if expression.operator == "cast" and expression.dtype == torch.bool:
            return f"{arguments[0]} != 0"
        pattern = (GPU_SPELLING if floating else {**GPU_SPELLING, **INTEGER_SPELLING}).get(expression.operator)
        if pattern is None:
            raise EngineRefusal(f"the operator {expression.operator} is not covered by kernels.")
        if expression.operator == "bitwise_not" and expression.dtype == torch.bool:
            pattern = "!{0}"
        kind = computed_type(expression.dtype)
        return pattern.replace("__builtin_", "").format(*arguments, s="f", m="f", t=kind)


def _float_literal(constant: Constant) -> str:
    text = literal(constant.value, torch.float32)
    if "nan" in text:
        return "NOT_A_NUMBER"
    return text.replace("__builtin_inff()", "INFINITE")
