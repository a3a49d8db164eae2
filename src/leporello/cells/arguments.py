"""Refusals of constructor arguments, in the words of the user.

Knows numbers and names; knows nothing of any one cell.
"""

from __future__ import annotations

from collections.abc import Iterable

from leporello.errors import ArgumentError


def check_sizes(**sizes: object) -> None:
    """Each is a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(
                f"'{name}' is no size.",
                came=repr(size),
                expected="a positive integer",
                tries=f"{name}=1 or more, written as a plain int",
            )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """It is one of the choices."""
    known = list(choices)
    if value not in known:
        raise ArgumentError(
            f"'{name}' is not known.",
            came=repr(value),
            expected=", ".join(map(repr, known)),
            tries=f"{name}={known[0]!r}",
        )


def check_probabilities(**probabilities: float) -> None:
    """Each lies in [0, 1]."""
    for name, value in probabilities.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise ArgumentError(
                f"'{name}' is no probability.",
                came=repr(value),
                expected="a number from 0 to 1",
                tries=f"{name}=0.0 for none of it",
            )


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
