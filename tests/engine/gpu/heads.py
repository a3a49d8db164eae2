"""An LSTM with a recurrent matrix for each head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import leporello as lp


class HeadsLSTM(lp.Cell):
    def __init__(self, inputs: int, heads: int, size: int) -> None:
        super().__init__(h=heads * size, c=heads * size)
        self.heads, self.U = heads, nn.Linear(inputs, 4 * heads * size)
        self.R = nn.Parameter(torch.randn(heads, size, 4 * size) / size**0.5)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        across = h.view(h.shape[0], self.heads, 1, -1) @ self.R
        gates = (self.U(x).view(h.shape[0], self.heads, -1) + across.squeeze(2)).chunk(4, 2)
        i, f, g, o = (gate.flatten(1) for gate in gates)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)
