"""How long a training will take yet. Knows events and what a configuration ends with; knows nothing of terminals."""

from __future__ import annotations

from typing import Any

from leporello.language.config import Config
from leporello.language.progress import epochs_of


class Left:
    """How long a training will take yet: by its clock where that ends it, by its speed so far where epochs do."""

    def __init__(self) -> None:
        self.begun: tuple[float, float] | None = None  # seconds and share of the first event, after all was made ready

    def after(self, event: dict[str, Any], config: Config) -> tuple[float, float | None]:
        """The share that is done, and the seconds left; None where nobody can know."""
        epochs, seconds = epochs_of(config), event["seconds"]
        done = event["epoch"] / epochs if epochs else 0.0
        self.begun = self.begun or (seconds, done)
        since, gone = seconds - self.begun[0], done - self.begun[1]
        left = [since / gone * (1 - done)] if since > 0 and gone > 0 else []
        shares = [done]
        if config.minutes:
            shares.append(seconds / (config.minutes * 60))
            left.append(config.minutes * 60 - seconds)
        return min(1.0, max(shares)), max(0.0, min(left)) if left else None


def clock(seconds: float) -> str:
    """A time as a clock shows it.

    >>> clock(75), clock(3720)
    ('1:15', '1:02:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
