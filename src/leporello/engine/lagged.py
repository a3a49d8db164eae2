"""`Lagged`: a sequence one step later, without a copy of all of it.

In a Loop whose state is an input of the step before, as the targets of a forced net are, the state's sequence is that
input, shifted. A window of it is a view of the input one step back, except where the initial value comes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.engine.buffer_pool import empty_from_pool

PutShifted = Callable[[Tensor, Tensor, Tensor | None, bool], Tensor]


def put_shifted(out: Tensor, sequence: Tensor, initial: Tensor | None, reverse: bool) -> Tensor:
    """Fill `out` with a sequence one step later, the initial value first (zeros for None), and return it.

    reverse   whether time runs backwards: the initial value is then at the end
    """
    initial = torch.zeros_like(sequence[0]) if initial is None else initial
    pieces = [sequence[1:], initial.unsqueeze(0)] if reverse else [initial.unsqueeze(0), sequence[:-1]]
    return torch.cat(pieces, out=out)


@dataclass(frozen=True, eq=False)
class Lagged:
    """The values of a sequence before each step. `lagged[start:end]` are those of a window, contiguous.

    sequence   [length, batch, ...], contiguous
    initial    [batch, ...], the value before the first step; None is zeros
    reverse    whether time runs backwards: the first step is then the last of the sequence
    put        `put_shifted`, or a target's own
    """

    sequence: Tensor
    initial: Tensor | None
    reverse: bool
    put: PutShifted = put_shifted

    def __getitem__(self, window: slice) -> Tensor:
        start, end, _ = window.indices(len(self.sequence))
        if self.reverse and end < len(self.sequence):
            return self.sequence[start + 1 : end + 1]
        if start > 0 and not self.reverse:
            return self.sequence[start - 1 : end - 1]
        part = self.sequence[start:end]
        memory = empty_from_pool(part.shape, part.dtype, part.device) if part.is_cpu else torch.empty_like(part)
        return self.put(memory, part, self.initial, self.reverse)

    def contiguous(self) -> Lagged:
        """Itself: as a tensor's, for generated code that takes either."""
        return self
