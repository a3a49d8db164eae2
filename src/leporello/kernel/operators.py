"""`OPERATORS`: every operator that a kernel can hold, pointwise or a reduction, one entry each.

An entry says what lowering, the interpreter and every target must know of an operator: its meaning in torch, what it
costs, which types of numbers it takes. How a target spells it is written with the target; a contract test walks this
table with the spellings of C, and fails on an operator without one or with a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operator:
    """An operator of the description.

    arity        how many expressions it is applied to; a reduction has one
    meaning      what it computes, on tensors; a reduction reduces the last axis
    streamed     whether lowering writes it out at every reader, which costs less than to store its value and load it
                 again; one that is not streamed is materialised (computed once, into a buffer of its own) where it has
                 several readers, or one that repeats it along a further axis
    reduction    whether it reduces loops; its result is always materialised
    operands     how lowering prepares its operands: "cast" to the type of its value; compared in their "common" type;
                 or taken as they are, of "any" type
    floats       whether it takes floating-point operands
    integers     on integers: None, it takes none; "same", one spelling serves both; "own", a target needs another
                 spelling; "identity", an integer is its own result, and lowering applies nothing
    on_bools     the operator that replaces it on booleans; None: it serves itself
    """

    arity: int
    meaning: Callable[..., Tensor]
    streamed: bool = True
    reduction: bool = False
    operands: Literal["cast", "common", "any"] = "cast"
    floats: bool = True
    integers: Literal["same", "own", "identity"] | None = None
    on_bools: str | None = None


# ---- meanings that torch has no single function for


def _zero_for_zero_divisors(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a division function that, on integers, gives 0 where the divisor is 0; torch's raises there."""

    def divide(one: Tensor, other: Tensor) -> Tensor:
        if one.is_floating_point():
            return function(one, other)
        zero = other == 0
        return function(one, other.masked_fill(zero, 1)).masked_fill(zero, 0)

    return divide


