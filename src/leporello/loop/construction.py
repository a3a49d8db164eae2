"""`Constructed`: a module that keeps the arguments of its constructor, so that a file can say how it is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

ATTRIBUTE = "_construction"  # in a module's __dict__; no part of what its step computes


class Construction:
    """The arguments of a constructor, as they were passed."""

    __slots__ = ("args", "options")

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.args, self.options = args, options


class Constructed:
    """A class whose objects keep what they were constructed with; also those of derived classes, with their own."""

    if not TYPE_CHECKING:  # a checker finds the arguments by __init__

        def __new__(cls, *args: Any, **options: Any) -> Constructed:
            make = super().__new__
            made = make(cls) if make is object.__new__ else make(cls, *args, **options)
            vars(made)[ATTRIBUTE] = Construction(args, options)
            return made
