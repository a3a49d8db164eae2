"""LSTMs with a change: peephole connections, layer normalisation, zoneout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from leporello.cells.parameters import check_probabilities, check_sizes, constant, uniform
from leporello.loop.cell import Cell


class PeepholeLSTM(Cell):
    """i = sigmoid(Ui x + Wi h + p_i c + bi)                      (7)
    f = sigmoid(Uf x + Wf h + p_f c + bf)                      (8)
    c' = f c + i tanh(Ug x + Wg h + bg)                        (9)
    o = sigmoid(Uo x + Wo h + p_o c' + bo)                     (10)
    h' = o tanh c';  the output is h'                          (11)

    U (4 hidden, inputs), W (4 hidden, hidden), b (4 hidden), gates in the order i, f, g, o; the peepholes p_i, p_f, p_o
    (hidden) are diagonal: a unit's gates read its own cell state only. At first all are uniform within 1/sqrt(hidden).
    The state is h, c. Gers and Schmidhuber 2000; the equation numbers are those of Graves 2013, arXiv 1308.0850.
    """

    output_leaf = "h"

    def __init__(self, inputs: int, hidden: int, *, learned: bool = False) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        super().__init__(learned=learned, h=hidden, c=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        bound = hidden**-0.5
        self.U = uniform(4 * hidden, inputs, bound=bound)
        self.W = uniform(4 * hidden, hidden, bound=bound)
        self.b = uniform(4 * hidden, bound=bound)
        self.p_i = uniform(hidden, bound=bound)
        self.p_f = uniform(hidden, bound=bound)
        self.p_o = uniform(hidden, bound=bound)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c = state
        i, f, g, o = (self.b + x @ self.U.T + h @ self.W.T).chunk(4, -1)
        i = torch.sigmoid(i + self.p_i * c)
        f = torch.sigmoid(f + self.p_f * c)
        g = torch.tanh(g)
        c = f * c + i * g
        o = torch.sigmoid(o + self.p_o * c)
        h = o * torch.tanh(c)
        return h, (h, c)


class LayerNormLSTM(Cell):
    """i, f, g, o = LN(W h; gain_h) + LN(U x; gain_x) + b                 (20)
    c' = sigmoid(f) c + sigmoid(i) tanh(g)                             (21)
    h' = sigmoid(o) tanh(LN(c'; gain_c, shift_c));  the output is h'   (22)

    LN(x; gain, shift) is layer normalisation, in (20) over all four gates at once. U (4 hidden, inputs), W (4 hidden,
    hidden), b, gain_h, gain_x (4 hidden), gain_c, shift_c (hidden), gates in the order i, f, g, o. b is the sum of the
    paper's b, beta1 and beta2, which are only added in (20). At first U, W and b are uniform within 1/sqrt(hidden),
    gains one, the shift zero. The state is h, c.
    The equation numbers are those of Ba, Kiros and Hinton 2016, arXiv 1607.06450.

    Shortcoming: at h = 0 the norm's slope is 1/sqrt(1e-5), so a learned initial state starts with large gradients.
    """

    output_leaf = "h"

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

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c = state
        from_x = layer_norm(x @ self.U.T, (4 * self.hidden,), self.gain_x, self.b)  # b is added after the norm
        from_h = layer_norm(h @ self.W.T, (4 * self.hidden,), self.gain_h)
        i, f, g, o = (from_x + from_h).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(layer_norm(c, (self.hidden,), self.gain_c, self.shift_c))
        return h, (h, c)


class ZoneoutLSTM(Cell):
    """new c = f c + i g;  new h = o tanh(new c), i, f, g, o as in `LSTM`;
    c' = d_c c + (1 - d_c) new c;  h' = d_h h + (1 - d_h) new h;  the output is h'.

    In train(), d_c and d_h are 1 with the probabilities zoneout_c and zoneout_h and 0 otherwise, drawn per step, row
    and unit; in eval() they are those probabilities. The new h reads the new c, whether c keeps its value or not.
    U (4 hidden, inputs), W (4 hidden, hidden), b (4 hidden), gates in the order i, f, g, o; at first all are uniform
    within 1/sqrt(hidden). The state is h, c. Krueger and others 2016, arXiv 1606.01305, section 3; the default
    probabilities are theirs for Penn Treebank characters.
    """

    output_leaf = "h"

    def __init__(
        self,
        inputs: int,
        hidden: int,
        *,
        zoneout_h: float = 0.05,
        zoneout_c: float = 0.5,
        learned: bool = False,
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden)
        check_probabilities(zoneout_h=zoneout_h, zoneout_c=zoneout_c)
        super().__init__(learned=learned, h=hidden, c=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, hidden
        self.zoneout_h, self.zoneout_c = zoneout_h, zoneout_c
        bound = hidden**-0.5
        self.U = uniform(4 * hidden, inputs, bound=bound)
        self.W = uniform(4 * hidden, hidden, bound=bound)
        self.b = uniform(4 * hidden, bound=bound)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, c = state
        i, f, g, o = (self.b + x @ self.U.T + h @ self.W.T).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        new_c = f * c + i * g
        new_h = o * torch.tanh(new_c)
        c = self._zoneout(c, new_c, self.zoneout_c)
        h = self._zoneout(h, new_h, self.zoneout_h)
        return h, (h, c)

    def _zoneout(self, old: Tensor, new: Tensor, probability: float) -> Tensor:
        if self.training:
            return torch.where(torch.rand_like(new) < probability, old, new)
        return probability * old + (1 - probability) * new
