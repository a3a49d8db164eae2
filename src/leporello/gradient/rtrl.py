"""`RTRL`: the exact gradient, computed forward in time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.engine.plan import Plan
from leporello.engine.target import Target
from leporello.engine.targets import without_kernels
from leporello.gradient.forward_in_time import ForwardMethod
from leporello.gradient.work import Work
from leporello.loop.loop import Loop
from leporello.loop.port import PortKey, PortValues
from leporello.rewrite.forward_in_time.influence import influence, influence_port, source_gradient
from leporello.rewrite.forward_in_time.linearize import Linear, numbers_per_row, total_port


@dataclass(frozen=True)
class RTRL(ForwardMethod):
    """Real-time recurrent learning: the gradient of `lp.Full`, carried along with the state.

        for t in range(length):
            gradient += (do/ds)ᵀ g[t] · J + (do/dp)ᵀ g[t]     g[t] the incoming gradient of outputs[t]
            J = (ds'/ds) J + ds'/dp                            J: the influence of a parameter p on the state s

    Memory does not grow with the length: for each row it is the size of the state times that of the parameters.
    Gradients reach parameters and the initial state, not the inputs. For learning while the sequence still comes see
    `lp.online`.

    >>> lp.Recurrent(lp.GRU(3, 4), gradient=RTRL()).gradient
    RTRL()
    """

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        """A product of the step's Jacobian with the influence, at every step."""
        carried = work.state * work.parameters
        time = 2 + (work.backward + 2 * work.state * carried) / work.forward
        return time, float(2 * carried * work.size * batch), "the exact gradient"

    def carrying(self, linear: Linear) -> Loop:
        return influence(linear)

    def target(self, plan: Plan) -> Target | None:
        """Torch's operators instead of kernels: they are faster for a matrix product per row."""
        return without_kernels() if plan.target is not None and plan.target.kernels else plan.target

    def beginning(self, linear: Linear, batch: int) -> dict[PortKey, Tensor]:
        """No influence yet; that of the initial state on itself is the identity."""
        influences: dict[PortKey, Tensor] = {}
        for port in linear.influencing:
            carried = influence_port(port, linear)
            value = torch.zeros(batch, *carried.shape, dtype=carried.dtype, device=carried.device)
            if port.kind == "state":
                value.view(batch, linear.size, -1)[:, linear.place(port)] = torch.eye(
                    numbers_per_row(port), dtype=carried.dtype, device=carried.device
                )
            influences[carried.key] = value
        return influences

    def ending(self, linear: Linear, states: PortValues, arriving: Tensor) -> dict[PortKey, Tensor]:
        return {
            total_port(port).key: source_gradient(port, arriving, states[influence_port(port, linear).key])
            for port in linear.influencing
        }
