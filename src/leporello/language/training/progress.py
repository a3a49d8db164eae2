"""How far a training has come (`Progress`), its means since the last line of metrics (`Tally`), and the time left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from leporello.language.config import Config
from leporello.language.model.perplexity import perplexity_of_loss

DEFAULT_EPOCHS = 20


@dataclass
class Progress:
    """The counters of a run. A checkpoint keeps them all.

    update      the number of updates of the parameters
    epoch       the number of finished epochs
    position    the number of finished windows of the present epoch
    tokens      the number of tokens trained on, by all processes
    seconds     of training, without pauses between interruption and resumption
    best        the smallest loss on the validation part; None before the first validation
    stale       the number of validations since then
    evaluated   the update of the last validation
    ended       why the run is over; None before its end
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
        """The finished share of the training, from 0 to 1.

        updates   the number of updates in an epoch
        """
        shares = [0.0]
        if epochs := epochs_of(config):
            shares.append(self.update / (epochs * updates))
        if config.minutes:
            shares.append(self.seconds / (config.minutes * 60))
        return min(1.0, max(shares))

    def over(self, config: Config) -> str | None:
        """Why the run is over; None if it is not."""
        if 0 < epochs_of(config) <= self.epoch:
            return f"{self.epoch} epochs are done" if self.epoch > 1 else "1 epoch is done"
        if 0 < config.minutes * 60 <= self.seconds:
            return f"{config.minutes:g} minutes are over" if config.minutes != 1 else "1 minute is over"
        if 0 < config.patience <= self.stale:
            return f"no progress in {self.stale} validations"
        return None


def epochs_of(config: Config) -> int:
    """The number of epochs of a training; 0 if only its time is limited."""
    return config.epochs or (0 if config.minutes else DEFAULT_EPOCHS)


@dataclass
class Tally:
    """Sums over the updates since the last line of metrics.

    nats      sum of the surprises of all tokens
    norm      sum of the norms of the gradients
    clipped   the number of updates whose gradient was clipped
    begun     when the first of the updates began, on the clock `time.monotonic`
    """

    nats: float = 0.0
    tokens: int = 0
    norm: float = 0.0
    clipped: int = 0
    updates: int = 0
    begun: float = field(default_factory=time.monotonic)

    def add(self, loss: float, tokens: int, norm: float, clipped: bool) -> None:
        """Add one update, whose tokens have the mean surprise `loss`."""
        self.nats += loss * tokens
        self.tokens += tokens
        self.norm += norm
        self.clipped += clipped
        self.updates += 1

    def line(self, characters: float) -> dict[str, Any]:
        """The means, for a line of metrics.

        characters   in a token, on average
        """
        loss = self.nats / self.tokens
        return {
            "loss": loss,
            "perplexity": perplexity_of_loss(loss),
            "bits_per_character": loss / math.log(2) / characters,
            "gradient_norm": self.norm / self.updates,
            "clipped": self.clipped / self.updates,
            "tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.begun),
        }


class RemainingTime:
    """How long a training will still take: from its time limit, and from its speed towards its number of epochs."""

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # seconds and share at the first event: compilation is over

    def after(self, event: dict[str, Any], config: Config) -> tuple[float, float | None]:
        """The share that is done after an event, and the seconds left; None if they cannot be estimated yet."""
        epochs, seconds = epochs_of(config), event["seconds"]
        done = event["epoch"] / epochs if epochs else 0.0
        self.first = self.first or (seconds, done)
        elapsed, share = seconds - self.first[0], done - self.first[1]
        seconds_left = [elapsed / share * (1 - done)] if elapsed > 0 and share > 0 else []
        shares = [done]
        if config.minutes:
            shares.append(seconds / (config.minutes * 60))
            seconds_left.append(config.minutes * 60 - seconds)
        return min(1.0, max(shares)), max(0.0, min(seconds_left)) if seconds_left else None


def clock_time(seconds: float) -> str:
    """A duration as a clock shows it.

    >>> clock_time(75), clock_time(3720)
    ('1:15', '1:02:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
