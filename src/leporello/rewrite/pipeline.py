"""The pipeline: every rewrite between a traced Loop and the Loops that an engine runs, in the order in which they run.

`PIPELINE` is the whole list. Calls, gradient methods and targets do not apply rewrites themselves: their options are in
a `Context`, from which each pass decides whether it applies. `Pipeline` runs one phase of the list after another and
records the size of the Loop after each pass, which `net.explain(..., passes=True)` prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx

from leporello.loop.loop import Loop
from leporello.loop.own_gradients import has_own_gradients, without_own_gradients
from leporello.loop.part import part
from leporello.loop.phases import timed_phase
from leporello.loop.split import split
from leporello.loop.stages import Split
from leporello.rewrite.associate import associate
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.force import force
from leporello.rewrite.mask import mask
from leporello.rewrite.merge_equal_values import merge_equal_values
from leporello.rewrite.prune import prune
from leporello.rewrite.reset import reset
from leporello.rewrite.rows_for_draws import has_shared_draws, rows_for_draws
from leporello.rewrite.sample import sample
from leporello.rewrite.save import EXPENSIVE, Saved, save
from leporello.rewrite.scale_products import scale_products
from leporello.rewrite.tabulate import tabulate

Phase = Literal["call", "plan", "forward", "backward", "second", "pair", "sweep"]


@dataclass(frozen=True)
class Context:
    """What decides which passes run, and with which arguments.

    By the call:
    sampled    arguments of `sample`, for a network that generates its own inputs; None for others
    table      arguments of `tabulate`; None where there are no tables
    forced     the state leaf that gets the true values; None without forcing
    always     whether it gets them at every step, or only where `call.coin` is true
    restarts   the states whose initial value is passed in (the others restart from zeros); None without resets
    lengths    whether the rows have unequal lengths
    wanted     for each input of the Loop whether its gradient is wanted
    leaving    states whose gradient before the first step is wanted

    By the gradient method and by the target:
    method, target   their passes, for the slots of the pipeline
    split            whether stages are run; the engine `reference` runs whole steps
    expensive        operators whose result the target saves rather than recomputes
    operands         whether it saves all that gradients of matrices and norms read at once
    drawn_in         whether the target runs an operator inside though it could run on all steps at once; None: never
    """

    sampled: Mapping[str, Any] | None = None
    table: Mapping[str, Any] | None = None
    forced: str | None = None
    always: bool = True
    restarts: tuple[str, ...] | None = None
    lengths: bool = False
    wanted: tuple[bool, ...] = ()
    leaving: tuple[str, ...] = ()
    method: tuple[Pass, ...] = ()
    target: tuple[Pass, ...] = ()
    split: bool = False
    expensive: frozenset[Any] = EXPENSIVE
    operands: bool = False
    drawn_in: Callable[[fx.Node], bool] | None = None


@dataclass(frozen=True)
class Pass:
    """A rewrite at its place in the pipeline.

    phase   "call": the traced Loop, by the arguments of a call; "plan": by the target that runs it; "forward": before
            its gradient is derived; "backward", "second": the Loop of its gradients, and the one that is differentiated
            again; "pair": forward and backward Loop together; "sweep": each Loop that is run, alone
    why     the reason for its place in the order
    apply   from the context and the result of the pass before to its own result; None where it does not apply
    """

    phase: Phase
    name: str
    why: str
    apply: Callable[[Context, Any], Any]


@dataclass(frozen=True)
class Slot:
    """A place in the pipeline for the passes of a gradient method or of a target, in the order of their own list."""

    phase: Phase
    by: Literal["method", "target"]
    why: str


def _when(condition: Any, rewrite: Callable[[], Any]) -> Any:
    """What `rewrite` returns, or None where the pass does not apply."""
    return rewrite() if condition else None


PIPELINE: tuple[Pass | Slot, ...] = (
    # ---- call: by the arguments of the call
    Pass("call", "sample", "the input becomes a state before anything else is done to inputs or states",
         lambda c, loop: _when(c.sampled is not None, lambda: sample(loop, **(c.sampled or {})))),
    Pass("call", "tabulate", "needs the sampled token; replaces products of one-hot rows by rows of a table",
         lambda c, loop: _when(c.table is not None, lambda: tabulate(loop, **(c.table or {})))),
    Pass("call", "force", "the next state is forced before a reset replaces what the next step reads",
         lambda c, loop: _when(c.forced is not None, lambda: force(loop, str(c.forced), always=c.always))),
    Pass("call", "reset", "acts on what a step reads; before mask, so that resets in the padding are held too",
         lambda c, loop: _when(c.restarts is not None, lambda: reset(loop, given=c.restarts or ()))),
    Pass("call", "mask", "last of the call: past a row's end it replaces all inputs of a step and holds its states",
         lambda c, loop: _when(c.lengths, lambda: mask(loop))),
    # ---- plan: before anything is derived from the Loop
    Pass("plan", "rows_for_draws", "shared random numbers get a row axis, which all that follows expects of a draw",
         lambda c, loop: _when(c.split and has_shared_draws(loop), lambda: rows_for_draws(loop))),
    Slot("plan", "target", "a target's own form of the whole Loop, such as real numbers for complex ones"),
    # ---- forward: once, before the gradient is derived, so that it serves both sweeps
    Pass("forward", "part", "[x, h] W becomes x W1 + h W2, so that the product with x leaves the cycle in both sweeps",
         lambda c, loop: part(loop)),
    Pass("forward", "scale_products", "x (w s) becomes (x w) s for a stored w; behind part, which makes more products",
         lambda c, loop: scale_products(loop)),
    # ---- backward: the Loop of the gradients
    Pass("backward", "differentiate", "needs the call's Loop complete; recomputes all forward values for now",
         lambda c, loop: differentiate(loop, c.wanted)),
    Slot("backward", "method", "weights and clips act on the delays of the backward Loop, whatever is saved later"),
    Pass("second", "differentiate again", "as in the backward phase, by operators that have derivatives themselves",
         lambda c, loop: differentiate(loop, c.wanted, again=True)),
    Slot("second", "method", "as in the backward phase"),
    Pass("second", "prune", "gradients that are not wanted must not be differentiated again",
         lambda c, loop: prune(loop, c.leaving)),
    # ---- pair: what passes from the forward to the backward sweep
    Pass("pair", "save", "needs both Loops: decides what is saved and what is recomputed",
         lambda c, pair: save(without_own_gradients(pair[0]), pair[1], c.leaving, c.expensive, c.operands)),
    Slot("pair", "target", "works on what is saved: joins it, or shortens the sums that read it"),
    # ---- sweep: each Loop that is run
    Pass("sweep", "without own gradients", "they are derived by now; first, so that the others see plain operators",
         lambda c, loop: _when(has_own_gradients(loop), lambda: without_own_gradients(loop))),
    Pass("sweep", "merge_equal_values", "equal values become one before associate counts their readers",
         lambda c, loop: merge_equal_values(loop)),
    Pass("sweep", "associate", "re-associates sums and products: less is on the cycle; needs equal values merged",
         lambda c, loop: associate(loop)),
    Slot("sweep", "target", "last before the split"),
)  # fmt: skip


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: the number of operators, inputs, outputs and states of the Loop after it.

    on                the Loop it worked on, in words
    inputs, outputs   without the states
    """

    on: str
    name: str
    why: str
    operators: int
    inputs: int
    outputs: int
    states: int


