"""`ForwardMethod`: gradients that go forward in time, beside the state, so that nothing of the past is kept.

Forward is the plain sweep. Backward is a second sweep forward over the same inputs, on a Loop that carries what the
state owes to the sources and meets the gradients of the outputs on its way. Knows such Loops and how they are run;
knows nothing of what is carried: that is a method's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leporello.engine import bridge, reference
from leporello.engine.passing import Passing
from leporello.engine.plan import Plan, Sweep
from leporello.engine.wiring import floats
from leporello.errors import ArgumentError
from leporello.gradient.carried import Carried
from leporello.gradient.method import Method
from leporello.loop.loop import Loop
from leporello.rewrite.linearize import Key, Linear, arriving, count, key, total


class ForwardMethod(Method, ABC):
    """A gradient that goes along with the state, from the first step to the last."""

    backwards = False
    by_reference = (
        "the whole step, one after another; then again, with the outputs' gradients and what is carried along"
    )

    # ---- a method's own

    @abstractmethod
    def carrying(self, linear: Linear) -> Loop:
        """The loop that is run instead of the backward one."""

    @abstractmethod
    def beginning(self, linear: Linear, batch: int) -> dict[Key, Tensor]:
        """What it carries before the first step."""

    @abstractmethod
    def ending(self, linear: Linear, states: Mapping[Key, Tensor], arriving: Tensor) -> dict[Key, Tensor]:
        """What a gradient that arrives at the final state, [rows, size], is to each source on which the state depends.

        states   what is carried, after the last step
        """

    def engine(self, plan: Plan) -> str:
        """Which engine runs that loop."""
        return plan.engine

    # ---- what all have in common

    def carried(self, plan: Plan) -> Carried:
        """Made once for a plan; a refusal comes from here."""
        if "carried" not in plan.made:
            self._refuse_sequences(plan)
            linear = Linear(plan.loop, plan.wanted)
            plan.made["carried"] = Carried.of(linear, self.carrying(linear), self.engine(plan))
        made: Carried = plan.made["carried"]
        return made

    def _refuse_sequences(self, plan: Plan) -> None:
        for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True):
            if wanted and port.kind == "sequence":
                name = "targets" if port.name == "call.target" else "inputs"
                raise ArgumentError(
                    f"the argument '{name}' requires a gradient, and {self} gives it none.",
                    came=f"{port} that requires a gradient",
                    expected="no gradient but those of parameters and of the initial state",
                    tries=f"put what makes it, an embedding or a layer below, into the cell; or {name}.detach(); "
                    "or gradient=lp.Full()",
                )

    def prepare(self, plan: Plan) -> None:
        """Both sweeps, where gradients are wanted."""
        if any(plan.wanted):
            self.carried(plan)
        _ = plan.plain, plan.plain_places

    def sweeps(self, plan: Plan) -> list[tuple[str, Sweep]]:
        """The plain one, and the one that backward runs."""
        again = self.carried(plan).sweep
        assert again is not None, "the engine 'reference' has no sweeps"
        by = "" if self.engine(plan) == plan.engine else f", on {self.engine(plan)}"
        return [("forward", plan.plain), (f"forward again, with the outputs' gradients{by}", again)]

    def kept(self, plan: Plan, length: int, batch: int) -> list[str]:
        """Nothing but what is carried from step to step."""
        ports = self.carried(plan).states
        size = sum(port.dtype.itemsize * count(port) for port in ports) * batch
        names = ", ".join(f"{port.name} {port}" for port in ports)
        return [
            "saved    nothing: inputs, outputs and their gradients are read where they lie",
            f"carried  {names or 'nothing'}: {size:,} bytes, however many steps",
        ]

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        """The plain sweep; its backward is the second one."""
        wanted = zip(values, plan.wanted, strict=True)
        if torch.is_grad_enabled() and any(value.requires_grad and asked for value, asked in wanted):
            self.carried(plan)
            found: Sequence[Tensor] = _Forward.apply(self, plan, length, batch, *values)
            return found
        return plainly(plan, values, length, batch)

    def gradients(
        self, plan: Plan, values: Sequence[Tensor], arriving_at: Sequence[Tensor | None], length: int, batch: int
    ) -> list[Tensor | None]:
        """The second sweep: for each input its gradient, None where it has none.

        arriving_at   the gradients of the outputs, in the order of the loop's
        """
        carried, linear = self.carried(plan), self.carried(plan).linear
        ports = plan.loop.outputs
        given = dict(zip(map(key, plan.loop.inputs), values, strict=True)) | self.beginning(linear, batch)
        heard = bridge.heard_of(list(enumerate(ports)), arriving_at, length, batch)
        given |= {
            key(arriving(port)): value
            for port, value in zip(ports, heard, strict=True)
            if value is not None and port.kind != "state"
        }
        found = carried.run(given, length, batch)
        at_end = {port.name: value for port, value in zip(ports, arriving_at, strict=True) if port.kind == "state"}
        if linear.influencing and any(value is not None for value in at_end.values()):
            whole: dict[Key, Any] = dict(zip(map(key, ports), heard, strict=True))
            with torch.autocast(linear.states[0].device.type, enabled=False):
                last = self.ending(linear, found, linear.joined([whole[key(port)] for port in linear.states]))
            found |= {one: found[one] + value if one in found else value for one, value in last.items()}
        asked = zip(plan.loop.inputs, plan.wanted, strict=True)
        return [found.get(key(total(port))) if wanted else None for port, wanted in asked]


def plainly(plan: Plan, values: Sequence[Tensor], length: int, batch: int) -> list[Tensor]:
    """Outputs in memory of their own, without gradients."""
    if plan.engine != "reference":
        return bridge.plain(plan, values, length, batch)
    with torch.no_grad():
        outputs = reference.run(plan.loop, plan.step, values, length, batch)
        return bridge.apart(outputs, range(len(outputs)), plan.loop.outputs, values)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, method: ForwardMethod, plan: Plan, length: int, batch: int, *values: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = plainly(plan, values, length, batch)
        ctx.method, ctx.plan, ctx.length, ctx.batch = method, plan, length, batch
        ctx.save_for_backward(*values)
        ctx.set_materialize_grads(False)
        fixed = [output for port, output in zip(plan.loop.outputs, outputs, strict=True) if not floats(port)]
        ctx.mark_non_differentiable(*fixed)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"a gradient by {ctx.method} has no gradient of its own.",
                came="create_graph=True",
                tries="gradient=lp.Full(), whose gradients can be differentiated again",
            )
        found = ctx.method.gradients(ctx.plan, bridge.record_of(ctx), arriving, ctx.length, ctx.batch)
        return (None, None, None, None, *found)
