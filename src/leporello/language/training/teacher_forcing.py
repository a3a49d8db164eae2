"""Schedules of teacher forcing: with which probability a step reads the true value instead of the net's own output.

A schedule is a function of progress, the share of the training that is done, from 0 to 1: whoever trains by epochs, by
updates or by the clock can tell it. The forms are those of Bengio, Vinyals, Jaitly and Shazeer 2015, Scheduled Sampling
for Sequence Prediction with Recurrent Neural Networks. There they count updates i, and their constants depend on how
many there are; here i is a multiple of progress. Knows numbers and how they are written; knows nothing of networks.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass, fields

from leporello.errors import ArgumentError, LeporelloError


class Forcing(ABC):
    """A schedule: called with the progress it gives a probability, and as text it reads back to itself.

    Progress beyond 1, which a time budget may reach, counts as 1; below 0 as 0.
    """

    name = ""

    def __call__(self, progress: float) -> float:
        if not math.isfinite(progress):
            raise ArgumentError(
                "the argument 'progress' is no share of the training.", came=progress, expected="a number from 0 to 1"
            )
        return min(max(self.at(min(max(float(progress), 0.0), 1.0)), 0.0), 1.0)

    @abstractmethod
    def at(self, progress: float) -> float:
        """The probability at a progress from 0 to 1."""

    def __str__(self) -> str:
        return ":".join([self.name, *(repr(float(number)).removesuffix(".0") for number in self.numbers)])

    @property
    def numbers(self) -> tuple[float, ...]:
        return astuple(self)  # type: ignore[call-overload]

    def _refuse_outside(self, name: str, low: float, high: float, expected: str, *, open_ends: bool = False) -> None:
        came = getattr(self, name)
        number = isinstance(came, (int, float)) and not isinstance(came, bool)
        if number and (low < came < high if open_ends else low <= came <= high):
            return
        raise ArgumentError(
            f"the number '{name}' of the schedule {self.name} is out of range.", came=repr(came), expected=expected
        )


@dataclass(frozen=True)
class Constant(Forcing):
    """p at all times: 1 is full teacher forcing, 0 is free running.

    >>> Constant(0.8)(0.3)
    0.8
    """

    p: float = 1.0
    name = "constant"

    def __post_init__(self) -> None:
        self._refuse_outside("p", 0, 1, PROBABILITY)

    def at(self, progress: float) -> float:
        return self.p


@dataclass(frozen=True)
class Linear(Forcing):
    """start + (end - start) progress.

    >>> [Linear(1, 0.2)(progress) for progress in (0, 0.5, 1)]
    [1.0, 0.6, 0.2]
    """

    start: float = 1.0
    end: float = 0.0
    name = "linear"

    def __post_init__(self) -> None:
        self._refuse_outside("start", 0, 1, PROBABILITY)
        self._refuse_outside("end", 0, 1, PROBABILITY)

    def at(self, progress: float) -> float:
        return (1 - progress) * self.start + progress * self.end


@dataclass(frozen=True)
class InverseSigmoid(Forcing):
    """f(i) = k / (k + exp(i / k)), read at i = 2 k ln(k) progress, and stretched so that it goes from 1 to 0.

    At that i it is s(progress) = 1 / (1 + k^(2 progress - 1)), which falls from k / (1 + k) to 1 / (1 + k) and is 1/2
    halfway. The schedule is (s(progress) - s(1)) / (s(0) - s(1)): for k near 1 a straight line, for large k a fall in
    the middle of the training.

    >>> [round(InverseSigmoid(6)(progress), 2) for progress in (0, 0.25, 0.5, 0.75, 1)]
    [1.0, 0.79, 0.5, 0.21, 0.0]
    """

    k: float = 6.0
    name = "inverse-sigmoid"

    def __post_init__(self) -> None:
        self._refuse_outside("k", 1 + 1e-6, 1e300, "a number above 1, as 6; the larger, the steeper")

    def at(self, progress: float) -> float:
        return (self._s(progress) - self._s(1)) / (self._s(0) - self._s(1))

    def _s(self, progress: float) -> float:
        return 1 / (1 + self.k ** (2 * progress - 1))


@dataclass(frozen=True)
class Exponential(Forcing):
    """k^progress: from 1 to k, which is what is left of the forcing in the end.

    With i updates of n this is Bengio's (k^(1/n))^i.

    >>> [round(Exponential(0.01)(progress), 3) for progress in (0, 0.5, 1)]
    [1.0, 0.1, 0.01]
    """

    k: float = 0.01
    name = "exponential"

    def __post_init__(self) -> None:
        self._refuse_outside("k", 0, 1, "a number between 0 and 1, as 0.01: what is left in the end", open_ends=True)

    def at(self, progress: float) -> float:
        return self.k**progress


PROBABILITY = "a probability, from 0 to 1"
KINDS: dict[str, type[Forcing]] = {kind.name: kind for kind in (Constant, Linear, InverseSigmoid, Exponential)}
EXAMPLES = "1, constant:0.8, linear:1:0, inverse-sigmoid:6, exponential:0.01"


def forcing_of(written: str | float | Forcing) -> Forcing:
    """The schedule that a text names; a mere number is constant, a mere name has the numbers of the examples.

    >>> forcing_of("linear:1:0")
    Linear(start=1.0, end=0.0)
    >>> str(forcing_of("1"))
    'constant:1'
    """
    if isinstance(written, Forcing):
        return written
    text = str(written).strip()
    if isinstance(written, bool) or not text:
        raise ArgumentError("this is no schedule of teacher forcing.", came=repr(written), expected=EXAMPLES)
    name, *numbers = (piece.strip() for piece in text.split(":"))
    if not numbers and _is_number(name):
        name, numbers = Constant.name, [name]
    kind = KINDS.get(_spelt(name))
    if kind is None:
        near = difflib.get_close_matches(_spelt(name), KINDS, n=2)
        raise ArgumentError(
            f"no schedule of teacher forcing is called '{name}'.",
            came=repr(text),
            nearest=", ".join(near) or None,
            expected=EXAMPLES,
        )
    if len(numbers) > len(fields(kind)) or not all(map(_is_number, numbers)):  # type: ignore[arg-type]
        raise ArgumentError(f"the schedule '{text}' is written in another way.", expected=_form(kind), tries=EXAMPLES)
    try:
        return kind(*map(float, numbers))
    except LeporelloError as error:
        error.place(schedule=text)
        raise


def _spelt(name: str) -> str:
    return "-".join(name.lower().replace("_", " ").split())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _form(kind: type[Forcing]) -> str:
    return ":".join([kind.name, *(field.name.upper() for field in fields(kind))])  # type: ignore[arg-type]
