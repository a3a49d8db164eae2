"""The LSTM whose units keep their old value at random: Krueger and others 2016, arXiv 1606.01305, section 3."""

from __future__ import annotations

import torch
from torch import Tensor

from leporello.cells.argument_checks import check_probabilities, check_sizes
from leporello.cells.initialisation import uniform
from leporello.loop.cell import Cell


class ZoneoutLSTM(Cell):
    """new c = f c + i g;  new h = o tanh(new c), i, f, g, o as in `LSTM`;
    c' = d_c c + (1 - d_c) new c;  h' = d_h h + (1 - d_h) new h;  the output is h'.

    In train(), d_c and d_h are 1 with the probabilities zoneout_c and zoneout_h and 0 otherwise, drawn per step, row
    and unit; in eval() they are those probabilities. The new h reads the new c, whether c keeps its value or not.
    U (4 hidden, inputs), W (4 hidden, hidden), b (4 hidden), gates in the order i, f, g, o; at first all are uniform
    within 1/sqrt(hidden). The state is h, c. The default probabilities are the paper's for Penn Treebank characters.
    """

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

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
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
