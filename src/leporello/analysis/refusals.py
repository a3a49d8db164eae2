"""What instruments refuse before they begin, in the user's words.

Knows arguments; knows nothing of what is done with them.
"""

from __future__ import annotations

from typing import Any

from leporello.errors import ArgumentError
from leporello.nets.recurrent import Recurrent


def refuse_other_nets(net: Any) -> None:
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to look into.",
            came=f"the class {net.__name__}" if isinstance(net, type) else type(net).__name__,
            expected="lp.Recurrent",
            tries="lp.Recurrent(cell); of a network of several, take its parts one by one",
        )


def refuse_out_of_range(name: str, value: Any, least: int, most: int, what: str) -> None:
    """what   the largest value is"""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ArgumentError(
            f"the argument '{name}' is out of range.",
            came=repr(value),
            expected=f"an integer from {least} to {most}, {what}",
        )
