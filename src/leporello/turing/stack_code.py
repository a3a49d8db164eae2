"""Stacks as numbers: the code that lets saturated-linear units read the top of a stack, push and pop.

A stack of symbols i1, i2, ... (the top first), each one of k, is the number

    (2 i1 + 1) / B + (2 i2 + 1) / B^2 + ...,   B a power of two, at least 2 k

and 0 if it is empty. Only odd digits occur, so the numbers form a Cantor set: those with i on top lie in
[(2i+1)/B, (2i+2)/B), and a gap of 1/B separates them from all others. That is why a unit of finite slope can tell them
apart: clamp(B s - 2 i, 0, 1) is 1 where the top is at least i, and 0 where it is smaller or there is none. (Siegelmann
and Sontag, "On the computational power of neural nets", 1995.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from leporello.errors import ArgumentError

Number = int | Fraction


def base_of(symbols: int) -> int:
    """The base for so many symbols: the smallest power of two with an odd digit, and a gap, for each.

    >>> [base_of(symbols) for symbols in (1, 2, 3, 4, 5)]
    [2, 4, 8, 8, 16]
    """
    return 1 << (2 * symbols - 1).bit_length()


def stack_number(indices: Sequence[int], base: int) -> Fraction:
    """The number of a stack of symbols by their indices, the top first.

    >>> stack_number([1, 0], base=4)
    Fraction(13, 16)
    """
    number = 0
    for index in indices:
        number = number * base + 2 * index + 1
    return Fraction(number, base ** len(indices))


def stack_symbols(number: Number, base: int, symbols: int) -> tuple[int, ...]:
    """The indices of a stack's symbols, the top first; raises where the number codes no stack.

    >>> stack_symbols(Fraction(13, 16), base=4, symbols=2)
    (1, 0)
    """
    exact = Fraction(number)
    bits, width = exact.denominator.bit_length() - 1, base.bit_length() - 1
    length = -(-bits // width)
    rest = exact.numerator << (length * width - bits)  # the digits, as one integer
    digits = [(rest >> (width * place)) & (base - 1) for place in reversed(range(length))]
    is_stack = 0 <= exact < 1 and exact.denominator == 1 << bits and all(d % 2 and d < 2 * symbols for d in digits)
    if not is_stack:
        raise ArgumentError(
            "the number codes no stack.",
            came=repr(float(exact)),
            expected=f"0, or digits in base {base} that are odd and below {2 * symbols}",
        )
    return tuple(digit // 2 for digit in digits)
