"""`Batches`: a text cut into rows that are read in parallel, and into windows of steps, one for each update.

Sequential: each row of a window continues that of the window before. Random: windows come from anywhere in the text.
Each epoch begins at another offset, so that windows have other borders. The windows of an epoch depend only on the seed
and the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from leporello.errors import ArgumentError


class Batches:
    """The windows of a text.

    tokens      (length,) integers, which may be memory-mapped
    batch       rows of a window in this process
    window      steps of a window
    partition   "sequential" or "random"
    rank        of this process among `ranks`: each has its own rows
    """

    def __init__(
        self, tokens: Tensor, batch: int, window: int, *, partition: str, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        self.tokens, self.batch, self.window = tokens, batch, window
        self.partition, self.seed, self.rank = partition, seed, rank
        self.rows = batch * ranks
        self.updates = (len(tokens) - 1) // window // self.rows  # in an epoch
        if not self.updates:
            _refuse_short(len(tokens), self.rows, window)
        self.spare_tokens = len(tokens) - 1 - self.updates * self.rows * window

    @property
    def continues(self) -> bool:
        """Whether the state of a row is carried from window to window."""
        return self.partition == "sequential"

    def epoch(self, number: int, begin: int = 0) -> Iterator[Tensor]:
        """The windows of epoch `number` from index `begin` on: (window + 1, batch) int64.

        Each step is an input and the target of the step before it; the last is a target alone.
        """
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        offset = int(torch.randint(min(self.window, self.spare_tokens + 1), (), generator=generator))
        if self.continues:
            length = (len(self.tokens) - 1 - offset) // self.rows
            first = offset + self.rank * self.batch * length
            for position in range(begin, self.updates):
                yield self._rows(first + position * self.window, length)
            return
        count = (len(self.tokens) - 1 - offset) // self.window
        order = torch.randperm(count, generator=generator) * self.window + offset
        for position in range(begin, self.updates):
            row = position * self.rows + self.rank * self.batch
            yield self._gathered(order[row : row + self.batch])

    def _rows(self, first: int, stride: int) -> Tensor:
        """The window whose rows begin at the tokens first, first + stride, first + 2 stride, ..."""
        start = self.tokens.storage_offset() + first
        return self.tokens.as_strided((self.window + 1, self.batch), (1, stride), start).long().contiguous()

    def _gathered(self, starts: Tensor) -> Tensor:
        """The window whose rows begin at the tokens `starts`, (batch,)."""
        return torch.stack([self.tokens[start : start + self.window + 1] for start in starts.tolist()], 1).long()


def _refuse_short(count: int, rows: int, window: int) -> None:
    """Refuse a text that is too short, with a window or batch that would fit."""
    shorter = (count - 1) // rows
    fewer = (count - 1) // window
    tries = [f"window={shorter}"] * (shorter > 1) + [f"batch={fewer}"] * (fewer > 0)
    raise ArgumentError(
        "the text is too short for one window of each row.",
        came=f"{count:,} tokens to train on",
        expected=f"{rows * window + 1:,} or more: {rows} rows of {window} steps, and one token to predict",
        tries=" or ".join(tries) or "a longer text, or a smaller batch and window",
    )
