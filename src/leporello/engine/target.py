"""`Target`: the description of an engine that runs the stages of a split Loop; `Runner`: a kernel it builds.

`stepwise` is a target without kernels: torch's operators run the insides. A target with kernels has a function that
builds one from its description. Plans, sweeps and the bridge to autograd depend on this record only, on no engine by
name; the list of targets is in `engine/targets.py`.
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

from leporello.engine.lagged import PutShifted, put_shifted
from leporello.errors import EngineRefusal
from leporello.kernel.description import Kernel
from leporello.kernel.lower import FLOAT_DTYPES
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.stages import Stage
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.save import EXPENSIVE


class BoundKernel(Protocol):
    """A kernel bound to its invariants: runs all steps of a window for all rows."""

    def __call__(
        self,
        states: Sequence[Tensor | None],
        reads: Sequence[Tensor],
        next_states: Sequence[Tensor],
        writes: Sequence[Tensor],
        steps: int,
        batch: int,
    ) -> Sequence[Tensor] | None:
        """Read `states` and `reads`; write `next_states` and `writes`; return the kernel's totals, if it has any.

        All tensors are contiguous. `reads` and `writes` hold the rows of all steps of the window, [steps * batch, ...]
        or [steps, batch, ...], in the order of time even where the kernel runs backwards. A state that is None is
        zeros; a state and its next state may be the same tensor.
        """


class Runner(Protocol):
    """A built kernel. It takes tensors, and handles addresses, strides and packed matrices itself.

    source   the file with its generated source; None where there is none
    about    how it runs, in words, for `explain`; may be missing
    """

    @property
    def source(self) -> Path | None: ...

    def begin(self, rows: Sequence[Tensor], fixed: Sequence[Tensor], row_count: int) -> BoundKernel:
        """Prepare what no window changes, such as packed matrices, which live as long as the returned `BoundKernel`.

        rows        values that are the same at every step, one per row of the batch; contiguous
        fixed       values that are the same for all rows, in any layout
        row_count   rows that will be run, of all steps together
        """


class RecordedSteps(Protocol):
    """What may run the steps of an inside of torch's operators in the place of Python.

    about   how it runs them, in words, for `explain`
    """

    @property
    def about(self) -> str: ...

    def run(
        self,
        steps: int,
        batch: int,
        reverse: bool,
        states: Sequence[Tensor],
        reads: Sequence[Tensor],
        fixed: Sequence[Tensor],
        places: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """Run all steps of a window; returns the states after it and the loose results, flat.

        None where Python has to run them. `reads` and `places` are [steps, ...], each step contiguous, in the order of
        time even where the steps run backwards.
        """


SweepFunction = Callable[..., tuple[list[Tensor], list[Tensor]]]


class RecordedSweep(Protocol):
    """What may run a whole sweep in the place of its Python function.

    about   how it runs it, in words, for `explain`
    """

    @property
    def about(self) -> str: ...

    def run(self, length: int, batch: int, values: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]] | None:
        """Run the sweep of a call; returns what its function would. None where Python has to run it.

        Results for the caller are in new memory. What is saved for the backward sweep alone may be in memory that is
        written again when its last tensor is gone.
        """


class StageFunction(Protocol):
    """A function of a target that stands in the graph of an at-once stage; both attributes may be missing.

    reads_sequences   whether it takes sequences as they are in memory, [steps, batch, ...], and not only [rows, ...]: a
                      stage that is nothing else is then run without views
    places            whether it writes its result into memory passed as `out=`
    """

    reads_sequences: bool
    places: bool

    def __call__(self, *values: Tensor) -> Any: ...


@dataclass(frozen=True)
class WindowSizes:
    """How a sweep is cut into windows: all stages run on one window before the next begins.

    max_rows    rows (steps times batch) of a window: enough for a fast product, few enough for the cache
    min_count   windows in a long sequence: memory that only one window needs is then a small part of the whole
    min_rows    rows of a window below which a product slows down; it takes precedence over `min_count`
    """

    max_rows: int
    min_count: int = 1
    min_rows: int = 1

    def windows(self, length: int, batch: int, reverse: bool) -> list[tuple[int, int]]:
        """Windows as (start, end), of about equal size, in the order of the sweep."""
        count = max(1, -(-length // max(1, self.max_rows // batch)))
        if self.min_count > 1:
            count = max(count, min(self.min_count, length, length * batch // self.min_rows))
        if count == 1:
            return [(0, length)]
        windows = list(pairwise(length * index // count for index in range(count + 1)))
        return windows[::-1] if reverse else windows


@dataclass(frozen=True)
class Costs:
    """What is expensive on an engine.

    expensive   operators whose recomputation costs more than keeping their result in memory
    operands    whether what gradients of matrices and norms read at once is saved rather than recomputed, whatever it
                is: for an engine whose operators cost more by their launch than by their work
    drawn_in    whether an operator that could run on all steps at once is run in an inside instead; None: never
    """

    expensive: frozenset[Any] = EXPENSIVE
    operands: bool = False
    drawn_in: Callable[[fx.Node], bool] | None = None


def put_step(sequence: Tensor, step: int, value: Tensor) -> None:
    """Copy a value to one step of a sequence."""
    sequence[step] = value


def _never(function: Any, inputs: Any, outputs: Any, device: torch.device) -> None:
    """Of no function on no device."""


@dataclass(frozen=True, eq=False)
class Target:
    """An engine that runs a split Loop.

    name          the value of `engine=`
    devices       types of device it runs on, with their names for messages; None for any
    floats        floating dtypes that its kernels compute with; a kernel with another is refused
    stored        narrower dtypes in which matrices of its kernels may be stored
    costs         what to save, what to recompute, what to run inside the loop
    passes        its rewrites, for the target's slots in the pipeline
    windows       for each type of device how sweeps are cut; `default_windows` for others
    refuse        why it cannot run a Loop, as far as that can be told from the Loop alone; None if it can
    unavailable   why nothing can be built on this machine, as an error; None if it can
    remedy        what a user can do about that, in words
    build         from the description of a kernel to its runner; raises EngineRefusal where it cannot build it. None
                  where torch's operators run the insides
    interpret     from a Loop to a function that runs it over a sequence, in the place of a sweep of its stages; without
                  gradients. None where the stages are run
    build_ahead   begins to build what all kernels of a dtype share, before it is known whether there will be one
    wait          where runners are built side by side: until this one is; raises EngineRefusal if that failed
    recorded      from one step of an inside as a function, its number of states, its loose results with their row axes
                  and the device to what runs all steps; None where Python runs them
    recorded_sweep  from the function of a sweep, its inputs and outputs and the device to what runs it as a whole; None
                  where Python runs it
    at_once       from an at-once stage to stages whose graphs may call functions of the target (`StageFunction`);
                  unchanged by default
    language      what its generated text is written in, for `explain`
    put_step      copies a value to one step of a sequence, both contiguous and of one dtype
    put_shifted   fills a contiguous sequence with another of the same dtype, one step later, and returns it
    in_place      from a contiguous sequence, its initial value or None, and whether time runs backwards to the sequence
                  one step later as its kernels without states read it without a copy, and those of its functions that
                  have an attribute `reads_lagged`; None where they read tensors alone
    """

    name: str
    devices: Mapping[str, str] | None = None
    floats: frozenset[torch.dtype] = FLOAT_DTYPES
    stored: frozenset[torch.dtype] = frozenset()
    costs: Costs = field(default_factory=Costs)
    passes: tuple[Pass, ...] = ()
    windows: Mapping[str, WindowSizes] = field(default_factory=dict)
    default_windows: WindowSizes = WindowSizes(max_rows=1 << 16)
    refuse: Callable[[Loop], EngineRefusal | None] = lambda loop: None
    unavailable: Callable[[], EngineRefusal | None] = lambda: None
    remedy: str = ""
    build: Callable[[Kernel], Runner] | None = None
    interpret: Callable[[Loop], Callable[..., tuple[list[Tensor], list[Tensor]]]] | None = None
    build_ahead: Callable[[torch.dtype], object] = lambda dtype: None
    wait: Callable[[Any], None] = lambda runner: None
    recorded: Callable[[Callable[..., Any], int, Sequence[tuple[int, int]], torch.device], RecordedSteps | None] = (
        _never
    )
    recorded_sweep: Callable[[SweepFunction, Sequence[Port], Sequence[Port], torch.device], RecordedSweep | None] = (
        _never
    )
    at_once: Callable[[Stage], list[Stage]] = lambda stage: [stage]
    put_step: Callable[[Tensor, int, Tensor], None] = put_step
    put_shifted: PutShifted = put_shifted
    in_place: Callable[[Tensor, Tensor | None, bool], Any] | None = None
    language: str = ""

    @property
    def kernels(self) -> bool:
        """Whether insides are built as kernels."""
        return self.build is not None

    def windows_on(self, device: str) -> WindowSizes:
        return self.windows.get(device, self.default_windows)

    def runs_on(self, device: str) -> bool:
        """Whether it runs on a type of device."""
        return self.devices is None or device in self.devices

    def is_on_device_of(self, loop: Loop) -> bool:
        """Whether it runs on the device of a Loop's inputs."""
        return all(self.runs_on(port.device.type) for port in loop.inputs)

    def refusal(self, loop: Loop) -> EngineRefusal | None:
        """Why it cannot run a Loop: the device of its inputs, or the reason that `refuse` gives; None if it can."""
        elsewhere = next((p.device for p in loop.inputs if self.devices and p.device.type not in self.devices), None)
        if elsewhere is not None and self.devices is not None:
            return EngineRefusal(
                f"the engine '{self.name}' runs on {' or '.join(self.devices.values())} alone.",
                came=f"tensors on {elsewhere}",
                tries='engine="auto"',
            )
        return self.refuse(loop)


class _InvariantCache(threading.local):
    """What runners of this thread have computed from invariants that do not change; None outside `same_invariants`."""

    entries: dict[Any, Any] | None = None


_invariant_cache = _InvariantCache()


@contextmanager
def same_invariants() -> Iterator[None]:
    """A context in which invariants neither change nor move, so that what runners compute from them is reused."""
    before, _invariant_cache.entries = _invariant_cache.entries, {}
    try:
        yield
    finally:
        _invariant_cache.entries = before


def invariant_cache() -> dict[Any, Any] | None:
    """A dict in which a runner keeps, by its own keys, what it computes from invariants, such as packed tiles.

    None outside of `same_invariants`, where every run computes it anew.
    """
    return _invariant_cache.entries
