"""Which engine runs a Loop, and why not a faster one.

Knows the engines' conditions; knows nothing of how they run.
"""

from __future__ import annotations

from dataclasses import dataclass

from leporello.errors import ArgumentError, RowsMeet
from leporello.loop.loop import Loop
from leporello.loop.step import place_of

ENGINES = ("stepwise", "reference")  # the fastest first


@dataclass(frozen=True)
class Choice:
    """An engine by name, with the reason in a sentence."""

    engine: str
    why: str


def choose(asked: str, loop: Loop) -> Choice:
    """The engine asked for, or for "auto" the fastest that can run the loop; a named one that cannot raises."""
    if asked == "auto":
        if loop.meets is None:
            return Choice("stepwise", "chosen by auto: the fastest engine for this loop")
        return Choice("reference", f"chosen by auto; not stepwise, because {loop.meets}")
    refuse_unknown(asked)
    if asked == "stepwise" and loop.meets is not None:
        raise RowsMeet(
            "rows of the batch influence each other in this step.",
            cell=place_of(loop.signature.home) if loop.signature and loop.signature.home else loop.name,
            because=loop.meets,
            engine=asked,
            tries='compute over features only; or engine="reference", or "auto", which chooses it',
        )
    return Choice(asked, "asked for by name")


def refuse_unknown(asked: str) -> None:
    if asked not in ("auto", *ENGINES):
        raise ArgumentError(
            "the argument 'engine' names no engine.",
            came=repr(asked),
            expected=", ".join(["auto", *ENGINES]),
        )
