"""`Plan`: a Loop made ready for an engine, with its gradient prepared when it is first asked for.

Knows which program runs a sweep and what passes between the sweeps; knows nothing of cells or arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from leporello.engine import stepwise
from leporello.engine.cpu.insides import with_kernels
from leporello.engine.crossing import Noted
from leporello.engine.homes import device_of, shared
from leporello.engine.one_step import step_of
from leporello.engine.program import Program, program
from leporello.engine.sweep import Windows, sweep_of
from leporello.engine.wiring import Wiring, forward_places, wiring
from leporello.kernel.expressions import is_drawn_in, is_pointwise
from leporello.loop.draft import Draft
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.split import part
from leporello.loop.split import split as split_loop
from leporello.rewrite.associate import associate
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.join import join
from leporello.rewrite.leave_out import leave_out
from leporello.rewrite.merge import merge
from leporello.rewrite.prune import prune
from leporello.rewrite.save import DEAR_IN_KERNELS, Saved, save

Values = dict[tuple[str, str], Tensor]  # by kind and name of a port


@dataclass(frozen=True, eq=False)
class Sweep:
    """A loop with its program and the function that runs it: what an engine is.

    inputs    the loop's inputs, by kind and name, in the order of the function's arguments
    shared    outputs that may lie in memory of an input or of another output
    device    the kind of device it runs on
    windows   from length and batch to the stretches of steps it goes through
    alone     whether every stage runs one step at a time
    """

    loop: Loop
    program: Program
    function: Callable[..., tuple[list[Tensor], list[Tensor]]]
    inputs: tuple[tuple[str, str], ...]
    shared: tuple[int, ...]
    device: str
    windows: Windows
    alone: bool = False

    @staticmethod
    def of(loop: Loop, engine: str, befores: dict[str, str] | None = None) -> Sweep:
        """Make a loop ready; `befores` names the states whose sequence before each step is wanted (see `Saved`)."""
        kernels = engine == "cpu"
        split = split_loop(associate(merge(loop)), is_drawn_in if kernels else None)
        made = with_kernels(program(split)) if kernels else program(split)
        ports = zip(split.loop.outputs, split.loop.results, strict=True)
        sequences = {port.name: node for port, node in ports if port.kind == "sequence"}
        asked = {state: sequences[name] for state, name in (befores or {}).items()}
        device = device_of(made).type
        alone = kernels and all(timed.inside for timed in made.timed)
        kind = "alone" if alone else "kernels" if kernels else device
        stretches = functools.partial(stepwise.windows, kind, made.reverse)
        names = tuple((port.kind, port.name) for port in split.loop.inputs)
        return Sweep(loop, made, sweep_of(made, asked, stretches), names, shared(made), device, stretches)

    def without_befores(self) -> Sweep:
        """The same for who asks for outputs alone: no sequence then lies in a larger piece of memory."""
        return replace(self, function=sweep_of(self.program, {}, self.windows))

    def step_by_step(self) -> Sweep:
        """The same in windows of one step: for a loop with values too large to stand there for many."""
        order = slice(None, None, -1 if self.loop.reverse else 1)

        def windows(length: int, batch: int) -> list[tuple[int, int]]:
            return [(time, time + 1) for time in range(length)][order]

        return replace(self, function=sweep_of(self.program, {}, windows), windows=windows, alone=True)


@dataclass(frozen=True)
class Acted:
    """Pairs of step and row at which a gradient was clipped, of all."""

    noted: Noted
    pairs: int | Tensor

    @property
    def count(self) -> Tensor | float:
        return self.noted.count

    @property
    def share(self) -> float:
        return float(self.count) / float(self.pairs)


@dataclass(eq=False)
class Plan:
    """A loop, ready to run and to be differentiated.

    loop     the loop, with the rewrites of the call applied
    wanted   for each input whether its gradient is asked for
    rewrite  from the backward loop to the one that is run: the gradient method's part
    engine   "cpu": insides are kernels; else torch's operators run them
    made     what a gradient method has made of it, by names of its own
    acted    how often the last gradient that went back was clipped
    """

    loop: Loop
    wanted: tuple[bool, ...]
    rewrite: Callable[[Loop], Loop] = field(default=lambda loop: loop)
    engine: str = "stepwise"
    made: dict[Any, Any] = field(default_factory=dict)
    acted: Acted | None = None

    @cached_property
    def step(self) -> Callable[..., Any]:
        """One step of the whole graph, for the engine `reference`."""
        return function_of(self.loop.graph)

    @cached_property
    def parted(self) -> Loop:
        return part(self.loop)

    @cached_property
    def plain(self) -> Sweep:
        """The forward sweep when no gradient is asked for: nothing is saved."""
        return Sweep.of(self.parted, self.engine)

    @cached_property
    def one_step(self) -> Callable[..., list[Tensor]] | None:
        """The same for a single step, where kernels run all of it."""
        return step_of(self.plain.program) if self.engine == "cpu" else None

    @cached_property
    def gradient(self) -> Loop:
        """The backward loop that computes again all it needs of the forward values."""
        return self.rewrite(differentiate(self.parted, self.wanted))

    @cached_property
    def saved(self) -> Saved:
        if self.engine == "cpu":
            saved = join(save(self.parted, self.gradient, self.leaving, DEAR_IN_KERNELS), is_pointwise)
            return replace(saved, backward=leave_out(saved.backward, self.leaving))
        return save(self.parted, self.gradient, self.leaving)

    @property
    def leaving(self) -> tuple[str, ...]:
        """States whose initial value gets a gradient."""
        return tuple(p.name for p, w in zip(self.loop.inputs, self.wanted, strict=True) if p.kind == "state" and w)

    @cached_property
    def forward(self) -> Sweep:
        """The forward sweep that keeps what the backward sweep reads."""
        return Sweep.of(self.saved.forward, self.engine, self.saved.befores)

    @cached_property
    def backward(self) -> Sweep:
        return Sweep.of(self.saved.backward, self.engine)

    def note(self, noted: Noted, values: Sequence[Tensor], length: int, batch: int, sweeps: int = 1) -> Noted:
        """Remember how often the gradient of a call is clipped; padding does not count among the pairs."""
        named = zip(self.loop.inputs, values, strict=True)
        past = next((value for port, value in named if port.name == "call.past"), None)
        pairs = length * batch if past is None else (~past).sum()
        self.acted = Acted(noted, pairs * sweeps)
        return noted

    @cached_property
    def plain_places(self) -> tuple[int, ...]:
        """Where the plain sweep finds its inputs among the loop's."""
        return forward_places(self.plain.inputs, self.loop.inputs)

    @cached_property
    def wiring(self) -> Wiring:
        return wiring(self)

    def prepare(self) -> None:
        """Make ready all that a call of this plan runs, so that a refusal comes before any work."""
        if any(self.wanted):
            _ = self.forward, self.backward, self.wiring
        else:
            _ = self.plain, self.plain_places

    @cached_property
    def recording(self) -> Plan:
        """The same loop with the states each step finds as outputs behind its own: for gradients of gradients."""
        draft = Draft(self.parted)
        taken = {port.name for port, _ in draft.outputs}
        for port, node in list(draft.inputs):
            if port.kind == "state":
                name = _free(f"before.{port.name}", taken)
                draft.outputs.append((Port("sequence", name, port.shape, port.dtype, port.device), node))
        return Plan(draft.close(), self.wanted, self.rewrite, self.engine)

    @cached_property
    def differentiable_gradient(self) -> Loop:
        """The backward loop of operators that have derivatives themselves."""
        return prune(self.rewrite(differentiate(self.parted, self.wanted, again=True)), self.leaving)

    @cached_property
    def again(self) -> dict[tuple[bool, ...], Plan]:
        """Plans of the backward loop as a loop of its own, by the gradients asked of it."""
        return {}

    def pure_backward(self, needs: Callable[[Port], bool]) -> Plan:
        """The backward loop, to be differentiated again; its inputs in the order of `differentiable_gradient`."""
        loop = self.differentiable_gradient
        wanted = tuple(needs(port) for port in loop.inputs)
        if wanted not in self.again:
            self.again[wanted] = Plan(_told_apart(loop), wanted, engine=self.engine)
        return self.again[wanted]


def _told_apart(loop: Loop) -> Loop:
    """A loop whose gradient has no two inputs of one name.

    The gradient of a total `w` arrives as the invariant `grad.w`; from an order below there may be one already.
    """
    arriving = {f"grad.{port.name}" for port in loop.outputs if port.kind == "total"}
    taken = arriving | {port.name for port in loop.inputs}
    inputs = []
    for port in loop.inputs:
        if port.kind == "invariant" and port.name in arriving:
            port = replace(port, name=_free(port.name, taken))
        inputs.append(port)
    return loop.replace(inputs=tuple(inputs))


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that an order of derivatives below has not taken; it is taken now."""
    while name in taken:
        name = f"below.{name}"
    taken.add(name)
    return name
