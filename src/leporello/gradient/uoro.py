"""`UORO`: an unbiased estimate of the gradient, computed forward in time, for hardly more than the step itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.gradient.forward_in_time import ForwardMethod
from leporello.gradient.work import Work
from leporello.loop.loop import Loop
from leporello.loop.port import PortKey, PortValues
from leporello.rewrite.forward_in_time.linearize import Linear, total_port
from leporello.rewrite.forward_in_time.rank_one import TANGENT, rank_one, source_gradient, trace_port


@dataclass(frozen=True)
class UORO(ForwardMethod):
    """Unbiased online recurrent optimization (Tallec and Ollivier 2017): a random vector pair instead of RTRL's J.

    The mean over many backward passes is the gradient of `lp.Full`; each one has noise, new every time, drawn from
    torch's generator. Every row draws its own signs, so a batch averages over its rows. Memory does not grow with the
    length: for each row it is the size of the parameters. Gradients reach parameters and the initial state, not the
    inputs. For learning while the sequence still comes see `lp.online`.

    >>> lp.Recurrent(lp.GRU(3, 4), gradient=UORO()).gradient
    UORO()
    """

    random = True

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        """The step again, its derivative along one direction, and two vector-Jacobian products of single rows."""
        time = 2 + (2 * work.forward + 2 * work.backward + 4 * work.parameters) / work.forward
        return time, float(2 * (work.state + work.parameters) * work.size * batch), "an unbiased one, with noise"

    def carrying(self, linear: Linear) -> Loop:
        return rank_one(linear)

    def beginning(self, linear: Linear, batch: int) -> dict[PortKey, Tensor]:
        """Zeros; for the initial state a random sign on both sides, the product of which is the identity on average."""
        if not linear.influencing:
            return {}
        device = linear.states[0].device
        tangent = torch.zeros(batch, linear.size, dtype=linear.dtype, device=device)
        carried: dict[PortKey, Tensor] = {("state", TANGENT): tangent}
        for port in linear.influencing:
            trace = trace_port(port, linear)
            value = torch.zeros(batch, *trace.shape, dtype=trace.dtype, device=device)
            if port.kind == "state":
                value = torch.randint_like(value, 2) * 2 - 1
                tangent[:, linear.place(port)] = value.reshape(batch, -1)
            carried[trace.key] = value
        return carried

    def ending(self, linear: Linear, states: PortValues, arriving: Tensor) -> dict[PortKey, Tensor]:
        weight = (arriving * states["state", TANGENT]).sum(1)
        return {
            total_port(port).key: source_gradient(port, weight, states[trace_port(port, linear).key])
            for port in linear.influencing
        }
