"""TorchScript in a step runs as operators of the step, for every batch."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.nets.twins import close


def scripted(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


@scripted
def gated(x: Tensor, h: Tensor):
    return torch.tanh(x) * torch.sigmoid(h) + 0.5 * h


@scripted
def with_sizes(x: Tensor, h: Tensor):
    y = x.view(x.size(0), 2, -1).sum(1)
    for _ in range(2):
        h = torch.tanh(h + gated(torch.cat([y, y], 1), h))
    if h.size(1) > 3:
        h = h * 0.9
    return h


def old_style() -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)

        class OldStyle(torch.jit.ScriptModule):
            """Sizes, a loop, a branch, a list and a tuple, in a script whose Python function is gone."""

            def __init__(self) -> None:
                super().__init__()
                self.U = nn.Parameter(torch.randn(8, 4))
                self.scale = 0.5

            @torch.jit.script_method
            def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                h, c = state
                gates = torch.mm(x, self.U.t()) + torch.cat([h, h], dim=1) * self.scale
                i, u = gates.chunk(2, 1)
                parts = [i]
                for _ in range(2):
                    parts.append(torch.sigmoid(c))
                c = torch.stack(parts).sum(0) + u.reshape(u.size(0), u.size(1) // 2, 2).flatten(1)
                if h.dim() > 2 and h.size(0) > 0:
                    c = c + 1
                h = torch.tanh(c) * (1 - 2 * 0.25)
                return h, (h, c)

        return OldStyle()


class Holder(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.U = nn.Linear(4, 4)

    def forward(self, x, h):
        h = self.function(self.U(x), h)
        return h, h


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = scripted(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()))

    def forward(self, x, h):
        h = self.inner(h) + x
        return h, h


CELLS = {
    "function": lambda: Holder(gated),
    "function with sizes": lambda: Holder(with_sizes),
    "module": Inner,
    "cell": lambda: scripted(Holder(nn.Bilinear(4, 4, 4))),
    "old style": old_style,
}


@pytest.mark.parametrize("name", CELLS)
def test_a_script_is_part_of_the_kernel_and_equals_the_plain_loop(name):
    torch.manual_seed(0)
    cell = CELLS[name]().double()
    inputs = torch.randn(5, 3, 4, dtype=torch.float64)
    h = torch.randn(3, 4, dtype=torch.float64)
    state = (h, 2 * h) if name == "old style" else h
    net = lp.Recurrent(cell, engine="cpu")
    outputs, _ = net(inputs, state)
    plain = []
    for x in inputs:
        output, state = cell(x, state)
        plain.append(output)
    close(outputs, torch.stack(plain))
    of = list(cell.parameters())
    close(torch.autograd.grad(outputs.sum(), of), torch.autograd.grad(torch.stack(plain).sum(), of))


def test_scripts_run_as_ever_after_a_trace():
    before = torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
    lp.fold(Holder(gated), torch.randn(2, 4), torch.randn(2, 4))
    assert (torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__) == before
