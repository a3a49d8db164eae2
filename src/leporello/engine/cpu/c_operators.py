"""How C spells the operators of `OPERATORS`, the types of numbers, and constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from leporello.loop.sizes import Size

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}

# Of floating-point numbers, and of integers where they have no spelling of their own. {0}, {1} are the arguments;
# {s} is f or d, {m} the ending of libm's functions, {t} the type of the value.
SPELLING = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "__builtin_fabs{m}({0})",
    "exp": "exp_{s}({0})",
    "log": "log_{s}({0})",
    "log1p": "log1p_{s}({0})",
    "tanh": "tanh_{s}({0})",
    "sigmoid": "sigmoid_{s}({0})",
    "relu": "relu_{s}({0})",
    "sign": "sign_{s}({0})",
    "sgn": "sign_{s}({0})",
    "sqrt": "__builtin_sqrt{m}({0})",
    "rsqrt": "1 / __builtin_sqrt{m}({0})",
    "reciprocal": "1 / {0}",
    "square": "{0} * {0}",
    "floor": "__builtin_floor{m}({0})",
    "ceil": "__builtin_ceil{m}({0})",
    "trunc": "__builtin_trunc{m}({0})",
    "round": "__builtin_rint{m}({0})",
    "exp2": "exp2{m}({0})",
    "expm1": "expm1{m}({0})",
    "log2": "log2{m}({0})",
    "log10": "log10{m}({0})",
    "sin": "sin{m}({0})",
    "cos": "cos{m}({0})",
    "tan": "tan{m}({0})",
    "asin": "asin{m}({0})",
    "acos": "acos{m}({0})",
    "atan": "atan{m}({0})",
    "sinh": "sinh{m}({0})",
    "cosh": "cosh{m}({0})",
    "asinh": "asinh{m}({0})",
    "acosh": "acosh{m}({0})",
    "atanh": "atanh{m}({0})",
    "erf": "erf{m}({0})",
    "erfc": "erfc{m}({0})",
    "pow": "pow{m}({0}, {1})",
    "atan2": "atan2{m}({0}, {1})",
    "hypot": "hypot{m}({0}, {1})",
    "fmod": "fmod{m}({0}, {1})",
    "remainder": "remainder_{s}({0}, {1})",
    "floor_divide": "floor_divide_{s}({0}, {1})",
    "lgamma": "lgamma{m}({0})",
    "signbit": "__builtin_signbit({0}) != 0",
    "copysign": "__builtin_copysign{m}({0}, {1})",
    "minimum": "minimum_({0}, {1})",
    "maximum": "maximum_({0}, {1})",
    "fmin": "fmin{m}({0}, {1})",
    "fmax": "fmax{m}({0}, {1})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "logical_xor": "!{0} != !{1}",
    "logical_not": "!{0}",
    "bitwise_not": "~{0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "isnan": "{0} != {0}",
    "isinf": "__builtin_fabs{m}({0}) == __builtin_inf()",
    "where": "where_{s}({0}, {1}, {2})",
    "cast": "({t}){0}",
}

# Of integers, where that is something else.
INTEGER_SPELLING = {
    "where": "{0} ? {1} : {2}",
    "abs": "{0} < 0 ? -{0} : {0}",
    "sign": "({0} > 0) - ({0} < 0)",
    "sgn": "({0} > 0) - ({0} < 0)",
    "relu": "{0} > 0 ? {0} : 0",
    "quotient": "quotient_i({0}, {1})",
    "floor_divide": "floor_divide_i({0}, {1})",
    "fmod": "fmod_i({0}, {1})",
    "remainder": "remainder_i({0}, {1})",
    "pow": "power_i({0}, {1})",
    "isnan": "0",
    "isinf": "0",
    "signbit": "{0} < 0",
    "fmin": "minimum_({0}, {1})",
    "fmax": "maximum_({0}, {1})",
}
# Powers with a constant exponent that are products.
POWERS: dict[float, str] = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}"}


@dataclass(frozen=True)
class Dialect:
    """How a kind of C spells what differs from one to the other.

    spelling, integers   operators, as `SPELLING` and `INTEGER_SPELLING` have them
    nan, infinity        the constants; {m} is the ending for floats
    """

    spelling: Mapping[str, str]
    integers: Mapping[str, str]
    nan: str
    infinity: str

    def pattern(self, operator: str, dtype: torch.dtype) -> str | None:
        """The spelling of an operator that computes in a type; None where it has none."""
        if dtype.is_floating_point or operator not in self.integers:
            return self.spelling.get(operator)
        return self.integers[operator]


GNU = Dialect(SPELLING, INTEGER_SPELLING, '__builtin_nan{m}("")', "__builtin_inf{m}()")

# How a reduction begins, and how it goes on from `sum` with `value`; argmax and argmin keep two variables.
REDUCTION_SPELLING = {
    "sum": ("0", "sum + value"),
    "prod": ("1", "sum * value"),
    "amax": ("{lowest}", "maximum_(value, sum)"),
    "amin": ("{highest}", "minimum_(value, sum)"),
    "any": ("0", "sum || value"),
    "all": ("1", "sum && value"),
}


def extremes(dtype: torch.dtype, dialect: Dialect = GNU) -> dict[str, str]:
    """The C text of the "lowest" and the "highest" value of a type: what amax and amin begin with."""
    if dtype.is_floating_point:
        infinity = dialect.infinity.format(m="")
        return {"lowest": f"-{infinity}", "highest": infinity}
    if dtype == torch.bool:
        return {"lowest": "0", "highest": "1"}
    limits = torch.iinfo(dtype)
    return {"lowest": f"{limits.min + 1} - 1", "highest": str(limits.max)}  # C has no literal for the lowest


def literal(value: float | int | bool | Size, dtype: torch.dtype, dialect: Dialect = GNU) -> str:
    """The C literal of a constant, exact to the last bit of `dtype`."""
    if isinstance(value, Size):
        return f"(({TYPES[dtype]})({value}))"
    if not dtype.is_floating_point:
        return str(int(value))
    single = "f" if dtype == torch.float32 else ""
    if math.isnan(value):
        return dialect.nan.format(m=single)
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}{dialect.infinity.format(m=single)}"
    rounded = torch.tensor(float(value), dtype=dtype).item()
    readable = rounded == int(rounded) and abs(rounded) <= 1e6
    return f"{rounded:.1f}{single}" if readable else f"{float(rounded).hex()}{single}"
