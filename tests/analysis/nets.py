"""Networks whose gradients are known, and the steps of a cell written out for autograd."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.loop.draws import replay
from leporello.loop.state import leaves_of, map_leaves
from leporello.loop.step import take
from tests.cells.examples import EXAMPLES, shaken, variants_slow

RADII = (0.5, 1.0, 1.5)
STATELESS = {"Perceptron", "TimeDelay of one"}
WITH_STATE = variants_slow(name for name in EXAMPLES if name not in STATELESS)
SMOOTH = variants_slow(name for name in EXAMPLES if name not in STATELESS and not name.startswith("LIF"))  # no spikes


class Linear(lp.Cell):
    """h' = W h + U x, and that is the output."""

    def __init__(self, W: Tensor, U: Tensor) -> None:
        super().__init__(h=len(W))
        self.W, self.U = nn.Parameter(W), nn.Parameter(U)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h @ self.W.T + x @ self.U.T
        return h, h


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(size, size, seed=seed))[0]


def linear(W: Tensor, inputs: int = 3) -> lp.Recurrent:
    return lp.Recurrent(Linear(W, normal(len(W), inputs, seed=2)))


def elman(W: Tensor, inputs: int = 3, outputs: int = 2) -> lp.Recurrent:
    """An Elman net with a given recurrent matrix, in float64."""
    cell = lp.Elman(inputs, len(W), outputs).double()
    cell.W.data.copy_(W)
    return lp.Recurrent(cell)


def example(name: str, *, train: bool = True) -> lp.Recurrent:
    """A built-in cell with random parameters; in train() some draw random numbers."""
    return lp.Recurrent(shaken(EXAMPLES[name]()).train(train))


def walked(
    net: lp.Recurrent, inputs: Tensor, draws: Sequence[Tensor] = (), state: Any = None
) -> tuple[list[Any], list[Any]]:
    """Outputs and the state before each step, one graph of autograd through all of them; every leaf its own tensor."""
    state = net.cell.initial_state(inputs.shape[1], dtype=torch.float64) if state is None else state
    outputs, states = [], []
    for time, x in enumerate(inputs):
        state = map_leaves(lambda leaf: leaf + torch.zeros_like(leaf, requires_grad=True), state)
        states.append(state)
        with replay(draws, time) if draws else nullcontext():
            output, state = take(net.cell, x, state)
        outputs.append(output)
    return outputs, [*states, state]


def sizes(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of each row, all leaves together."""
    return torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1)


def slow_flow(net: lp.Recurrent, inputs: Tensor, loss: Any, draws: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The norms of dL(t)/dh(k), one call of autograd for each pair: all leaves together, and leaf by leaf."""
    outputs, states = walked(net, inputs, draws)
    length = len(inputs)
    whole, leaves = normal(length, length) * 0, [normal(length, length) * 0 for _ in leaves_of(states[0])]
    for t in range(length):
        for k in range(t + 1):
            gradients = torch.autograd.grad(
                loss(outputs[t]).sum(), leaves_of(states[k]), retain_graph=True, materialize_grads=True
            )
            whole[t, k] = sizes(gradients).mean()
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf[t, k] = sizes([gradient]).mean()
    return whole, leaves


def slow_reach(net: lp.Recurrent, inputs: Tensor, draws: Sequence[Tensor]) -> Tensor:
    """The sizes of do(t)/dx(k), one call of autograd for each number of each output."""
    inputs = inputs.clone().requires_grad_()
    outputs, _ = walked(net, inputs, draws)
    reached = normal(len(inputs), len(inputs)) * 0
    for t, output in enumerate(outputs):
        squares = inputs.new_zeros(inputs.shape[:2])
        for number in range(output.shape[1]):
            (gradient,) = torch.autograd.grad(
                output[:, number].sum(), inputs, retain_graph=True, materialize_grads=True
            )
            squares += gradient.square().sum(-1)
        reached[t] = squares.sqrt().mean(1).detach()
    return reached
