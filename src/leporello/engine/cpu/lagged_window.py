"""`LaggedWindow`: a sequence one step later that is read in place, with the initial value at another address."""

from __future__ import annotations

import torch
from torch import Tensor


class LaggedWindow:
    """The values before each step of a window with the first step, as `Target.in_place` has them.

    Its rows below `border` are at one address, those from there on at another, `later`.

    Both are addresses of the window's first row, as if all rows were there. It has what generated code asks of a
    contiguous tensor [steps, batch, ...].
    """

    __slots__ = ("address", "border", "initial", "later", "sequence")

    def __init__(self, sequence: Tensor, initial: Tensor | None, reverse: bool) -> None:
        initial = torch.zeros_like(sequence[0]) if initial is None else initial.contiguous()
        step, whole = initial.nbytes, sequence.nbytes
        if reverse:
            self.border = (sequence.size(0) - 1) * sequence.size(1)
            self.address, self.later = sequence.data_ptr() + step, initial.data_ptr() - whole + step
        else:
            self.border = sequence.size(1)
            self.address, self.later = initial.data_ptr(), sequence.data_ptr() - step
        self.sequence, self.initial = sequence, initial  # held as long as they are read

    def data_ptr(self) -> int:
        """The address for rows below the border."""
        return self.address

    def numel(self) -> int:
        return self.sequence.numel()

    def dim(self) -> int:
        return 3  # or more: never a matrix

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> LaggedWindow:
        return self
