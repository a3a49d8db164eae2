"""`Body`: expressions as statements of C, each value once and under a name.

Knows expressions and where their values lie; knows nothing of the loops around them.
"""

from __future__ import annotations

import torch

from leporello.engine.cpu.c_memory import Layout
from leporello.engine.cpu.c_operators import OF_INTEGERS, POWERS, SPELLING, TYPES, number
from leporello.errors import EngineRefusal
from leporello.kernel.description import (
    Apply,
    Buffer,
    Constant,
    Expression,
    Fetch,
    Load,
    Place,
    dtype_of_expression,
)


class Body:
    """The statements inside loops: each value once, by name.

    outside   those that no loop changes: compilers find vectors more readily where they stand in front
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.lines: list[str] = []
        self.outside: list[str] = []
        self.staying: set[int] = set()
        self.count = 0
        self.named: dict[int, str] = {}
        self.known: dict[tuple[Buffer, object], str] = {}
        self.alive: list[Expression] = []

    def kept(self, value: str, kind: str, outside: bool = False) -> str:
        """A value under a name of its own."""
        if value.isidentifier():
            return value
        name, self.count = f"t{self.count}", self.count + 1
        (self.outside if outside else self.lines).append(f"const {kind} {name} = {value};")
        return name

    def value(self, expression: Expression) -> str:
        """What an expression is called; what it is made of has been said before."""
        if id(expression) in self.named:
            return self.named[id(expression)]
        found = self._spelt(expression)
        if isinstance(expression, (Apply, Load, Fetch)):
            stays = self._stays(expression)
            if stays:
                self.staying.add(id(expression))
            found = self.kept(found, TYPES[dtype_of_expression(expression)], stays)
        self.named[id(expression)] = found
        self.alive.append(expression)  # its id stays its own
        return found

    def _stays(self, expression: Expression) -> bool:
        """Whether no loop changes a value; those it is made of have been asked before."""
        if isinstance(expression, Constant):
            return True
        if isinstance(expression, Apply):
            return all(isinstance(part, Constant) or id(part) in self.staying for part in expression.arguments)
        if expression.index.terms or isinstance(expression, Place):
            return False
        if isinstance(expression, Fetch):
            return all(id(along.number) in self.staying for along in expression.by)
        return (expression.buffer, expression.index) not in self.known

    def _spelt(self, expression: Expression) -> str:
        if isinstance(expression, Load):
            key = (expression.buffer, expression.index)
            return self.known.get(key) or self.layout.element(expression.buffer, str(expression.index))
        if isinstance(expression, Constant):
            return number(expression.value, expression.dtype)
        if isinstance(expression, Place):
            return f"(({TYPES[expression.dtype]})({expression.index}))"
        if isinstance(expression, Fetch):
            places = [str(expression.index)]
            for along in expression.by:
                by, last = self.value(along.number), along.size - 1
                places.append(f"({by} < 0 ? 0 : {by} > {last} ? {last} : {by}) * {along.stride}")
            return self.layout.element(expression.buffer, " + ".join(places))
        return self._applied(expression)

    def _applied(self, expression: Apply) -> str:
        arguments = [self.value(argument) for argument in expression.arguments]
        if expression.operator == "pow" and isinstance(expression.arguments[1], Constant):
            exponent = expression.arguments[1].value
            if exponent in POWERS:
                return POWERS[exponent].format(arguments[0])
        real = _working(expression)
        if expression.operator == "cast" and expression.dtype == torch.bool:
            return f"{arguments[0]} != 0"
        pattern = (SPELLING if real.is_floating_point else {**SPELLING, **OF_INTEGERS}).get(expression.operator)
        if pattern is None:
            raise EngineRefusal(f"the operator {expression.operator} is not covered by kernels.")
        if expression.operator == "bitwise_not" and expression.dtype == torch.bool:
            pattern = "!{0}"
        double = real == torch.float64
        return pattern.format(*arguments, s="d" if double else "f", m="" if double else "f", t=TYPES[expression.dtype])


def _working(expression: Apply) -> torch.dtype:
    """In which type an operator computes: the widest of its arguments'; its value's where they are integers."""
    types = [dtype_of_expression(argument) for argument in expression.arguments]
    if torch.float64 in types or torch.float32 in types:
        return torch.float64 if torch.float64 in types else torch.float32
    return expression.dtype if expression.operator == "cast" else types[0]
