"""part: a product of a joined row is the sum of the pieces' products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.loop.split import part
from tests.close import assert_close
from tests.rewrite.running import loop_of, numbers, run

X, START = numbers(5, 3, 2), numbers(3, 4, seed=1)


class Joined(lp.Cell):
    """Pieces in an order, with or without bias."""

    def __init__(self, order: str, bias: bool) -> None:
        super().__init__(h=4)
        self.order = order
        self.fc = nn.Linear(sum({"x": 2, "h": 4}[letter] for letter in order), 4, bias=bias)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.fc(torch.cat([{"x": x, "h": h}[letter] for letter in self.order], -1)))
        return h, h


@pytest.mark.parametrize("order", ["xh", "hx", "xhx", "hxh"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_parted_product_gives_the_same(order: str, bias: bool) -> None:
    loop = loop_of(Joined(order, bias), X)
    values = {"x": X, "h": START}
    assert_close(run(part(loop), values), run(loop, values), "parted")


@pytest.mark.parametrize("order", ["xh", "hx", "xhx"])
def test_the_input_leaves_the_loop(order: str) -> None:
    inside = loop_of(Joined(order, True), X).split().inside
    assert inside is not None
    assert inside.operators == ["addmm", "tanh"]


def test_a_row_that_waits_as_a_whole_stays_joined() -> None:
    loop = loop_of(Joined("hh", True), X)
    assert part(loop).text() == loop.text()
