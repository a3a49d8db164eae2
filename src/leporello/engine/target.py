"""`Target`: all that an engine is which runs the stages of a split Loop; and `Runner`, what it builds for an inside.

`stepwise` is a target without kernels: torch's operators run the insides. A target with kernels says how to build one
from its description. Plans, sweeps and the bridge to autograd read this record and know no engine by name; the list of
targets is in `engine/targets.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.kernel.description import Kernel
from leporello.loop.loop import Loop
from leporello.loop.stages import Stage
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.save import EXPENSIVE


class Run(Protocol):
    """A kernel with its invariants at hand: takes all rows of a window through its steps."""

    def __call__(
        self,
        states: Sequence[Tensor | None],
        reads: Sequence[Tensor],
        next_states: Sequence[Tensor],
        writes: Sequence[Tensor],
        steps: int,
        batch: int,
    ) -> None:
        """Read `states` and `reads`; write `next_states` and `writes`.

        All tensors are contiguous. `reads` and `writes` hold the rows of all steps of the window, [steps * batch, ...]
        or [steps, batch, ...], in the order of time whichever way the kernel goes. A state that is None is zeros; a
        state and its next state may be the same tensor.
        """


class Runner(Protocol):
    """A built kernel. It takes tensors; addresses, strides and packed matrices are its own business.

    source   where the generated text can be read; None where there is none
    """

    @property
    def source(self) -> Path | None: ...

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> Run:
        """Make ready what no window changes, such as packed matrices; they are freed with what comes back.

        rows        values that are the same at every step, one per row of the batch; contiguous
        fixed       values that are the same for all rows, in any layout
        row_count   rows of all steps together that will be run
        """


@dataclass(frozen=True)
class WindowSizes:
    """How a sweep is cut into windows: all stages run on one window before the next begins.

    most_rows    rows (steps times batch) of a window at most: enough for a fast product, few enough for the cache
    least_count  windows in a long sequence at least: what only one window needs is then a small part of the whole
    least_rows   rows below which a product slows down; `least_count` does not go below them
    """

    most_rows: int
    least_count: int = 1
    least_rows: int = 1

    def windows(self, length: int, batch: int, reverse: bool) -> list[tuple[int, int]]:
        """Windows as (first step, behind the last step), of about equal size, in the order of the sweep."""
        count = max(1, -(-length // max(1, self.most_rows // batch)))
        if self.least_count > 1:
            count = max(count, min(self.least_count, length, length * batch // self.least_rows))
        if count == 1:
            return [(0, length)]
        found = list(pairwise(length * index // count for index in range(count + 1)))
        return found[::-1] if reverse else found


@dataclass(frozen=True)
class Costs:
    """What an engine finds expensive.

    expensive     pointwise operators whose recomputation costs more than keeping their result in memory
    drawn_in      whether an operator that could run on all steps at once may as well run inside the loop
    """

    expensive: frozenset[Any] = EXPENSIVE
    drawn_in: Callable[[fx.Node], bool] | None = None


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence."""
    sequence[step] = value


@dataclass(frozen=True, eq=False)
class Target:
    """An engine that runs a split Loop.

    name          as `engine=` names it
    devices       types of device it runs on, and how a person calls each; None for any
    costs         what to save, what to recompute, what to draw into the loop
    passes        rewrites of its own, at the places the pipeline has for them
    windows       for each type of device how sweeps are cut; `default_windows` for others
    refuse        why it cannot run a Loop, as far as the Loop alone shows it; None if it can
    unavailable   why nothing can be built on this machine, as an error; None if it can
    remedy        what a user can do about that, in a sentence
    build         from the description of a kernel to its runner; None where torch's operators run the insides. What it
                  cannot build it refuses with an EngineRefusal
    at_once       an at-once stage as stages whose graphs call functions of the target's own; itself by default
    put_step      copies a value to one step of a sequence, both contiguous and of one dtype
    """

    name: str
    devices: Mapping[str, str] | None = None
    dtypes: frozenset[torch.dtype] | None = None
    costs: Costs = field(default_factory=Costs)
    passes: tuple[Pass, ...] = ()
    windows: Mapping[str, WindowSizes] = field(default_factory=dict)
    default_windows: WindowSizes = WindowSizes(most_rows=1 << 16)
    refuse: Callable[[Loop], EngineRefusal | None] = lambda loop: None
    unavailable: Callable[[], EngineRefusal | None] = lambda: None
    remedy: str = ""
    build: Callable[[Kernel], Runner] | None = None
    at_once: Callable[[Stage], list[Stage]] = lambda stage: [stage]
    put_step: Callable[[Tensor, int, Tensor], None] = put_step

    @property
    def kernels(self) -> bool:
        """Whether insides are built as kernels."""
        return self.build is not None

    def windows_on(self, device: str) -> WindowSizes:
        return self.windows.get(device, self.default_windows)

    def refusal(self, loop: Loop) -> EngineRefusal | None:
        """Why it cannot run a Loop: the device of its inputs, or a reason of the target's own."""
        elsewhere = next((p.device for p in loop.inputs if self.devices and p.device.type not in self.devices), None)
        if elsewhere is not None and self.devices is not None:
            return EngineRefusal(
                f"the engine '{self.name}' runs on {' or '.join(self.devices.values())} alone.",
                came=f"tensors on {elsewhere}",
                tries='engine="auto"',
            )
        return self.refuse(loop)


class _Reuse(threading.local):
    """What runners of this thread have made of invariants that do not change; None outside of `same_invariants`."""

    made: dict[Any, Any] | None = None


_reuse = _Reuse()


@contextmanager
def same_invariants() -> Iterator[None]:
    """Within, invariants neither change nor move: what a runner made of them (packed tiles) serves again."""
    before, _reuse.made = _reuse.made, {}
    try:
        yield
    finally:
        _reuse.made = before


def reusable() -> dict[Any, Any] | None:
    """Where a runner may keep what it made of invariants, by a key of its own; None where each run makes its own."""
    return _reuse.made
