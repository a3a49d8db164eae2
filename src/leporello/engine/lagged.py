"""`Lagged`: a sequence one step later, without a copy of all of it.

In a Loop whose state is an input of the step before, as the targets of a forced net are, the state's sequence is that
input, shifted. A window of it is a view of the input one step back, except where the initial value comes in: there it
is a copy, or what a target has in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class Lagged:
    """The values of a sequence before each step. `lagged[start:end]` are those of a window, contiguous.

    sequence   [length, batch, ...], contiguous
    initial    [batch, ...], the value before the first step; None is zeros
    reverse    whether time runs backwards: the first step is then the last of the sequence
    put        `put_shifted`, or a target's own
    in_place   `Target.in_place`, where all who read it take that instead of a copy; else None
    """

    __slots__ = ("in_place", "initial", "put", "reverse", "sequence")

    def __init__(
        self,
        sequence: Tensor,
        initial: Tensor | None,
        reverse: bool,
        put: PutShifted = put_shifted,
        in_place: Callable[[Tensor, Tensor | None, bool], Any] | None = None,
    ) -> None:
        self.sequence, self.initial, self.reverse = sequence, initial, reverse
        self.put, self.in_place = put, in_place

    def __getitem__(self, window: slice) -> Any:
        start, end, _ = window.indices(len(self.sequence))
        if self.reverse and end < len(self.sequence):
            return self.sequence[start + 1 : end + 1]
        if start > 0 and not self.reverse:
            return self.sequence[start - 1 : end - 1]
        part = self.sequence[start:end]
        if self.in_place is not None:
            return self.in_place(part, self.initial, self.reverse)
        memory = empty_from_pool(part.shape, part.dtype, part.device) if part.is_cpu else torch.empty_like(part)
        return self.put(memory, part, self.initial, self.reverse)

    def whole(self) -> Any:
        """The window of all steps."""
        return self[:] if self.in_place is None else self.in_place(self.sequence, self.initial, self.reverse)

    def contiguous(self) -> Lagged:
        """Itself: as a tensor's, for generated code that takes either."""
        return self
