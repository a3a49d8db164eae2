"""Looks at the numbers of a call's arguments: lengths, classes and chances must lie in their range.

An eager call looks at once. In a graph nothing is there to be looked at while it is made: `modules/compiled.py` puts
the same looks into the graph as operators. Knows the user's words for what is wrong; knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leporello.errors import ArgumentError


def lengths_in_range(given: Tensor, length: int) -> Tensor:
    """On a GPU they are not looked at, which would wait for it."""
    if given.device.type == "cpu":
        numbers = given.tolist()
        if min(numbers) < 1 or max(numbers) > length:
            row = int(((given < 1) | (given > length)).nonzero()[0])
            raise ArgumentError(
                "the argument 'lengths' is out of range.",
                came=f"{int(given[row])} in row {row}",
                expected=f"from 1 to {length}, the length of the inputs",
                tries="take rows without a step out of the batch" if int(given[row]) < 1 else None,
            )
    return given


def classes_in_range(targets: Tensor, classes: int, name: str, one_step: bool) -> Tensor:
    """On a GPU they are not looked at, which would wait for it.

    name, one_step   how the caller writes the argument
    """
    if targets.device.type == "cpu":
        wrong = (targets < 0) | (targets >= classes)
        if wrong.any():
            time, row = wrong.nonzero()[0].tolist()
            raise ArgumentError(
                f"the argument '{name}' holds a class that does not exist.",
                came=f"{int(targets[time, row])} in row {row}" + ("" if one_step else f" at step {time}"),
                expected=f"from 0 to {classes - 1}: {classes} values are fed back",
                tries="put any class where nothing is forced, and say where with forcing=mask"
                if targets[time, row] < 0
                else None,
            )
    return targets


def chance_in_range(forcing: Any, shape: str) -> Any:
    """A probability as a number.

    shape   of a mask, as the caller writes it
    """
    if not 0 <= float(forcing) <= 1:
        raise ArgumentError(
            "the argument 'forcing' is no probability.",
            came=repr(forcing),
            expected=f"a number from 0 to 1, or bool {shape}",
        )
    return float(forcing)


@dataclass(frozen=True)
class Looks:
    """How the arguments of a call are looked at: each gives back what it was handed, if nothing is wrong."""

    lengths: Callable[[Tensor, Any], Tensor] = lengths_in_range
    classes: Callable[[Tensor, int, str, bool], Tensor] = classes_in_range
    chance: Callable[[Any, str], Any] = chance_in_range


AT_ONCE = Looks()
