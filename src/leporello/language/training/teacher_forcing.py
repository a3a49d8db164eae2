"""Schedules of teacher forcing: the probability that a step reads the true value instead of the net's own output.

A schedule is a function of progress, the finished share of the training, from 0 to 1, which can be measured in epochs,
updates or time. The forms are those of Bengio, Vinyals, Jaitly and Shazeer 2015, Scheduled Sampling for Sequence
Prediction with Recurrent Neural Networks. There they count updates i, with constants that depend on their number; here
i is a multiple of progress.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass, fields

from leporello.errors import ArgumentError, LeporelloError


class ForcingSchedule(ABC):
    """A schedule. Called with the progress it returns a probability; `forcing_of(str(schedule))` equals it.

    Progress above 1, which a time limit may cause, counts as 1; below 0 as 0.
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
        """The parameters of the schedule, in the order in which its text has them."""
        return astuple(self)  # type: ignore[call-overload]

    def _refuse_outside(self, name: str, low: float, high: float, expected: str, *, open_ends: bool = False) -> None:
        """Refuse a parameter of the schedule that is no number from `low` to `high`.

        name        of the field
        expected    for the error
        open_ends   refuse low and high too
        """
        came = getattr(self, name)
        is_number = isinstance(came, (int, float)) and not isinstance(came, bool)
        if is_number and (low < came < high if open_ends else low <= came <= high):
            return
        raise ArgumentError(
            f"the number '{name}' of the schedule {self.name} is out of range.", came=repr(came), expected=expected
        )


@dataclass(frozen=True)
class ConstantForcing(ForcingSchedule):
    """p at all times: 1 is full teacher forcing, 0 is free running.

    >>> ConstantForcing(0.8)(0.3)
    0.8
    """

    p: float = 1.0
    name = "constant"

    def __post_init__(self) -> None:
        self._refuse_outside("p", 0, 1, PROBABILITY)

    def at(self, progress: float) -> float:
        return self.p


@dataclass(frozen=True)
class LinearForcing(ForcingSchedule):
    """start + (end - start) progress.

    >>> [LinearForcing(1, 0.2)(progress) for progress in (0, 0.5, 1)]
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
class InverseSigmoidForcing(ForcingSchedule):
    """f(i) = k / (k + exp(i / k)), read at i = 2 k ln(k) progress, and stretched so that it goes from 1 to 0.

    At that i it is s(progress) = 1 / (1 + k^(2 progress - 1)), which falls from k / (1 + k) to 1 / (1 + k) and is 1/2
    halfway. The schedule is (s(progress) - s(1)) / (s(0) - s(1)): for k near 1 a straight line, for large k a fall in
    the middle of the training.

    >>> [round(InverseSigmoidForcing(6)(progress), 2) for progress in (0, 0.25, 0.5, 0.75, 1)]
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
class ExponentialForcing(ForcingSchedule):
    """k^progress: from 1 to k.

    With i updates of n this is Bengio's (k^(1/n))^i.

    >>> [round(ExponentialForcing(0.01)(progress), 3) for progress in (0, 0.5, 1)]
    [1.0, 0.1, 0.01]
    """

    k: float = 0.01
    name = "exponential"

    def __post_init__(self) -> None:
        self._refuse_outside("k", 0, 1, "a number between 0 and 1, as 0.01: what is left in the end", open_ends=True)

    def at(self, progress: float) -> float:
        return self.k**progress


PROBABILITY = "a probability, from 0 to 1"
KINDS: dict[str, type[ForcingSchedule]] = {
    kind.name: kind for kind in (ConstantForcing, LinearForcing, InverseSigmoidForcing, ExponentialForcing)
}
EXAMPLES = "1, constant:0.8, linear:1:0, inverse-sigmoid:6, exponential:0.01"


def forcing_of(written: str | float | ForcingSchedule) -> ForcingSchedule:
    """The schedule that a text names. A number alone is constant; numbers left out have their defaults.

    >>> forcing_of("linear:1:0")
    LinearForcing(start=1.0, end=0.0)
    >>> str(forcing_of("1"))
    'constant:1'
    """
    if isinstance(written, ForcingSchedule):
        return written
    text = str(written).strip()
    if isinstance(written, bool) or not text:
        raise ArgumentError("this is no schedule of teacher forcing.", came=repr(written), expected=EXAMPLES)
    name, *numbers = (piece.strip() for piece in text.split(":"))
    if not numbers and _is_number(name):
        name, numbers = ConstantForcing.name, [name]
    kind = KINDS.get(_canonical(name))
    if kind is None:
        near = difflib.get_close_matches(_canonical(name), KINDS, n=2)
        raise ArgumentError(
            f"no schedule of teacher forcing is called '{name}'.",
            came=repr(text),
            nearest=", ".join(near) or None,
            expected=EXAMPLES,
        )
    if len(numbers) > len(fields(kind)) or not all(map(_is_number, numbers)):  # type: ignore[arg-type]
        raise ArgumentError(
            f"the schedule '{text}' is written in another way.", expected=_notation(kind), tries=EXAMPLES
        )
    try:
        return kind(*map(float, numbers))
    except LeporelloError as error:
        error.place(schedule=text)
        raise


def _canonical(name: str) -> str:
    """A name of a schedule in lower case, with hyphens."""
    return "-".join(name.lower().replace("_", " ").split())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _notation(kind: type[ForcingSchedule]) -> str:
    """How a schedule is written: linear:START:END."""
    return ":".join([kind.name, *(field.name.upper() for field in fields(kind))])  # type: ignore[arg-type]
