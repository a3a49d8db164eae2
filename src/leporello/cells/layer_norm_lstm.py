"""The LSTM with layer normalisation: Ba, Kiros and Hinton 2016, arXiv 1607.06450, equations 20 to 22.

Known shortcoming: at h = 0 the norm's slope is 1/sqrt(1e-5), so a learned initial state starts with large gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from leporello.cells.argument_checks import check_sizes
from leporello.cells.initialisation import constant, uniform
from leporello.loop.cell import Cell


class LayerNormLSTM(Cell):
    """i, f, g, o = LN(W h; gain_h) + LN(U x; gain_x) + b                 (20)
    c' = sigmoid(f) c + sigmoid(i) tanh(g)                             (21)
    h' = sigmoid(o) tanh(LN(c'; gain_c, shift_c));  the output is h'   (22)

    LN is over all four gates at once. U (4 hidden, inputs), W (4 hidden, hidden), b, gain_h, gain_x (4 hidden), gain_c,
    shift_c (hidden), gates in the order i, f, g, o. b is the sum of the paper's b, beta1 and beta2, which are only
    added in (20). At first U, W and b are uniform within 1/sqrt(hidden), gains one, the shift zero. The state is h, c.
    """

    def __init__(self, inputs: int, hidden: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden, c=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        bound = hidden**-0.5
        self.U = uniform(4 * hidden, inputs, bound=bound)
        self.W = uniform(4 * hidden, hidden, bound=bound)
        self.b = uniform(4 * hidden, bound=bound)
        self.gain_h = constant(4 * hidden, value=1)
        self.gain_x = constant(4 * hidden, value=1)
        self.gain_c = constant(hidden, value=1)
        self.shift_c = constant(hidden, value=0)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        from_x = layer_norm(x @ self.U.T, (4 * self.hidden,), self.gain_x, self.b)  # b is added after the norm
        from_h = layer_norm(h @ self.W.T, (4 * self.hidden,), self.gain_h)
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(layer_norm(c, (self.hidden,), self.gain_c, self.shift_c))
        return h, (h, c)
