"""Products of every common form run as kernels, with the gradients of a plain loop."""

import pytest
import torch
from torch import nn

import leporello as lp
from tests.nets.twins import quickly

# by name: the shape of the parameter, the product of parameter and state, the shape of the state
PRODUCTS = {
    "one row a head": ((3, 4, 4), lambda P, h: (h.view(-1, 3, 1, 4) @ P).reshape(-1, 12), (12,)),
    "rows of heads": ((3, 4, 4), lambda P, h: h @ P, (3, 2, 4)),
    "heads on the left": ((3, 4, 4), lambda P, h: P @ h, (3, 4, 2)),
    "left": ((4, 4), lambda P, h: P @ h, (4, 2)),
    "left of stacks": ((4, 4), lambda P, h: P @ h, (3, 4, 2)),
    "right of stacks": ((4, 4), lambda P, h: h @ P, (3, 2, 4)),
    "nm,bmf->bnf": ((5, 5), lambda P, h: torch.einsum("nm,bmf->bnf", P, h), (5, 4)),
    "bnf,nm->bmf": ((5, 5), lambda P, h: torch.einsum("bnf,nm->bmf", h, P), (5, 4)),
    "bhd,hde->bhe": ((3, 4, 4), lambda P, h: torch.einsum("bhd,hde->bhe", h, P), (3, 4)),
    "hnm,bmf->bhnf": ((2, 5, 5), lambda P, h: torch.einsum("hnm,bmf->bhnf", P, h).mean(1), (5, 4)),
    "bi,ij,bj->b": ((4, 4), lambda P, h: torch.einsum("bi,ij,bj->b", h, P, h)[:, None] * h, (4,)),
    "two values of a row": ((4, 4), lambda P, h: torch.bmm(h, h.mT) @ P, (4, 4)),
    "bij,bj->bi": ((4,), lambda P, h: torch.einsum("bij,bj->bi", h, h[:, 0])[:, None] * P + h, (4, 4)),
    "a vector": ((4, 4), lambda P, h: (h @ P[0])[..., None] * P[1], (3, 4)),
    "bilinear": ((4, 4, 4), lambda P, h: nn.functional.bilinear(h, h, P), (4,)),
    "tensordot": ((3, 4, 3, 4), lambda P, h: torch.tensordot(h, P, dims=([1, 2], [0, 1])), (3, 4)),
}


SIMPLER = ("one row a head", "bnf,nm->bmf", "bi,ij,bj->b", "heads on the left", "tensordot", "nm,bmf->bnf")


@pytest.mark.parametrize("name", quickly(PRODUCTS, *(name for name in PRODUCTS if name not in SIMPLER)))
def test_a_product_runs_as_a_kernel(name):
    shape, product, state = PRODUCTS[name]

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.P = nn.Parameter(0.3 * torch.randn(shape, dtype=torch.float64))

        def forward(self, x, h):
            h = torch.tanh(product(self.P, h) + x.sum(-1).reshape(-1, *[1] * (h.dim() - 1)))
            return h, h

    torch.manual_seed(0)
    net = lp.Recurrent(Cell(), engine="cpu")
    inputs, h = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(3, *state, dtype=torch.float64)
    assert lp.check_gradients(net, inputs, h).ok


# steps that run one module on all slots of all rows, (batch * slots, features), as graph and modular networks do
class Slots(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.lstm, self.mix = nn.GRUCell(3, 3), nn.LSTMCell(3, 3), nn.Linear(6, 9)
        self.norm, self.inner = nn.LayerNorm(9), nn.Linear(2, 15)

    def seen(self, x):
        return self.inner(x).view(-1, 5, 3)


class GraphGRU(Slots):
    def forward(self, x, h):
        h = self.gru(self.seen(x).reshape(-1, 3) + h.roll(1, 1).reshape(-1, 3), h.reshape(-1, 3)).view_as(h)
        return h.mean(1), h


class GraphLSTM(Slots):
    def forward(self, x, h):
        new, c = self.lstm(self.seen(x).flatten(0, 1), (h.flatten(0, 1), h.tanh().flatten(0, 1)))
        h = 0.5 * (new + c).unflatten(0, (x.shape[0], 5))
        return h.mean(1), h


class SlicesOfSlots(Slots):
    def forward(self, x, h):
        y = self.mix(torch.cat([h, self.seen(x)], -1).view(-1, 6))
        a, b, c = torch.tanh(y[:, :3]), torch.sigmoid(y[:, 3:8]), y[:, 8]
        h = 0.5 * (a * b[:, 1:4]).view_as(h) + 0.1 * c.view(-1, 5, 1)
        return h.mean(1), h


class NormedSlots(Slots):
    def forward(self, x, h):
        y = self.norm(self.mix(torch.cat([h, self.seen(x)], -1).view(-1, 6)))
        a, b, c = y.unflatten(1, (3, 3)).unbind(1)
        h = 0.3 * h + 0.3 * torch.stack([a * b, torch.tanh(c)], 1).mean(1).view_as(h)
        return h.mean(1), h


@pytest.mark.parametrize(
    "step", quickly([GraphGRU, GraphLSTM, SlicesOfSlots, NormedSlots], GraphLSTM, SlicesOfSlots, NormedSlots)
)
def test_a_module_on_the_slots_of_all_rows_runs_as_a_kernel(step):
    torch.manual_seed(0)
    net = lp.Recurrent(step().double(), engine="cpu")
    inputs, h = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(3, 5, 3, dtype=torch.float64)
    assert lp.check_gradients(net, inputs, h).ok
