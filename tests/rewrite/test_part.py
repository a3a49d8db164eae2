"""part: a product of a joined row is the sum of the pieces' products, a convolution of joined channels likewise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.loop.part import part
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


class JoinedChannels(lp.Cell):
    """Images of five pixels; the channels of the input and the state in an order, read by one convolution."""

    def __init__(self, order: str, bias: bool = True, groups: int = 1) -> None:
        super().__init__(h=(4, 5))
        self.order = order
        channels = sum({"x": 2, "h": 4}[letter] for letter in order)
        self.conv = nn.Conv1d(channels, 4, 3, padding=2, dilation=2, bias=bias, groups=groups)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.conv(torch.cat([{"x": x, "h": h}[letter] for letter in self.order], 1)))
        return h, h


IMAGES, FIRST_IMAGE = numbers(7, 3, 2, 5), numbers(3, 4, 5, seed=1)


@pytest.mark.parametrize("order", ["xh", "hx", "xhx", "hxh"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_parted_convolution_gives_the_same(order: str, bias: bool) -> None:
    loop = loop_of(JoinedChannels(order, bias), IMAGES)
    values = {"x": IMAGES, "h": FIRST_IMAGE}
    assert part(loop).text() != loop.text()
    assert_close(run(part(loop), values), run(loop, values), "parted")


@pytest.mark.parametrize("order", ["xh", "hx", "xhx"])
def test_the_convolution_of_the_input_leaves_the_loop(order: str) -> None:
    split = loop_of(JoinedChannels(order), IMAGES).split()
    assert split.inside is not None
    assert split.inside.operators == ["convolution", "add", "tanh"]
    assert split.before is not None
    assert set(split.before.operators) <= {"convolution", "add"}


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_gradients_of_a_parted_convolution_are_those_of_the_plain_loop(engine: str) -> None:
    net = lp.Recurrent(JoinedChannels("xhx").double(), engine=engine)
    assert lp.check_gradients(net, IMAGES.double(), lengths=[7, 1, 4]).ok


def test_a_convolution_in_groups_stays_joined() -> None:
    loop = loop_of(JoinedChannels("xh", groups=2), IMAGES)
    assert part(loop).text() == loop.text()
