"""`ForwardMethod`: gradients that are computed forward in time, along with the state, so that no past step is kept.

The forward pass is the plain sweep. The backward pass is a second sweep forward over the same inputs, on a Loop that
carries the state's derivatives with respect to the sources (the inputs whose gradients are wanted: invariants and the
initial state) and combines them with the incoming gradients of the outputs. Which derivatives are carried is up to the
method; `CarryingLoop` runs such a Loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from leporello.engine import autograd, reference
from leporello.engine.plan import Plan, Sweep, pipeline_of
from leporello.engine.state_gradient import Passing
from leporello.engine.target import Target
from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, PortKey, PortValues, Role
from leporello.rewrite.forward_in_time.linearize import Linear, gradient_port, numbers_per_row, total_port

STEPS_PER_STRETCH = 64  # random draws of so many steps are in memory together


@dataclass(frozen=True, eq=False)
class CarryingLoop:
    """A Loop that carries derivatives forward in time, ready to run on any engine.

    It is run in short stretches, and within each of them step by step: what is carried is large, so only one step of it
    is in memory at a time.

    linear   the Loop whose derivatives it carries, and the sources
    loop     the Loop that carries them along with the state
    sweep    what runs `loop`; None for the engine `reference`, which runs `step`
    """

    linear: Linear
    loop: Loop
    sweep: Sweep | None

    @staticmethod
    def of(linear: Linear, loop: Loop, target: Target | None) -> CarryingLoop:
        sweep = None if target is None else Sweep.of(loop, target, pipeline_of(target), "forward again").step_by_step()
        return CarryingLoop(linear, loop, sweep)

    @cached_property
    def step(self) -> Callable[..., Any]:
        return function_of(self.loop.graph)

    @cached_property
    def states(self) -> list[Port]:
        """What is carried along with the state of `linear.loop`."""
        names = {port.name for port in self.linear.loop.inputs if port.kind == "state"}
        return [port for port in self.loop.inputs if port.kind == "state" and port.name not in names]

    @torch.no_grad()
    def run(self, values: PortValues, length: int, batch: int) -> dict[PortKey, Tensor]:
        """Final states and totals, by kind and name.

        values   the inputs by kind and name; constants and random draws that are missing are added here
        """
        steps = 1 if self.sweep is None else STEPS_PER_STRETCH
        states = {key: value for key, value in values.items() if key[0] == "state"}
        totals: dict[PortKey, Tensor] = {}
        for start in range(0, length, steps):
            stretch = slice(start, min(start + steps, length))
            for key, value in self._stretch({**values, **states}, stretch, batch).items():
                if key[0] == "state":
                    states[key] = value
                else:
                    totals[key] = totals[key] + value if key in totals else value
        return states | totals

    def _stretch(self, values: PortValues, stretch: slice, batch: int) -> dict[PortKey, Tensor]:
        length = stretch.stop - stretch.start
        inputs = [self._value(port, values, stretch, batch) for port in self.loop.inputs]
        if self.sweep is None:
            outputs = reference.run(self.loop, self.step, inputs, length, batch)
        else:
            by_key = {port.key: value for port, value in zip(self.loop.inputs, inputs, strict=True)}
            outputs, _ = autograd.run_sweep(self.sweep, length, batch, [by_key[p.key] for p in self.sweep.inputs])
        return {port.key: value for port, value in zip(self.loop.outputs, outputs, strict=True)}

    def _value(self, port: Port, values: PortValues, stretch: slice, batch: int) -> Tensor:
        if port.key in values:
            value = values[port.key]
            return value[stretch] if port.kind in ("sequence", "draw") else value
        if port.kind == "draw":
            size = (stretch.stop - stretch.start, batch, *port.shape)
            return torch.rand(size, dtype=port.dtype, device=port.device)
        return self.loop.constants[port.name]


class ForwardMethod(Method, ABC):
    """A gradient that is carried with the state from the first step to the last."""

    backwards = False
    by_reference = (
        "the whole step, one after another; then again, with the outputs' gradients and what is carried along"
    )

    # ---- what a method provides

    @abstractmethod
    def carrying(self, linear: Linear) -> Loop:
        """The Loop that is run instead of the backward one: its totals are the gradients of the sources."""

    @abstractmethod
    def beginning(self, linear: Linear, batch: int) -> dict[PortKey, Tensor]:
        """What that Loop carries before the first step, by kind and name."""

    @abstractmethod
    def ending(self, linear: Linear, states: PortValues, arriving: Tensor) -> dict[PortKey, Tensor]:
        """What the gradient of the final state adds to the gradients of the sources on which the state depends.

        By kind and name of the totals that are those gradients.

        states     what is carried, after the last step
        arriving   the gradient of the final state, [rows, size]
        """

    def target(self, plan: Plan) -> Target | None:
        """What runs that Loop; None for the engine `reference`."""
        return plan.target

    # ---- what all methods share

    def carried(self, plan: Plan) -> CarryingLoop:
        """The Loop of `carrying`, built once for each plan; raises if the gradient of a sequence is wanted."""
        if "carried" not in plan.method_cache:
            self._refuse_sequences(plan)
            linear = Linear(plan.loop, plan.wanted)
            plan.method_cache["carried"] = CarryingLoop.of(linear, self.carrying(linear), self.target(plan))
        carried: CarryingLoop = plan.method_cache["carried"]
        return carried

    def _refuse_sequences(self, plan: Plan) -> None:
        for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True):
            if wanted and port.kind == "sequence":
                name = "targets" if port.role is Role.TARGET else "inputs"
                raise ArgumentError(
                    f"the argument '{name}' requires a gradient, and {self} gives it none.",
                    came=f"{port} that requires a gradient",
                    expected="no gradient but those of parameters and of the initial state",
                    tries=f"put what makes it, an embedding or a layer below, into the cell; or {name}.detach(); "
                    "or gradient=lp.Full()",
                )

    def prepare(self, plan: Plan) -> None:
        """Build the plain sweep and, where gradients are wanted, the second one."""
        if any(plan.wanted):
            self.carried(plan)
        _ = plan.plain, plan.plain_places

    def sweeps(self, plan: Plan) -> list[tuple[str, Sweep]]:
        """The plain sweep, and the one that the backward pass runs."""
        again = self.carried(plan).sweep
        assert again is not None, "the engine 'reference' has no sweeps"
        target = self.target(plan)
        by = "" if target is plan.target or target is None else f", on {target.name}"
        return [("forward", plan.plain), (f"forward again, with the outputs' gradients{by}", again)]

    def kept(self, plan: Plan, length: int, batch: int) -> list[str]:
        """Lines that say what is carried from step to step: nothing else is kept."""
        ports = self.carried(plan).states
        size = sum(port.dtype.itemsize * numbers_per_row(port) for port in ports) * batch
        names = ", ".join(f"{port.name} {port}" for port in ports)
        return [
            "saved    nothing: inputs, outputs and their gradients are in memory anyway",
            f"carried  {names or 'nothing'}: {size:,} bytes, however many steps",
        ]

    def run(self, plan: Plan, values: Sequence[Tensor], length: int, batch: int, passing: Passing) -> Sequence[Tensor]:
        """The outputs of the plain sweep, with the second sweep as its backward pass; `passing` does not apply."""
        pairs = zip(values, plan.wanted, strict=True)
        if torch.is_grad_enabled() and any(value.requires_grad and wanted for value, wanted in pairs):
            self.carried(plan)
            outputs: Sequence[Tensor] = _Forward.apply(self, plan, length, batch, *values)
            return outputs
        return without_gradients(plan, values, length, batch)

    def gradients(
        self, plan: Plan, values: Sequence[Tensor], arriving_at: Sequence[Tensor | None], length: int, batch: int
    ) -> list[Tensor | None]:
        """The second sweep: for each input its gradient, None where it has none.

        arriving_at   the gradients of the outputs, in the order of the Loop's
        """
        carried, linear = self.carried(plan), self.carried(plan).linear
        ports = plan.loop.outputs
        inputs = {port.key: value for port, value in zip(plan.loop.inputs, values, strict=True)}
        inputs |= self.beginning(linear, batch)
        incoming = autograd.incoming_gradients(list(enumerate(ports)), arriving_at, length, batch)
        inputs |= {
            gradient_port(port).key: value
            for port, value in zip(ports, incoming, strict=True)
            if value is not None and port.kind != "state"
        }
        results = carried.run(inputs, length, batch)
        at_end = {port.name: value for port, value in zip(ports, arriving_at, strict=True) if port.kind == "state"}
        if linear.influencing and any(value is not None for value in at_end.values()):
            by_key: dict[PortKey, Any] = {port.key: value for port, value in zip(ports, incoming, strict=True)}
            with torch.autocast(linear.states[0].device.type, enabled=False):
                last = self.ending(linear, results, linear.to_vector([by_key[port.key] for port in linear.states]))
            results |= {key: results[key] + value if key in results else value for key, value in last.items()}
        pairs = zip(plan.loop.inputs, plan.wanted, strict=True)
        return [results.get(total_port(port).key) if wanted else None for port, wanted in pairs]


def without_gradients(plan: Plan, values: Sequence[Tensor], length: int, batch: int) -> list[Tensor]:
    """Outputs of the plan that share no memory with each other or with inputs; autograd does not record them."""
    if plan.target is not None:
        return autograd.plain(plan, values, length, batch)
    with torch.no_grad():
        outputs = reference.run(plan.loop, plan.step, values, length, batch)
        return autograd.without_aliases(outputs, range(len(outputs)), plan.loop.outputs, values)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, method: ForwardMethod, plan: Plan, length: int, batch: int, *values: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = without_gradients(plan, values, length, batch)
        ctx.method, ctx.plan, ctx.length, ctx.batch = method, plan, length, batch
        ctx.save_for_backward(*values)
        ctx.set_materialize_grads(False)
        fixed = [output for port, output in zip(plan.loop.outputs, outputs, strict=True) if not port.is_floating]
        ctx.mark_non_differentiable(*fixed)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"a gradient by {ctx.method} has no gradient of its own.",
                came="create_graph=True",
                tries="gradient=lp.Full(), whose gradients can be differentiated again",
            )
        gradients = ctx.method.gradients(ctx.plan, autograd.saved_tensors(ctx), incoming, ctx.length, ctx.batch)
        return (None, None, None, None, *gradients)
