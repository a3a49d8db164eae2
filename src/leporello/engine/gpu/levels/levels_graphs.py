"""`LevelsGraphs`: the steps of `Levels` recorded once and replayed, so that Python launches none of their kernels.

A recording is of the kernels and products of up to `STEPS` steps. It depends on the batch and on where the matrices
are: everything else is in the table that is filled before each replay. So nothing is copied for it but the table, and
matrices that move from call to call, as those that autocast makes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leporello.engine.gpu.graphs.captured_memory import layout_of
from leporello.engine.gpu.graphs.captured_steps import FEWEST_STEPS, STEPS, parts
from leporello.engine.gpu.graphs.recorder import NotRecorded, Recorder, Recording
from leporello.engine.gpu.graphs.recordings import FixedValues, Recordings, lasting, switches
from leporello.engine.gpu.levels.levels_steps import LevelsSteps, Scratch
from leporello.engine.gpu.runner import Given


@dataclass(eq=False)
class LevelsKind(FixedValues):
    """Calls with the same batch and layout of matrices.

    copies       memory for the matrices that move
    scratch      that the recordings read and write
    recordings   by their number of steps
    """

    copies: dict[int, Tensor] = field(default_factory=dict)
    scratch: Scratch | None = None
    recordings: dict[int, Recording] = field(default_factory=dict)

    def fixed(self, recorder: Recorder, matrices: Sequence[Tensor]) -> list[Tensor]:
        """The matrices as recordings read them; those that move are copied."""
        found = list(matrices)
        for index in self.moving:
            if index not in self.copies:
                with lasting(recorder):
                    self.copies[index] = torch.empty_like(matrices[index])
            found[index] = self.copies[index].copy_(matrices[index])
        return found


class LevelsGraphs(Recordings[LevelsKind]):
    """The recordings of one kernel."""

    @property
    def about(self) -> str:
        """How steps are launched, for `explain`."""
        if self.missing is not None:
            return self.missing
        sizes = sorted({size for kind in self.kinds.values() for size in kind.recordings}, reverse=True)
        if not sizes:
            return f"captured in CUDA graphs of up to {STEPS} steps by the second call of a kind"
        return f"captured in CUDA graphs of {' and '.join(map(str, sizes))} steps"

    def run(self, launched: LevelsSteps, given: Given, matrices: Sequence[Tensor], steps: int) -> bool:
        """Run all steps; False where the caller has to, at the first call of a kind, or where nothing is recorded."""
        recorder = self.recorder(given.device) if steps >= FEWEST_STEPS else None
        if recorder is None:
            return False
        with recorder.turn():
            kind = self._kind(given, matrices)
            if kind is None:
                return False
            self._replayed(recorder, kind, launched, given, matrices, steps)
            return True

    def _kind(self, given: Given, matrices: Sequence[Tensor]) -> LevelsKind | None:
        """The kind of a call; None for the first of its kind."""
        key = (given.device, given.batch, layout_of(matrices), switches())
        addresses = [value.data_ptr() for value in matrices]
        kind = self.kind(key, lambda: LevelsKind(addresses))
        if kind is not None and kind.note(addresses):
            kind.recordings.clear()
        return kind

    def _replayed(
        self,
        recorder: Recorder,
        kind: LevelsKind,
        launched: LevelsSteps,
        given: Given,
        matrices: Sequence[Tensor],
        steps: int,
    ) -> None:
        if kind.scratch is None:
            with lasting(recorder):
                kind.scratch = launched.scratch(given)
        scratch, fixed = kind.scratch, kind.fixed(recorder, matrices)
        words = launched.words(given, scratch, steps)
        for start, size in parts(kind.recordings, STEPS, steps, reverse=False):
            launched.fill(scratch, words, start)
            if start == 0:
                launched.start(scratch)
            if size not in kind.recordings:
                self._record(recorder, kind, launched, scratch, fixed, size)
            if size in kind.recordings:
                kind.recordings[size]()
            else:
                launched.part(scratch, fixed, size)

    def _record(
        self,
        recorder: Recorder,
        kind: LevelsKind,
        launched: LevelsSteps,
        scratch: Scratch,
        fixed: Sequence[Tensor],
        size: int,
    ) -> None:
        """Record a part of so many steps, if that can be done."""
        if self.refused is not None:
            return
        before = scratch.memory.clone()  # a step runs once before it is recorded
        try:
            with lasting(recorder):
                kind.recordings[size], _ = recorder.record(
                    lambda: launched.part(scratch, fixed, 1), lambda: launched.part(scratch, fixed, size)
                )
        except (NotRecorded, torch.OutOfMemoryError) as error:
            self.failed(error)
        scratch.memory.copy_(before)
