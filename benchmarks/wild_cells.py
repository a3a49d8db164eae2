"""Twelve cells of the kinds that people publish, from the equations of their papers, in the sizes these use.

Knows nothing of engines or clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp


class RelationalMemory(lp.Cell):
    """Slots that attend to each other and to the input, then a gate (Santoro et al. 2018)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(m=(8, hidden))
        self.inner, self.attend = nn.Linear(inputs, hidden), nn.MultiheadAttention(hidden, 4, batch_first=True)
        self.norm, self.mlp, self.gates = nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)

    def forward(self, x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([m, self.inner(x).unsqueeze(1)], 1)
        new = self.norm(m + self.attend(m, seen, seen, need_weights=False)[0])
        new = new + torch.relu(self.mlp(new))
        i, f = torch.sigmoid(self.gates(torch.tanh(m))).chunk(2, -1)
        m = f * m + i * torch.tanh(new)
        return m.mean(1), m


class FastWeights(lp.Cell):
    """A matrix of one's own for each row, which remembers recent states (Ba et al. 2016)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, A=(hidden, hidden))
        self.U, self.W, self.norm = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, A = state
        a = self.U(x) + self.W(h)
        A = 0.95 * A + 0.1 * torch.einsum("bi,bj->bij", h, h)
        h = torch.tanh(self.norm(a + torch.einsum("bij,bj->bi", A, torch.tanh(a))))
        return h, (h, A)


class ConvLSTM(lp.Cell):
    """Images as states (Shi et al. 2015): 16 x 16 pixels, `hidden` channels."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=(hidden, 16, 16), c=(hidden, 16, 16))
        self.gates = nn.Conv2d(inputs // 256 + hidden, 4 * hidden, 3, padding=1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        i, f, o, g = self.gates(torch.cat([x.view(-1, x.shape[1] // 256, 16, 16), h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h.flatten(1), (h, c)


class SpikingRNN(lp.Cell):
    """Synapses, membranes and spikes with a surrogate gradient (Neftci et al. 2019)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(s=hidden, v=hidden, z=hidden)
        self.U, self.W = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden, bias=False)
        self.spike = lp.surrogate.fast_sigmoid()

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        s, v, z = state
        s = 0.9 * s + self.U(x) + self.W(z)
        v = 0.8 * v + 0.2 * s - z
        z = self.spike(v - 1.0)
        return z, (s, v, z)


class SelectiveStateSpace(lp.Cell):
    """A step of Mamba (Gu and Dao 2023), with 16 states a channel."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=(hidden, 16))
        self.inner, self.select, self.step = nn.Linear(inputs, 2 * hidden), nn.Linear(hidden, 36), nn.Linear(4, hidden)
        self.log_a = nn.Parameter(torch.log(torch.arange(1.0, 17.0)).repeat(hidden, 1))
        self.skip, self.head = nn.Parameter(torch.ones(hidden)), nn.Linear(hidden, inputs)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        u, z = self.inner(x).chunk(2, 1)
        u = F.silu(u)
        rate, b, c = self.select(u).split([4, 16, 16], 1)
        rate = F.softplus(self.step(rate))
        h = torch.exp(-rate.unsqueeze(2) * torch.exp(self.log_a)) * h + (rate * u).unsqueeze(2) * b.unsqueeze(1)
        y = (h * c.unsqueeze(1)).sum(-1) + self.skip * u
        return self.head(y * F.silu(z)), h


class UnitaryRNN(lp.Cell):
    """Complex states, a matrix, and modReLU (Arjovsky, Shah and Bengio 2016)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden)
        self.U = nn.Parameter(torch.randn(inputs, hidden, dtype=torch.complex64) / inputs**0.5)
        self.W = nn.Parameter(torch.linalg.qr(torch.randn(hidden, hidden, dtype=torch.complex64))[0])
        self.b = nn.Parameter(torch.zeros(hidden))

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
        return torch.zeros(batch, len(self.b), dtype=self.W.dtype, device=device)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        z = h @ self.W + x.to(self.U.dtype) @ self.U
        size = torch.sqrt(z.real**2 + z.imag**2 + 1e-6)
        h = z * (torch.relu(size + self.b) / size)
        return torch.cat([h.real, h.imag], 1), h


class GraphGRU(lp.Cell):
    """Gates that mix the features of 20 nodes along a learned graph (Li et al. 2018)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=(20, hidden))
        self.graph = nn.Parameter(torch.softmax(torch.randn(20, 20), 1))
        self.inner = nn.Linear(inputs, 20 * hidden)
        self.gates, self.new = nn.Linear(2 * hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x = self.inner(x).view(h.shape)
        z, r = torch.sigmoid(self.gates(self._mixed(torch.cat([x, h], -1)))).chunk(2, -1)
        h = z * h + (1 - z) * torch.tanh(self.new(self._mixed(torch.cat([x, r * h], -1))))
        return h.flatten(1), h

    def _mixed(self, features: Tensor) -> Tensor:
        return torch.einsum("nm,bmf->bnf", self.graph, features)


class HeadsLSTM(lp.Cell):
    """Exponential gates, and a recurrent matrix for each of four heads (Beck et al. 2024)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden, n=hidden, m=hidden)
        self.U = nn.Linear(inputs, 4 * hidden)
        self.R = nn.Parameter(torch.randn(4, hidden // 4, hidden) / hidden**0.5)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c, n, m = state
        across = h.view(h.shape[0], 4, 1, -1) @ self.R
        i, f, z, o = (self.U(x).view(h.shape[0], 4, -1) + across.squeeze(2)).chunk(4, 2)
        i, f, z, o = (gate.flatten(1) for gate in (i, f, z, o))
        largest = torch.maximum(f + m, i)
        i, f = torch.exp(i - largest), torch.exp(f + m - largest)
        c, n = f * c + i * torch.tanh(z), f * n + i
        h = torch.sigmoid(o) * c / torch.clamp(n, min=1.0)
        return h, (h, c, n, largest)


class TuringMemory(lp.Cell):
    """A controller that reads and writes 32 places by content and by shifts (Graves, Wayne and Danihelka 2014)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden, M=(32, 16), read=32, write=32, r=16)
        self.controller, self.head = nn.LSTMCell(inputs + 16, hidden), nn.Linear(hidden, 2 * 22 + 2 * 16)
        self.M = nn.Parameter(0.1 * torch.randn(32, 16))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c, M, read, write, r = state
        h, c = self.controller(torch.cat([x, r], 1), (h, c))
        one, other, erase, add = self.head(h).split([22, 22, 16, 16], 1)
        M_now = M + self.M
        write = self._address(one, M_now, write)
        M = M * (1 - write.unsqueeze(2) * torch.sigmoid(erase).unsqueeze(1))
        M = M + write.unsqueeze(2) * torch.tanh(add).unsqueeze(1)
        read = self._address(other, M_now, read)
        r = torch.einsum("bn,bnm->bm", read, M)
        return torch.cat([h, r], 1), (h, c, M, read, write, r)

    def _address(self, says: Tensor, M: Tensor, before: Tensor) -> Tensor:
        key, strength, gate, shift, sharp = says.split([16, 1, 1, 3, 1], 1)
        near = F.cosine_similarity(M, torch.tanh(key).unsqueeze(1), dim=-1)
        gate, shift = torch.sigmoid(gate), torch.softmax(shift, 1)
        w = gate * torch.softmax(F.softplus(strength) * near, 1) + (1 - gate) * before
        w = shift[:, :1] * w.roll(1, 1) + shift[:, 1:2] * w + shift[:, 2:] * w.roll(-1, 1)
        w = (w + 1e-6) ** (1 + F.softplus(sharp))
        return w / w.sum(1, keepdim=True)


class HyperLSTM(lp.Cell):
    """A small LSTM scales the weights of a larger one (Ha, Dai and Le 2016)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden, s=32, d=32)
        self.small, self.says = nn.LSTMCell(inputs + hidden, 32), nn.Linear(32, 96)
        self.scales = nn.Parameter(0.1 * torch.randn(12, 8, hidden))
        self.U, self.W = nn.Linear(inputs, 4 * hidden, bias=False), nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c, s, d = state
        s, d = self.small(torch.cat([x, h], 1), (s, d))
        of_h, of_x, b = torch.einsum("bge,gen->bgn", self.says(s).view(-1, 12, 8), self.scales).chunk(3, 1)
        gates = (1 + of_h) * self.W(h).view(of_h.shape) + (1 + of_x) * self.U(x).view(of_x.shape) + b
        i, f, o, g = gates.unbind(1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c, s, d)


class LiquidTimeConstant(lp.Cell):
    """Neurons whose synapses set their time constants, in six steps of a solver (Hasani et al. 2020)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(v=hidden)
        for name, count in (("sense", inputs), ("synapse", hidden)):
            setattr(self, name, nn.Parameter(torch.rand(4, count, hidden) + 0.1))
        self.leak, self.rest, self.capacity = (nn.Parameter(torch.rand(hidden) + 0.5) for _ in range(3))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        above, below = self._currents(self.sense, x)
        for _ in range(6):
            a, b = self._currents(self.synapse, v)
            c = 6 * self.capacity
            v = (c * v + self.leak * self.rest + a + above) / (c + self.leak + b + below)
        return v, v

    @staticmethod
    def _currents(parameters: Any, potential: Tensor) -> tuple[Tensor, Tensor]:
        weight, middle, slope, reversal = parameters
        open_channels = weight * torch.sigmoid(slope * (potential.unsqueeze(2) - middle))
        return (open_channels * (reversal - 0.5)).sum(1), open_channels.sum(1)


class PlasticLSTM(lp.Cell):
    """Connections that change by Hebb's rule while they are used (Miconi, Clune and Stanley 2018)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(h=hidden, c=hidden, H=(hidden, hidden))
        self.U, self.W = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden, bias=False)
        self.alpha, self.eta = nn.Parameter(0.01 * torch.rand(hidden, hidden)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c, H = state
        i, f, o, g = (self.U(x) + self.W(h)).chunk(4, 1)
        g = torch.tanh(g + torch.bmm(h.unsqueeze(1), self.alpha * H).squeeze(1))
        H = torch.clamp(H + self.eta * h.unsqueeze(2) * g.unsqueeze(1), -1, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c, H)


# with the features of the inputs and the hidden units of a published size
WILD: dict[str, tuple[Callable[[int, int], lp.Cell], int, int]] = {
    "RelationalMemory": (RelationalMemory, 32, 32),
    "FastWeights": (FastWeights, 32, 50),
    "ConvLSTM": (ConvLSTM, 256, 16),
    "SpikingRNN": (SpikingRNN, 64, 128),
    "SelectiveStateSpace": (SelectiveStateSpace, 32, 64),
    "UnitaryRNN": (UnitaryRNN, 16, 128),
    "GraphGRU": (GraphGRU, 20, 16),
    "HeadsLSTM": (HeadsLSTM, 64, 128),
    "TuringMemory": (TuringMemory, 9, 100),
    "HyperLSTM": (HyperLSTM, 32, 128),
    "LiquidTimeConstant": (LiquidTimeConstant, 16, 32),
    "PlasticLSTM": (PlasticLSTM, 32, 64),
}
