"""Expressions as statements of C: each value is computed once and has a name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch

from leporello.engine.cpu.c_operators import GNU, POWERS, TYPES, Dialect, literal
from leporello.errors import EngineRefusal
from leporello.kernel.description import (
    Apply,
    Buffer,
    Constant,
    Expression,
    Fetch,
    Load,
    Position,
    dtype_of_expression,
)
from leporello.kernel.index import Index


class Layout(Protocol):
    """Where the elements of buffers are."""

    @property
    def registers(self) -> Collection[Buffer]:
        """The buffers without memory: each element is read by the iteration alone that stores it."""
        ...

    def element(self, buffer: Buffer, index: str) -> str:
        """The C text of one element of a buffer, of the present row; `index` is C too."""
        ...


class LoopBody:
    """The statements inside the loops of a block, while they are written.

    lines       inside the loops
    hoisted     in front of the loops, since no loop changes them: compilers vectorise more readily so
    names       of expressions that have been computed, by id; of a constant its literal
    stored      names of values that were stored by an earlier statement of this iteration, by buffer and index
    """

    def __init__(self, layout: Layout, dialect: Dialect = GNU) -> None:
        self.layout, self.dialect = layout, dialect
        self.lines: list[str] = []
        self.hoisted: list[str] = []
        self.names: dict[int, str] = {}
        self.stored: dict[tuple[Buffer, Index], str] = {}
        self._count = 0
        self._invariant: set[int] = set()
        self._alive: list[Expression] = []  # ids of expressions that are kept are not used again

    def named(self, value: str, kind: str, hoisted: bool = False) -> str:
        """The name of a new C variable of type `kind` that holds a C expression; a name is returned as it is."""
        if value.isidentifier():
            return value
        name, self._count = f"t{self._count}", self._count + 1
        (self.hoisted if hoisted else self.lines).append(f"const {kind} {name} = {value};")
        return name

    def value(self, expression: Expression) -> str:
        """The name or literal of an expression's value; the statements that compute it are added where it is new."""
        if id(expression) in self.names:
            return self.names[id(expression)]
        text = self._spelt(expression)
        if isinstance(expression, (Apply, Load, Fetch)):
            invariant = self._is_invariant(expression)
            if invariant:
                self._invariant.add(id(expression))
            text = self.named(text, TYPES[dtype_of_expression(expression)], invariant)
        self.names[id(expression)] = text
        self._alive.append(expression)
        return text

    def _is_invariant(self, expression: Expression) -> bool:
        """Whether no loop changes a value; `value` has been called on its operands before."""
        if isinstance(expression, Constant):
            return True
        if isinstance(expression, Apply):
            return all(isinstance(part, Constant) or id(part) in self._invariant for part in expression.arguments)
        if expression.index.terms or isinstance(expression, Position):
            return False
        if isinstance(expression, Fetch):
            return all(id(along.number) in self._invariant for along in expression.by)
        return (expression.buffer, expression.index) not in self.stored

    def _spelt(self, expression: Expression) -> str:
        if isinstance(expression, Load):
            key = (expression.buffer, expression.index)
            return self.stored.get(key) or self.layout.element(expression.buffer, str(expression.index))
        if isinstance(expression, Constant):
            return literal(expression.value, expression.dtype, self.dialect)
        if isinstance(expression, Position):
            return f"(({TYPES[expression.dtype]})({expression.index}))"
        if isinstance(expression, Fetch):
            offsets = [str(expression.index)]
            for along in expression.by:
                number, last = self.value(along.number), along.size - 1
                offsets.append(f"({number} < 0 ? 0 : {number} > {last} ? {last} : {number}) * {along.stride}")
            return self.layout.element(expression.buffer, " + ".join(offsets))
        return self._applied(expression)

    def _applied(self, expression: Apply) -> str:
        arguments = [self.value(argument) for argument in expression.arguments]
        if expression.operator == "pow" and isinstance(expression.arguments[1], Constant):
            exponent = expression.arguments[1].value
            if exponent in POWERS:
                return POWERS[exponent].format(arguments[0])
        working = _working_type(expression)
        if expression.operator == "cast" and expression.dtype == torch.bool:
            return f"{arguments[0]} != 0"
        pattern = self.dialect.pattern(expression.operator, working)
        if pattern is None:
            raise EngineRefusal(f"the operator {expression.operator} is not covered by kernels.")
        if expression.operator == "bitwise_not" and expression.dtype == torch.bool:
            pattern = "!{0}"
        double = working == torch.float64
        return pattern.format(*arguments, s="d" if double else "f", m="" if double else "f", t=TYPES[expression.dtype])


def _working_type(expression: Apply) -> torch.dtype:
    """The type in which an operator computes, which decides between floating-point and integer spelling.

    It is the widest floating type of its arguments; without one, the first argument's type, or a cast's own.
    """
    types = [dtype_of_expression(argument) for argument in expression.arguments]
    if torch.float64 in types or torch.float32 in types:
        return torch.float64 if torch.float64 in types else torch.float32
    return expression.dtype if expression.operator == "cast" else types[0]