def _first_position_of(extreme: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Returns argmax or argmin of the last axis: the first of equal elements; the first NaN where there is one.

    extreme   torch.amax or torch.amin
    """

    def position(value: Tensor) -> Tensor:
        best = extreme(value, -1, keepdim=True)
        chosen = (value == best) | (value != value)
        if value.is_floating_point():
            chosen &= (best == best) | (value != value)
        positions = torch.arange(value.shape[-1], device=value.device)
        return positions.expand(value.shape).masked_fill(~chosen, value.shape[-1]).amin(-1)

    return position


def _places_of(*, largest: bool) -> Callable[[Tensor], Tensor]:
    """Returns what gives the positions of the first elements in the order of torch.topk.

    As a reduction it has one result for each of them, along the last of its loops: [..., count, all] -> [..., count].
    """

    def places(value: Tensor) -> Tensor:
        first = value[..., 0, :]
        first = first if first.dtype != torch.bool else first.to(torch.uint8)
        return first.topk(value.shape[-2], -1, largest).indices

    return places


def _order_of(*, descending: bool) -> Callable[[Tensor], Tensor]:
    """Returns what gives the positions of all elements in the order of torch.sort, as `_places_of` does."""
    return lambda value: value[..., 0, :].sort(-1, descending).indices


def _where(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(condition != 0, one, other)


def _unchanged(value: Tensor) -> Tensor:
    return value


# ---- the table


def _function(meaning: Callable[[Tensor], Tensor]) -> Operator:
    """The entry of a function of one floating-point number that takes many instructions: it is not streamed."""
    return Operator(1, meaning, streamed=False)


def _comparison(meaning: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    return Operator(2, meaning, operands="common", integers="same")


# Reductions whose result is a position: they compare in the type of their operand.
SELECTIONS = frozenset({"largest", "smallest", "ascending", "descending"})  # one for each of the first elements
SEARCHES = SELECTIONS | {"argmax", "argmin"}

OPERATORS: dict[str, Operator] = {
    # arithmetic
    "add": Operator(2, torch.add, integers="same", on_bools="logical_or"),
    "sub": Operator(2, torch.sub, integers="same"),
    "mul": Operator(2, torch.mul, integers="same", on_bools="logical_and"),
    "div": Operator(2, torch.div, streamed=False),
    "neg": Operator(1, torch.neg, integers="same"),
    "abs": Operator(1, torch.abs, integers="own"),
    "square": Operator(1, torch.square, integers="same"),
    "reciprocal": _function(torch.reciprocal),
    "pow": Operator(2, torch.pow, streamed=False, integers="own"),
    "quotient": Operator(  # rounded towards zero
        2, _zero_for_zero_divisors(lambda a, b: torch.div(a, b, rounding_mode="trunc")), floats=False, integers="own"
    ),
    "floor_divide": Operator(2, _zero_for_zero_divisors(torch.floor_divide), streamed=False, integers="own"),
    "fmod": Operator(2, _zero_for_zero_divisors(torch.fmod), streamed=False, integers="own"),
    "remainder": Operator(2, _zero_for_zero_divisors(torch.remainder), streamed=False, integers="own"),
    # exponentials, powers, logarithms
    "exp": _function(torch.exp),
    "exp2": _function(torch.exp2),
    "expm1": _function(torch.expm1),
    "log": _function(torch.log),
    "log2": _function(torch.log2),
    "log10": _function(torch.log10),
    "log1p": _function(torch.log1p),
    "sqrt": _function(torch.sqrt),
    "rsqrt": _function(torch.rsqrt),
    "sigmoid": _function(torch.sigmoid),
    "erf": _function(torch.erf),
    "erfc": _function(torch.erfc),
    "lgamma": _function(torch.lgamma),
    # circles and hyperbolas
    "sin": _function(torch.sin),
    "cos": _function(torch.cos),
    "tan": _function(torch.tan),
    "asin": _function(torch.asin),
    "acos": _function(torch.acos),
    "atan": _function(torch.atan),
    "atan2": Operator(2, torch.atan2, streamed=False),
    "hypot": Operator(2, torch.hypot, streamed=False),
    "sinh": _function(torch.sinh),
    "cosh": _function(torch.cosh),
    "tanh": _function(torch.tanh),
    "asinh": _function(torch.asinh),
    "acosh": _function(torch.acosh),
    "atanh": _function(torch.atanh),
    # limits, signs, rounding
    "relu": Operator(1, torch.relu, integers="own"),
    "minimum": Operator(2, torch.minimum, integers="same", on_bools="logical_and"),
    "maximum": Operator(2, torch.maximum, integers="same", on_bools="logical_or"),
    "fmin": Operator(2, torch.fmin, integers="own"),
    "fmax": Operator(2, torch.fmax, integers="own"),
    "sign": Operator(1, torch.sign, integers="own"),
    "sgn": Operator(1, torch.sgn, integers="own"),
    "copysign": Operator(2, torch.copysign),
    "floor": Operator(1, torch.floor, integers="identity"),
    "ceil": Operator(1, torch.ceil, integers="identity"),
    "trunc": Operator(1, torch.trunc, integers="identity"),
    "round": Operator(1, torch.round, integers="identity"),
    # comparisons, logic, bits
    "eq": _comparison(torch.eq),
    "ne": _comparison(torch.ne),
    "lt": _comparison(torch.lt),
    "le": _comparison(torch.le),
    "gt": _comparison(torch.gt),
    "ge": _comparison(torch.ge),
    "isnan": Operator(1, torch.isnan, operands="any", integers="own"),
    "isinf": Operator(1, torch.isinf, operands="any", integers="own"),
    "signbit": Operator(1, torch.signbit, operands="any", integers="own"),
    "logical_not": Operator(1, torch.logical_not, operands="any", integers="same"),
    "logical_and": Operator(2, torch.logical_and, operands="any", integers="same"),
    "logical_or": Operator(2, torch.logical_or, operands="any", integers="same"),
    "logical_xor": Operator(2, torch.logical_xor, operands="any", integers="same"),
    "bitwise_not": Operator(1, torch.bitwise_not, floats=False, integers="same"),
    "bitwise_and": Operator(2, torch.bitwise_and, floats=False, integers="same"),
    "bitwise_or": Operator(2, torch.bitwise_or, floats=False, integers="same"),
    "bitwise_xor": Operator(2, torch.bitwise_xor, floats=False, integers="same"),
    # choice and conversion
    "where": Operator(3, _where, integers="own"),
    "cast": Operator(1, _unchanged, operands="any", integers="same"),  # to the type of its value
    # reductions
    "sum": Operator(1, lambda value: value.sum(-1, dtype=value.dtype), reduction=True, integers="same"),
    "prod": Operator(1, lambda value: value.prod(-1, dtype=value.dtype), reduction=True, integers="same"),
    "amax": Operator(1, lambda value: value.amax(-1), reduction=True, integers="same"),
    "amin": Operator(1, lambda value: value.amin(-1), reduction=True, integers="same"),
    "argmax": Operator(1, _first_position_of(torch.amax), reduction=True, operands="any", integers="same"),
    "argmin": Operator(1, _first_position_of(torch.amin), reduction=True, operands="any", integers="same"),
    "largest": Operator(1, _places_of(largest=True), reduction=True, operands="any", integers="same"),
    "smallest": Operator(1, _places_of(largest=False), reduction=True, operands="any", integers="same"),
    "ascending": Operator(1, _order_of(descending=False), reduction=True, operands="any", integers="same"),
    "descending": Operator(1, _order_of(descending=True), reduction=True, operands="any", integers="same"),
    "any": Operator(1, lambda value: (value != 0).any(-1), reduction=True, operands="any", integers="same"),
    "all": Operator(1, lambda value: (value != 0).all(-1), reduction=True, operands="any", integers="same"),
}
