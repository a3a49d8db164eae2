"""`cost`: what each gradient method costs in time and memory, estimated from the Loop alone.

Time is in units of a forward pass, so that it does not depend on the machine's speed; `lp.analysis.bias_and_variance`
measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from leporello.errors import ArgumentError
from leporello.gradient.checkpointed import Checkpointed
from leporello.gradient.method import Method
from leporello.gradient.random_truncated import RandomTruncated
from leporello.gradient.rtrl import RTRL
from leporello.gradient.through_time import Full
from leporello.gradient.truncated import Truncated
from leporello.gradient.uoro import UORO
from leporello.gradient.work import work_of
from leporello.loop.loop import Loop
from leporello.text_table import plain_table


@dataclass(frozen=True)
class Cost:
    """The cost of one method.

    time     in forward passes, including the one that computes the outputs
    memory   bytes, beyond inputs, outputs and the parameters' gradients
    gives    what the result is, in words
    """

    method: Method
    time: float
    memory: float
    gives: str


@dataclass(frozen=True)
class CostTable:
    """A table of costs: a line (a `Cost` in `rows`) for each method, for one Loop, length and batch.

    loop   its name
    """

    length: int
    batch: int
    loop: str
    rows: tuple[Cost, ...]

    def __str__(self) -> str:
        title = f"{self.loop}: {self.length:,} steps, batch {self.batch}; time in forward passes"
        rows = [("method", "time", "memory", "gives"), *map(_cells, self.rows)]
        return f"{title}\n{plain_table(rows, left={0, 3}, indent=2)}"

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in _cells(row)) + "</tr>" for row in self.rows
        )
        head = "".join(f"<th>{title}</th>" for title in ("method", "time (forward passes)", "memory", "gives"))
        return f"<table><tr>{head}</tr>{cells}</table>"


def cost(length: int, batch: int, loop: Loop, methods: Sequence[Method] | None = None) -> CostTable:
    """What each method costs for a Loop of `length` steps and `batch` rows.

    methods   one of each kind by default

    >>> table = lp.gradient.cost(1000, 16, lp.fold(lp.LSTM(8, 64), torch.zeros(2, 8)), [lp.Full(), lp.Truncated(35)])
    >>> [row.gives for row in table.rows]
    ['the exact gradient', 'a biased one: 35 steps back']
    """
    if not isinstance(loop, Loop):
        raise ArgumentError(
            "the argument 'loop' is no loop.", came=type(loop).__name__, expected="an lp.Loop", tries="lp.fold(cell, x)"
        )
    for name, number in (("length", length), ("batch", batch)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ArgumentError(f"the argument '{name}' is no size.", came=repr(number), expected="a positive integer")
    work = work_of(loop)
    methods = one_of_each(length) if methods is None else methods
    rows = tuple(Cost(method, *method.cost(work, length, batch)) for method in methods)
    return CostTable(length, batch, loop.name, rows)


def one_of_each(length: int) -> list[Method]:
    """One method of each kind, with windows of at most half the length."""
    steps = max(1, min(35, length // 2))
    return [
        Full(),
        Truncated(steps),
        Truncated(steps, every=1),
        RandomTruncated(),
        Checkpointed(),
        Checkpointed(levels=2),
        RTRL(),
        UORO(),
    ]


def _cells(row: Cost) -> tuple[str, str, str, str]:
    return repr(row.method), f"{row.time:.2f}", _bytes(row.memory), row.gives


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