@dataclass(eq=False)
class Pipeline:
    """The pipeline for one context; `records` grows with each pass that is run."""

    context: Context
    records: list[PassRecord] = field(default_factory=list)

    def call(self, loop: Loop) -> Loop:
        """A traced Loop, rewritten for the arguments of a call."""
        return self._run("call", "call", loop)

    def plan(self, loop: Loop) -> Loop:
        """The Loop of a call in the form that the target runs."""
        return self._run("plan", "call", loop)

    def forward(self, loop: Loop) -> Loop:
        """The Loop that all sweeps are derived from."""
        return self._run("forward", "forward", loop)

    def backward(self, loop: Loop, *, again: bool = False) -> Loop:
        """The Loop of a Loop's gradients; `again` where it is to be differentiated in turn."""
        return self._run("second" if again else "backward", "backward", loop)

    def pair(self, forward: Loop, backward: Loop) -> Saved:
        """Forward and backward Loop, with what passes between them."""
        return self._run("pair", "forward and backward", (forward, backward))

    def split(self, loop: Loop, on: str) -> Split:
        """The stages of a Loop that is run, after the passes of the phase "sweep".

        on   the Loop, in words, for the record
        """
        loop = self._run("sweep", on, loop)
        with timed_phase("rewrites"):
            return split(loop, self.context.drawn_in)

    def _run(self, phase: Phase, on: str, value: Any) -> Any:
        for rewrite in self._passes(phase):
            with timed_phase("gradients" if rewrite.name.startswith("differentiate") else "rewrites"):
                rewritten = rewrite.apply(self.context, value)
            if rewritten is not None:
                value = rewritten
                self.records += [_record(name or on, rewrite, loop) for name, loop in _loops(value)]
        return value

    def _passes(self, phase: Phase) -> Iterable[Pass]:
        """The passes of a phase, with those of method and target in their slots."""
        for entry in PIPELINE:
            if entry.phase != phase:
                continue
            if isinstance(entry, Pass):
                yield entry
            else:
                passes = self.context.method if entry.by == "method" else self.context.target
                phases = (phase, "backward" if phase == "second" else phase)
                yield from (rewrite for rewrite in passes if rewrite.phase in phases)


def _loops(value: Any) -> list[tuple[str, Loop]]:
    """The Loops in the result of a pass, with their names; a single one has none, ""."""
    if isinstance(value, Saved):
        return [("forward", value.forward), ("backward", value.backward)]
    return [("", value)]


def _record(on: str, rewrite: Pass, loop: Loop) -> PassRecord:
    states = sum(port.kind == "state" for port in loop.inputs)
    inputs, outputs = len(loop.inputs) - states, len(loop.outputs) - states
    return PassRecord(on, rewrite.name, rewrite.why, len(loop.nodes), inputs, outputs, states)
