"""Every exception of the library, in one form: what is wrong, then where, what came, what was expected, what to do.

Knows nothing of loops or tensors: whoever raises one passes the words.
"""

from __future__ import annotations

from collections.abc import Mapping


class LeporelloError(Exception):
    """The base of all errors raised here: one sentence, then aligned lines of detail.

    >>> print(LeporelloError("the state 'h' changes", cell="Leaky", tries="return it as it came"))
    the state 'h' changes
      cell  Leaky
      try   return it as it came
    """

    def __init__(self, what: str, **details: object) -> None:
        self.what = what
        self.details = {name: str(value) for name, value in details.items() if value is not None}
        super().__init__(_text(what, self.details))

    def place(self, **where: str | None) -> None:
        """Add details that say where it happened, in front of the others; one that is there already keeps its value.

        What to try stays the last one.
        """
        found = {name: value for name, value in where.items() if value is not None}
        details = {**found, **self.details}
        tries = {"tries": details.pop("tries")} if "tries" in details else {}
        self.details = {**details, **tries}
        self.args = (_text(self.what, self.details),)


def _text(what: str, details: Mapping[str, str]) -> str:
    names = {name: "try" if name == "tries" else name.replace("_", " ") for name in details}
    width = max(map(len, names.values()), default=0)
    indent = "\n" + " " * (width + 4)
    return "\n".join(
        [what, *(f"  {names[name]:<{width}}  {indent.join(value.split(chr(10)))}" for name, value in details.items())]
    )


class ArgumentError(LeporelloError, ValueError):
    """An argument of a call has the wrong shape, type or value."""


class StateMismatch(LeporelloError, ValueError):
    """A state leaf has another shape, dtype or structure than it should have."""


class MissingState(LeporelloError, ValueError):
    """A cell that declares no state was called without one."""


class NotOneStep(LeporelloError, ValueError):
    """A cell was called with a whole sequence."""


class UntraceableStep(LeporelloError, ValueError):
    """A step does what no graph can hold: control flow on data, hidden tensors, writes, hooks."""


class RowsMeet(LeporelloError, ValueError):
    """Rows of a batch influence each other, and the engine asked for needs them apart."""


class DeviceMismatch(LeporelloError, ValueError):
    """Parameters and inputs lie on different devices."""


class EngineRefusal(LeporelloError, ValueError):
    """A named engine cannot run this loop."""


class GradientMismatch(LeporelloError, AssertionError):
    """`check_gradients` found an engine that differs from the plain loop."""


class ExportMismatch(LeporelloError, AssertionError):
    """An exported file does not compute what the network computes."""


class MissingPackage(LeporelloError, ImportError):
    """An optional package is not installed."""


class GraphGone(LeporelloError, ValueError):
    """A gradient was to go back through steps whose record is no longer there, or no longer true."""


class FileMismatch(LeporelloError, ValueError):
    """A file holds the parameters of another network, or none."""


class NotFinite(LeporelloError, ArithmeticError):
    """A loss or a gradient is infinite or no number."""
