"""What a net gives for a sequence: outputs, final state and the gradients of all that has one, by name."""

from __future__ import annotations

import torch
from torch import Tensor

import leporello as lp
from leporello.loop.state import leaves_of


def found(net: lp.Recurrent, inputs: Tensor, state: Tensor | None = None) -> dict[str, Tensor]:
    inputs = inputs.clone().requires_grad_()
    outputs, final = net(inputs, state)
    leaves = leaves_of(final)
    loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves)
    gradients = torch.autograd.grad(loss, [inputs, *net.parameters()])
    names = ["inputs", *(name for name, _ in net.named_parameters())]
    states = {f"final state {number}": leaf.detach() for number, leaf in enumerate(leaves)}
    return {"outputs": outputs.detach(), **states, **dict(zip(names, gradients, strict=True))}
