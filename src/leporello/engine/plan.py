"""`Plan`: a Loop prepared for an engine: its rewritten Loops, and a `Sweep` for each, built when first used and kept.

The rewrites are those of the pipeline (`rewrite/pipeline.py`); `engine/sweep` builds the functions that run a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, fx

from leporello.engine.cache_folder import kept_path, write_kept
from leporello.engine.state_gradient import ClipCount
from leporello.engine.sweep.function import Windows, step_function, sweep_function
from leporello.engine.sweep.placement import copies_shifted, only_kernels, possible_aliases
from leporello.engine.sweep.program import Program, program_of
from leporello.engine.target import RecordedSweep, SweepFunction, Target
from leporello.engine.wiring import Wiring, places_of, wiring_of
from leporello.errors import EngineRefusal
from leporello.loop.draft import Draft
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.sizes import LengthsFixed
from leporello.rewrite.pipeline import Context, Pass, PassRecord, Pipeline
from leporello.rewrite.save import Saved


@dataclass(frozen=True, eq=False)
class Sweep:
    """A Loop with its program and the Python function that runs it over a sequence.

    function   (length, batch, *inputs) -> the outputs, and the wanted sequences of states before each step
    inputs     the Loop's inputs in the order of the function's arguments
    aliases    indices of outputs that may share memory with an input or with another output
    device     the type of device it runs on
    windows    from length and batch to the windows it goes through
    alone      whether every stage runs one step at a time
    recorded   what may run it in the place of the function
    """

    loop: Loop
    program: Program
    function: SweepFunction
    inputs: tuple[Port, ...]
    aliases: tuple[int, ...]
    device: str
    windows: Windows
    alone: bool = False
    recorded: RecordedSweep | None = None

    @staticmethod
    def of(
        loop: Loop, target: Target, pipeline: Pipeline, on: str = "forward", befores: dict[str, str] | None = None
    ) -> Sweep:
        """The sweep that runs a Loop on a target.

        on        the Loop in words, for the record of passes
        befores   states whose sequence before each step is wanted -> the output that is their sequence after each step
        """
        split = pipeline.split(loop, on)
        program = program_of(split, target)
        outputs = {port.name: node for port, node in program.outputs if port.kind == "sequence"}
        wanted = {state: outputs[name] for state, name in (befores or {}).items()}
        device = program.device.type
        windows = _windows(target, program, wanted)
        if target.interpret is None:
            function = sweep_function(program, wanted, windows)
        else:
            function = target.interpret(split.loop)
        refuse_fixed_lengths(loop)
        inputs = split.loop.inputs
        recorded = target.recorded_sweep(function, inputs, split.loop.outputs, program.device)
        aliases = possible_aliases(program, wanted)
        return Sweep(loop, program, function, inputs, aliases, device, windows, recorded=recorded)

    @property
    def text(self) -> str:
        """The Python text of the function."""
        return str(self.function.text)  # type: ignore[attr-defined]

    def written_text(self) -> Path | str:
        """Write the text to the cache folder, and return its path; where that fails, the reason in brackets."""
        try:
            path = kept_path(f"sweep of {self.loop.name}", self.text, ".py")
            write_kept(path, self.text.encode())
        except (OSError, EngineRefusal) as error:
            return f"(cannot be written: {error})"
        return path

    def without_befores(self) -> Sweep:
        """The same sweep without the states before each step: no output is then a view of a larger tensor."""
        return replace(self, function=sweep_function(self.program, {}, self.windows), recorded=None)

    def step_by_step(self) -> Sweep:
        """The same sweep in windows of one step: for a Loop with values too large to keep for several steps."""
        order = slice(None, None, -1 if self.loop.reverse else 1)

        def windows(length: int, batch: int) -> list[tuple[int, int]]:
            return [(time, time + 1) for time in range(length)][order]

        function = sweep_function(self.program, {}, windows)
        return replace(self, function=function, windows=windows, alone=True, recorded=None)


def refuse_fixed_lengths(loop: Loop) -> None:
    """Raise if a free length of a Loop has been taken for a number since it was traced."""
    if loop.free_lengths and loop.family.fixed_lengths():
        raise LengthsFixed("a length of the context that may differ between calls was taken for a number.")


def pipeline_of(target: Target | None, context: Context | None = None, before: Sequence[PassRecord] = ()) -> Pipeline:
    """The pipeline with a target's passes and costs; without them for None, the engine `reference`.

    before   records of passes that have run already
    """
    context = Context() if context is None else context
    if target is not None:
        costs = target.costs
        context = replace(
            context,
            target=target.passes,
            split=True,
            expensive=costs.expensive,
            operands=costs.operands,
            drawn_in=costs.drawn_in,
        )
    return Pipeline(context, list(before))


def _windows(target: Target, program: Program, befores: Mapping[str, fx.Node]) -> Windows:
    """How a sweep is cut into windows: as the target says; not at all where kernels run all of it.

    Where they read a copy of a shifted input, the first step of a long sequence is a window of its own: then nothing
    else is copied.
    """
    reverse, sizes = program.reverse, target.windows_on(program.device.type)
    if not target.kernels or not only_kernels(program, befores):
        return lambda length, batch: sizes.windows(length, batch, reverse)
    if not copies_shifted(program, befores):
        return _whole_sequence

    def first_step_apart(length: int, batch: int) -> list[tuple[int, int]]:
        if length * batch <= sizes.max_rows or length == 1:
            return [(0, length)]
        return [(length - 1, length), (0, length - 1)] if reverse else [(0, 1), (1, length)]

    return first_step_apart


def _whole_sequence(length: int, batch: int) -> list[tuple[int, int]]:
    return [(0, length)]


@dataclass(frozen=True)
class Clipped:
    """How often the state's gradient was clipped in one backward pass.

    counted   the pairs of step and row at which it was clipped; on `reference` it grows during the backward pass
    pairs     all pairs of step and row without padding, times the number of backward sweeps
    """

    counted: ClipCount
    pairs: int | Tensor

    @property
    def count(self) -> Tensor | float:
        return self.counted.count

    @property
    def share(self) -> float:
        return float(self.count) / float(self.pairs)


@dataclass(eq=False)
class Plan:
    """A Loop, ready to run and to be differentiated.

    loop           the Loop, with the rewrites of the call applied
    wanted         for each input whether its gradient is wanted
    method         passes of the gradient method
    target         what runs it; None for the engine `reference`
    method_cache   what a gradient method computes once for this plan, by keys of its own
    clipped        how often the gradient was clipped in the last backward pass; None before the first, or without limit
    before         records of the passes that led to `loop`
    seconds        how long each phase of making it took
    instead        runs a Loop made of this one if the target refuses it; None where the engine was asked for by name
    derived        plans of Loops made of this one, by keys of `engine/transforms.py`
    """

    loop: Loop
    wanted: tuple[bool, ...]
    method: tuple[Pass, ...] = ()
    target: Target | None = None
    method_cache: dict[Any, Any] = field(default_factory=dict)
    clipped: Clipped | None = None
    before: tuple[PassRecord, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    instead: Target | None = None
    derived: dict[Any, Any] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        return "reference" if self.target is None else self.target.name

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline for the passes after those of the call, with the records of all that have run."""
        leaving = tuple(p.name for p, w in zip(self.loop.inputs, self.wanted, strict=True) if p.kind == "state" and w)
        context = Context(wanted=self.wanted, leaving=leaving, method=self.method)
        return pipeline_of(self.target, context, self.before)

    @cached_property
    def step(self) -> Callable[..., Any]:
        """One step of the whole graph as a function of batch and inputs, for the engine `reference`."""
        return function_of(self.loop.graph)

    # ---- Loops

    @cached_property
    def parted(self) -> Loop:
        """The Loop that all sweeps are derived from: `loop` after the pipeline's forward passes."""
        return self.pipeline.forward(self.loop)

    @cached_property
    def gradient(self) -> Loop:
        """The backward Loop that recomputes all forward values it needs."""
        return self.pipeline.backward(self.parted)

    @cached_property
    def saved(self) -> Saved:
        """The forward and the backward Loop, with what is saved between them."""
        return self.pipeline.pair(self.parted, self.gradient)

    # ---- sweeps

    @cached_property
    def plain(self) -> Sweep:
        """The forward sweep for calls without gradients: nothing is saved."""
        return self._sweep(self.parted, "forward")

    @cached_property
    def one_step(self) -> Callable[..., list[Tensor]] | None:
        """The plain sweep for a single step, where kernels run all of it; else None."""
        return step_function(self.plain.program) if self.target is not None and self.target.kernels else None

    @cached_property
    def forward(self) -> Sweep:
        """The forward sweep that saves what the backward sweep reads."""
        return self._sweep(self.saved.forward, "forward", self.saved.befores)

    @cached_property
    def backward(self) -> Sweep:
        return self._sweep(self.saved.backward, "backward")

    def _sweep(self, loop: Loop, on: str, befores: dict[str, str] | None = None) -> Sweep:
        assert self.target is not None, "the engine 'reference' has no sweeps"
        if self.target.interpret is not None and (on == "backward" or befores is not None):
            raise EngineRefusal(
                f"the engine '{self.target.name}' has no gradients.",
                cell=self.loop.name,
                tries='with torch.no_grad(): ...; or engine="auto"',
            )
        return Sweep.of(loop, self.target, self.pipeline, on, befores)

    def sweep_loops(self) -> list[Loop]:
        """The Loops that a call runs on a target."""
        return [self.saved.forward, self.saved.backward] if any(self.wanted) else [self.parted]

    @cached_property
    def plain_places(self) -> tuple[int, ...]:
        """For each input of the plain sweep its index among the Loop's inputs."""
        return places_of(self.plain.inputs, self.loop.inputs)

    @cached_property
    def wiring(self) -> Wiring:
        return wiring_of(self.loop, self.wanted, self.saved, self.forward.inputs, self.backward.program, self.gradient)

    def prepare(self) -> None:
        """Build all that a call of this plan runs, so that errors come before any work."""
        if any(self.wanted):
            sweeps = [self.forward, self.backward]
            _ = self.wiring
        else:
            sweeps = [self.plain]
            _ = self.plain_places
        for timed in (timed for sweep in sweeps for timed in sweep.program.timed):
            if self.target is not None and timed.kernel is not None:
                self.target.wait(timed.kernel.runner)

    def note_clipped(
        self, counted: ClipCount, values: Sequence[Tensor], length: int, batch: int, sweeps: int = 1
    ) -> ClipCount:
        """Set `clipped`, and return `counted`, which may still be counting; padding does not count among the pairs.

        values   the inputs of the call
        sweeps   the number of backward sweeps
        """
        pairs_of_inputs = zip(self.loop.inputs, values, strict=True)
        past = next((value for port, value in pairs_of_inputs if port.role is Role.PAST), None)
        pairs = length * batch if past is None else (~past).sum()
        self.clipped = Clipped(counted, pairs * sweeps)
        return counted

    # ---- gradients of gradients

    @cached_property
    def with_states_before(self) -> Plan:
        """A plan of the same Loop with the states before each step as further outputs: for gradients of gradients."""
        draft = Draft(self.parted)
        names = {port.name for port, _ in draft.outputs}
        for port, node in list(draft.inputs):
            if port.kind == "state":
                name = _free_name(f"before.{port.name}", names)
                before = Port("sequence", name, port.shape, port.dtype, port.device, role=Role.STATE_BEFORE, of=port)
                draft.outputs.append((before, node))
        return Plan(draft.close(), self.wanted, self.method, self.target)

    @cached_property
    def differentiable_gradient(self) -> Loop:
        """The backward Loop of operators that have derivatives themselves."""
        return self.pipeline.backward(self.parted, again=True)

    @cached_property
    def _backward_plans(self) -> dict[tuple[bool, ...], Plan]:
        """Plans of the backward Loop as a Loop of its own, by the gradients that are wanted of it."""
        return {}

    def backward_plan(self, is_wanted: Callable[[Port], bool]) -> Plan:
        """A plan of the backward Loop, to be differentiated again, kept by the gradients that are wanted of it.

        Its inputs have the order of `differentiable_gradient`, some of them another name.

        is_wanted   of each input of `differentiable_gradient` whether its gradient is wanted
        """
        loop = self.differentiable_gradient
        wanted = tuple(is_wanted(port) for port in loop.inputs)
        if wanted not in self._backward_plans:
            self._backward_plans[wanted] = Plan(_with_distinct_names(loop), wanted, target=self.target)
        return self._backward_plans[wanted]


def _with_distinct_names(loop: Loop) -> Loop:
    """The Loop with inputs renamed so that its gradient has no two inputs of one name.

    The gradient of a total `w` is an invariant input `grad.w`; the Loop, itself a gradient, may have one already.
    """
    incoming = {f"grad.{port.name}" for port in loop.outputs if port.kind == "total"}
    taken = incoming | {port.name for port in loop.inputs}
    inputs = []
    for port in loop.inputs:
        if port.kind == "invariant" and port.name in incoming:
            port = replace(port, name=_free_name(port.name, taken))
        inputs.append(port)
    return loop.replace(inputs=tuple(inputs))


def _free_name(name: str, taken: set[str]) -> str:
    """The name, prefixed until it is not taken; it is added to the taken names."""
    while name in taken:
        name = f"below.{name}"
    taken.add(name)
    return name
