"""What a net, or its slow twin, gives for a sequence: outputs, final state and the gradients of all that has one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.loop.state import leaves_of
from leporello.nets.plain_loop import plain_loop


class Plain(nn.Module):
    """The slow twin of a net: the plain loop."""

    def __init__(self, cell: lp.Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, inputs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return plain_loop(self.cell, checked_call(self.cell, inputs, state))


def found(net: nn.Module, inputs: Tensor, state: Tensor | None = None, **arguments: Any) -> dict[str, Tensor]:
    inputs = inputs.clone().requires_grad_()
    outputs, final = net(inputs, state, **arguments)
    leaves = leaves_of(final)
    loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves)
    gradients = torch.autograd.grad(loss, [inputs, *net.parameters()])
    names = ["inputs", *(name for name, _ in net.named_parameters())]
    states = {f"final state {number}": leaf.detach() for number, leaf in enumerate(leaves)}
    return {"outputs": outputs.detach(), **states, **dict(zip(names, gradients, strict=True))}
