"""Displays of a training while it runs: a progress bar in terminals and notebooks, lines of JSON, or nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from leporello.language.config import Config
from leporello.language.run.metrics import without_infinities
from leporello.language.training.progress import RemainingTime, clock_time

Event = dict[str, Any]


class Display(Protocol):
    """Shows the events of a training one by one."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, event: Event) -> None:
        """Show one event."""


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> NoDisplay:
        return self

    def __exit__(self, *failed: object) -> None: ...

    def show(self, event: Event) -> None: ...


class JsonLines(NoDisplay):
    """One line of JSON for each event."""

    def show(self, event: Event) -> None:
        sys.stdout.write(json.dumps(without_infinities(event), ensure_ascii=True) + "\n")
        sys.stdout.flush()


class ProgressBar:
    """A bar with the latest measurements below it, in 80 columns. Validations and samples are printed above.

    known   models to compare with: the name and the perplexity of each
    share   of the training that is done before the first event
    """

    def __init__(self, config: Config, known: Sequence[tuple[str, float]] = (), share: float = 0.0) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        self.config, self.known = config, known
        self.console = Console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            expand=True,
        )
        self.task = self.bar.add_task("training", total=1.0, completed=share, left="")  # type: ignore[arg-type]
        self.remaining = RemainingTime()
        self.numbers: Any = ""
        self.live = Live(console=self.console, refresh_per_second=4, transient=True, get_renderable=self._renderable)

    def __enter__(self) -> ProgressBar:
        self.live.start()
        return self

    def __exit__(self, *failed: object) -> None:
        self.live.stop()

    def show(self, event: Event) -> None:
        getattr(self, f"_{event['kind']}")(event)

    def _renderable(self) -> Any:
        """The bar and the numbers below it."""
        from rich.console import Group

        return Group(self.bar, self.numbers)

    def _train(self, event: Event) -> None:
        from rich.text import Text

        self._advance(event)
        self.numbers = Text.assemble(
            ("perplexity ", "dim"), (f"{_number(event['perplexity']):<7}", "bold"),
            (" bits/char ", "dim"), f"{event['bits_per_character']:<5.3f}",
            (" gradient ", "dim"), f"{_number(event['gradient_norm']):<5}",
            (" clipped ", "dim"), f"{event['clipped']:<4.0%}",
            f" {_count(event['tokens_per_second']):>7}", (" tokens/s", "dim"),
            overflow="ellipsis", no_wrap=True,
        )  # fmt: skip

    def _validation(self, event: Event) -> None:
        from rich.text import Text

        line = Text.assemble(
            (f"epoch {event['epoch']:7.2f}  ", "dim"), "validation perplexity ",
            (f"{event['perplexity']:9,.3f}", "bold green" if event["best"] else "bold"),
            (f"  bits/char {event['bits_per_character']:6.3f}", "dim"),
        )  # fmt: skip
        if self.known:
            line.append(f"  {rank_among(event['perplexity'], self.known)}", "cyan")
        self.console.print(line, soft_wrap=True)

    def _sample(self, event: Event) -> None:
        from rich.padding import Padding
        from rich.text import Text

        self.console.print(Padding(Text(event["text"].strip("\n"), style="italic dim"), (0, 4)))

    def _end(self, event: Event) -> None:
        self._advance(event)

    def _advance(self, event: Event) -> None:
        """Move the bar, and tell the time left."""
        share, seconds_left = self.remaining.after(event, self.config)
        self.bar.update(
            self.task,
            completed=share,
            description=f"epoch {event['epoch']:.1f}",
            left="" if seconds_left is None else f"{clock_time(seconds_left)} left",
        )


def rank_among(perplexity: float, known: Sequence[tuple[str, float]]) -> str:
    """The rank of a perplexity, in words: below which model it is (the best of those above it), or above all.

    >>> rank_among(4.0, [("uniform", 65.0), ("2-gram", 11.5), ("3-gram", 3.9)])
    'below 2-gram'
    """
    worse = [(value, name) for name, value in known if perplexity < value]
    return f"below {min(worse)[1]}" if worse else "above all"


def _count(count: float) -> str:
    """A count in at most seven columns."""
    return f"{count:,.0f}" if count < 1e6 else f"{count / 1e6:.2f}M"


def _number(value: float) -> str:
    """A number of any size in few columns."""
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
