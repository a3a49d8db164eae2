"""`Progress`: how far a training run has come, and `Tally`: what it has measured since the last line.

Knows counts and clocks; knows nothing of networks.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from leporello.language.config import Config

USUAL_EPOCHS = 20


@dataclass
class Progress:
    """Counters of a run, all of which a checkpoint keeps.

    update      changes of the parameters so far
    epoch       times the text has been gone through; `position` windows of the present time are done
    tokens      trained on so far, by all processes
    seconds     spent so far, over all stretches of the run
    best        smallest loss on the validation part; `stale` validations since then
    evaluated   the update of the last validation
    ended       why the run is over
    """

    update: int = 0
    epoch: int = 0
    position: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    stale: int = 0
    evaluated: int = 0
    ended: str | None = None

    def share(self, config: Config, updates: int) -> float:
        """How much of the training is done, from 0 to 1.

        updates   of an epoch
        """
        shares = [0.0]
        if epochs := epochs_of(config):
            shares.append(self.update / (epochs * updates))
        if config.minutes:
            shares.append(self.seconds / (config.minutes * 60))
        return min(1.0, max(shares))

    def over(self, config: Config) -> str | None:
        """Why the run is over, if it is."""
        if 0 < epochs_of(config) <= self.epoch:
            return f"{self.epoch} epochs are done" if self.epoch > 1 else "1 epoch is done"
        if 0 < config.minutes * 60 <= self.seconds:
            return f"{config.minutes:g} minutes are over" if config.minutes != 1 else "1 minute is over"
        if 0 < config.patience <= self.stale:
            return f"no progress in {self.stale} validations"
        return None


def epochs_of(config: Config) -> int:
    """How often the text is gone through; 0 where time alone decides."""
    return config.epochs or (0 if config.minutes else USUAL_EPOCHS)


@dataclass
class Tally:
    """Sums since the last line of metrics."""

    nats: float = 0.0
    tokens: int = 0
    norm: float = 0.0
    clipped: int = 0
    updates: int = 0
    begun: float = field(default_factory=time.monotonic)

    def add(self, loss: float, tokens: int, norm: float, clipped: bool) -> None:
        self.nats += loss * tokens
        self.tokens += tokens
        self.norm += norm
        self.clipped += clipped
        self.updates += 1

    def line(self, characters: float) -> dict[str, Any]:
        """The means.

        characters   of a token
        """
        loss = self.nats / self.tokens
        return {
            "loss": loss,
            "perplexity": perplexity(loss),
            "bits_per_character": loss / math.log(2) / characters,
            "gradient_norm": self.norm / self.updates,
            "clipped": self.clipped / self.updates,
            "tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.begun),
        }


def perplexity(loss: float) -> float:
    """exp of a mean cross-entropy; infinity where that is too large for a number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


# ---- (language.left) How long a training will take yet. Knows events and what a configuration ends with; knows nothing of terminals.


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
