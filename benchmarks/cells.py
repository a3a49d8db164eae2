"""The cells that are measured: those of the library by name, three of the kind that users write, and published ones.

Knows nothing of engines or clocks. `jax_steps.py` has the equations of `OWN` again; the names of parameters are shared.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import leporello as lp
from benchmarks.wild_cells import WILD


class FastSlow(lp.Cell):
    """Two hidden states; the gate of the fast one is a product of what both say."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, s=hidden)
        self.U, self.W = nn.Linear(inputs, 2 * hidden), nn.Linear(hidden, 2 * hidden, bias=False)
        self.S = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, s = state
        a, g = (self.U(x) + self.W(h)).chunk(2, -1)
        g = torch.sigmoid(g) * torch.sigmoid(self.S(s))
        h = (1 - g) * h + g * torch.tanh(a)
        s = 0.95 * s + 0.05 * h
        return h, (h, s)


class AdaptiveRate(lp.Cell):
    """A rate network of neuroscience: currents v, rates r, and an adaptation that tires units which fire."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(v=hidden, a=hidden)
        self.U, self.W = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.V = nn.Linear(hidden, hidden)
        self.strength = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        v, a = state
        r = nn.functional.softplus(v - self.strength * a)
        v = 0.9 * v + 0.1 * (self.W(r) + self.U(x))
        a = 0.98 * a + 0.02 * r
        return self.V(r), (v, a)


class Agent(lp.Cell):
    """The memory of an agent: an encoder, a gated state with layer norm, and a residual around it."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden)
        self.encode, self.mix = nn.Linear(inputs, hidden), nn.Linear(2 * hidden, 2 * hidden)
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.tanh(self.encode(x))
        z, n = self.mix(torch.cat([e, h], -1)).chunk(2, -1)
        z = torch.sigmoid(z)
        h = (1 - z) * h + z * torch.tanh(self.norm(n))
        return self.head(e + h), h


class MultiplicativeLSTM(lp.Cell):
    """The state times what the input says goes into the gates (Krause et al. 2016): two dependent products."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden)
        self.M, self.N = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.U, self.W = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, o, g = (self.U(x) + self.W(self.M(x) * self.N(h))).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


class ThreeProducts(lp.Cell):
    """A step that is a small network of three layers."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden)
        self.U, self.A = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.B, self.C = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.relu(self.B(torch.tanh(self.U(x) + self.A(h))))
        h = 0.5 * h + 0.5 * torch.tanh(self.C(inner))
        return h, h


class TwelveHeads(lp.Cell):
    """An LSTM of twelve heads, each with a recurrent matrix of its own."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden)
        self.U, size = nn.Linear(inputs, 4 * hidden), hidden // 12
        self.R = nn.Parameter(torch.randn(12, size, 4 * size) / size**0.5)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        across = (h.view(h.shape[0], 12, 1, -1) @ self.R).squeeze(2)
        gates = (self.U(x).view(h.shape[0], 12, -1) + across).chunk(4, 2)
        i, f, g, o = (gate.flatten(1) for gate in gates)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)


# one row a cell, by inputs and hidden units; where a cell has outputs, they are as many as the hidden units
CELLS: dict[str, Callable[[int, int], lp.Cell]] = {
    "RNN": lp.RNN,
    "GRU": lp.GRU,
    "LSTM": lp.LSTM,
    "Elman": lambda inputs, hidden: lp.Elman(inputs, hidden, hidden),
    "LayerNormLSTM": lp.LayerNormLSTM,
    "PeepholeLSTM": lp.PeepholeLSTM,
    "Leaky": lambda inputs, hidden: lp.Leaky(inputs, hidden, hidden, alpha=0.1),
    "Jordan": lambda inputs, hidden: lp.Jordan(inputs, hidden, hidden),
    "FastSlow": FastSlow,
    "AdaptiveRate": AdaptiveRate,
    "Agent": Agent,
    "MultiplicativeLSTM": MultiplicativeLSTM,
    "ThreeProducts": ThreeProducts,
    "TwelveHeads": TwelveHeads,
    **{name: make for name, (make, _, _) in WILD.items()},
}

TORCH = ("RNN", "GRU", "LSTM")  # those torch.nn has too
OWN = ("LayerNormLSTM", "PeepholeLSTM", "Leaky", "Jordan", "FastSlow", "AdaptiveRate", "Agent")  # those it has not
