"""`UORO`: an unbiased estimate of the gradient, forward in time, for hardly more than the step itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leporello.gradient.forward_in_time import ForwardMethod
from leporello.gradient.work import Work
from leporello.loop.loop import Loop
from leporello.rewrite.linearize import Key, Linear, key, total
from leporello.rewrite.rank_one import TANGENT, rank_one, through, trace


@dataclass(frozen=True)
class UORO(ForwardMethod):
    """Unbiased online recurrent optimization (Tallec and Ollivier 2017): a random vector pair in the place of RTRL's J.

    The mean over many backward passes is the gradient of `lp.Full`; each one has noise, new every time, drawn from
    torch's generator. Every row has signs of its own, so a batch averages over its rows. Memory does not grow with the
    length: for each row it is the size of the parameters. Gradients reach parameters and the initial state, not the
    inputs. For learning while the sequence still comes see `lp.online`.

    >>> lp.Recurrent(lp.GRU(3, 4), gradient=UORO()).gradient
    UORO()
    """

    random = True

    def cost(self, work: Work, length: int, batch: int) -> tuple[float, float, str]:
        """The step again, its derivative along one direction, and two gradients of single rows."""
        time = 2 + (2 * work.forward + 2 * work.backward + 4 * work.parameters) / work.forward
        return time, float(2 * (work.state + work.parameters) * work.size * batch), "an unbiased one, with noise"

    def carrying(self, linear: Linear) -> Loop:
        return rank_one(linear)

    def beginning(self, linear: Linear, batch: int) -> dict[Key, Tensor]:
        """Zeros; the initial state's own part is a random sign at both ends, whose product is 1 in the mean."""
        if not linear.influencing:
            return {}
        device = linear.states[0].device
        tangent = torch.zeros(batch, linear.size, dtype=linear.dtype, device=device)
        found: dict[Key, Tensor] = {("state", TANGENT): tangent}
        for port in linear.influencing:
            own = trace(port, linear)
            value = torch.zeros(batch, *own.shape, dtype=own.dtype, device=device)
            if port.kind == "state":
                value = torch.randint_like(value, 2) * 2 - 1
                tangent[:, linear.place(port)] = value.reshape(batch, -1)
            found[key(own)] = value
        return found

    def ending(self, linear: Linear, states: Mapping[Key, Tensor], arriving: Tensor) -> dict[Key, Tensor]:
        weight = (arriving * states["state", TANGENT]).sum(1)
        return {
            key(total(port)): through(port, weight, states[key(trace(port, linear))]) for port in linear.influencing
        }
