"""How a training looks while it runs: a bar with numbers, in terminals and notebooks; lines of JSON; or nothing.

Knows events and rich; knows nothing of how they come about.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from leporello.language.config import Config
from leporello.language.progress import epochs_of
from leporello.language.run import finite

Event = dict[str, Any]


class View(Protocol):
    """Shows events one by one."""

    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, event: Event) -> None: ...


class Nothing:
    """Shows nothing."""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *failed: object) -> None: ...

    def show(self, event: Event) -> None: ...


class Lines(Nothing):
    """One line of JSON for each event."""

    def show(self, event: Event) -> None:
        sys.stdout.write(json.dumps(finite(event), ensure_ascii=True) + "\n")
        sys.stdout.flush()


class Bar:
    """A bar with numbers below it; validations and samples go by above.

    known   models to compare with: a name and a perplexity each, the worst first
    share   how much is done before the first event
    """

    def __init__(self, config: Config, known: Sequence[tuple[str, float]] = (), share: float = 0.0) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.config, self.known = config, known
        self.console = Console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            expand=True,
            speed_estimate_period=60,
        )
        self.task = self.bar.add_task("training", total=1.0, completed=share)  # type: ignore[arg-type]
        self.numbers: Any = ""
        self.live = Live(console=self.console, refresh_per_second=4, transient=True, get_renderable=self._drawn)

    def __enter__(self) -> Bar:
        self.live.start()
        return self

    def __exit__(self, *failed: object) -> None:
        self.live.stop()

    def show(self, event: Event) -> None:
        getattr(self, f"_{event['kind']}")(event)

    def _drawn(self) -> Any:
        from rich.console import Group

        return Group(self.bar, self.numbers)

    def _train(self, event: Event) -> None:
        from rich.text import Text

        self._advance(event)
        self.numbers = Text.assemble(
            ("perplexity ", "dim"), (f"{event['perplexity']:.2f}", "bold"),
            ("  loss ", "dim"), f"{event['loss']:.3f}",
            ("  bits/char ", "dim"), f"{event['bits_per_character']:.3f}",
            ("  gradient ", "dim"), f"{event['gradient_norm']:.2f}",
            ("  clipped ", "dim"), f"{event['clipped']:.0%}",
            ("  tokens/s ", "dim"), f"{event['tokens_per_second']:,.0f}",
        )  # fmt: skip

    def _validation(self, event: Event) -> None:
        from rich.text import Text

        below = [(name, value) for name, value in self.known if event["perplexity"] < value]
        line = Text.assemble(
            (f"epoch {event['epoch']:6.2f}  ", "dim"), "validation perplexity ",
            (f"{event['perplexity']:7.3f}", "bold green" if event["best"] else "bold"),
            (f"  bits/char {event['bits_per_character']:.3f}", "dim"),
        )  # fmt: skip
        if self.known:
            line.append(f"  below the {below[-1][0]} ({below[-1][1]:.2f})" if below else "  above the unigram", "cyan")
        self.console.print(line)

    def _sample(self, event: Event) -> None:
        from rich.padding import Padding
        from rich.text import Text

        self.console.print(Padding(Text(event["text"].strip("\n"), style="italic dim"), (0, 4)))

    def _end(self, event: Event) -> None:
        self._advance(event)

    def _advance(self, event: Event) -> None:
        shares = [0.0]
        if epochs := epochs_of(self.config):
            shares.append(event["epoch"] / epochs)
        if self.config.minutes:
            shares.append(event["seconds"] / (self.config.minutes * 60))
        self.bar.update(self.task, completed=min(1.0, max(shares)), description=f"epoch {event['epoch']:.1f}")
