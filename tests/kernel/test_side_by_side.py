"""Reductions of elements that lie apart: their results are computed side by side, as vectors."""

from pathlib import Path

import pytest
import torch

import leporello as lp
from tests.nets.twins import close, thoroughly

REDUCTIONS = {
    "sum": lambda m: m.sum(1),
    "product": lambda m: m.prod(1),
    "largest": lambda m: m.amax(1),
    "smallest": lambda m: m.amin(1),
    "any": lambda m: (m > 1).any(1),
    "all": lambda m: (m > -1).all(1),
    "with another": lambda m: (m * m.mean(2, keepdim=True)).sum(1),
    "of the middle": lambda m: m.view(m.shape[0], 1, m.shape[1], m.shape[2]).sum(2).squeeze(1),
}


@pytest.mark.parametrize("size", [7, 70, *thoroughly(1, 8, 64)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_they_equal_those_of_torch(name, size):
    def step(x, h):
        m = torch.tanh(h + 1.5 * x).view(-1, 5, size)
        reduced = REDUCTIONS[name](m).to(h.dtype)
        return reduced, 0.5 * h + reduced.repeat(1, 5)

    torch.manual_seed(0)
    x, h = torch.randn(3, 2, 5 * size, dtype=torch.float64), torch.randn(2, 5 * size, dtype=torch.float64)
    results = [lp.Recurrent(step, engine=engine)(x, h) for engine in ("cpu", "reference")]
    close(*results)


def test_the_generated_c_has_vectors_of_sums():
    net = lp.Recurrent(lambda x, h: (h, 0.5 * h + h.view(-1, 5, 70).sum(1).repeat(1, 5)), engine="cpu")
    text = net.explain(torch.randn(3, 2, 1), torch.randn(2, 350))
    path = next(line.split()[-1] for line in text.splitlines() if "generated C" in line)
    assert "sums[64]" in Path(path).read_text()
