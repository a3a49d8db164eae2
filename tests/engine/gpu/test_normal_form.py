"""Kernels in the form that can be scheduled: the same values, each stored whole and once; no product of an input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.gpu.division import scheduler
from leporello.engine.gpu.division.normal_form import multiplied_inputs, stored_twice, stores_of, whole_stores
from leporello.engine.gpu.division.schedule import Evaluator, Part
from leporello.kernel import interpreter
from leporello.kernel.description import Kernel
from tests.engine.gpu.kernels import kernels_of
from tests.gpu_on_host import SHAPES
from tests.nets.twins import quickly, thoroughly

Step = Callable[[Tensor, Tensor], Tensor]


def first_replaced(a: Tensor, b: Tensor) -> Tensor:
    a = a.clone()
    a[:, 0] = b[:, 1]
    return a


def every_second_replaced(a: Tensor, b: Tensor) -> Tensor:
    a = a.clone()
    a[:, 1::2] = b[:, 2:6]
    c = a.clone()
    c[:, 2:4] = a[:, 3:5] * b[:, :2]
    return c


def block_replaced(a: Tensor, b: Tensor) -> Tensor:
    whole = a.view(-1, 2, 4).clone()
    whole[:, 1, ::2] = b[:, 1:3]
    whole[:, :, 3] = b[:, 5:7]
    return whole.flatten(1)


def diagonal_replaced(a: Tensor, b: Tensor) -> Tensor:
    return torch.diagonal_scatter(a.view(-1, 2, 4), b[:, :2], 1, 1, 2).flatten(1)


def padded(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.pad(a[:, 1:4] * b[:, :3], (2, 3), value=0.5)


def joined(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a[:, :3].tanh(), b[:, 1:4] * 2, a[:, 6:]], 1)


def stacked(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a[:, :4].tanh(), b[:, 4:] * 2], 2).flatten(1)


def replaced_whole(a: Tensor, b: Tensor) -> Tensor:
    before = a.tanh().sum(1, keepdim=True)
    a = a.clone()
    a[:, :] = b * before
    return a


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        first_replaced,
        every_second_replaced,
        block_replaced,
        diagonal_replaced,
        padded,
        joined,
        stacked,
        replaced_whole,
    )
}
REPLACED = {"first_replaced", "every_second_replaced", "block_replaced", "diagonal_replaced", "padded"}


class Cell(lp.Cell):
    """A step between two products, so that other units read its value too."""

    def __init__(self, step: Step) -> None:
        super().__init__(h=8)
        self.step, self.U, self.W, self.V = step, nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.V(self.step(torch.tanh(self.U(x) + self.W(h)), h)))
        return h, h


class Multiplied(lp.Cell):
    """A number of the row is the left side of a product."""

    def __init__(self) -> None:
        super().__init__(h=1)
        self.W = nn.Parameter(torch.randn(1, 1))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh((h * h + x[:, :1]) @ self.W)
        return h, h


class Kept(lp.Cell):
    """A matrix that is only added to: in its gradient, the product of what comes in is inside the loop."""

    def __init__(self) -> None:
        super().__init__(m=(2, 3))
        self.V = nn.Linear(3, 3)

    def forward(self, x: Tensor, m: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        output = self.V(m)
        return (output, output), m + x.unsqueeze(1)


@pytest.mark.parametrize("name", quickly(STEPS, "every_second_replaced", "joined"))
@pytest.mark.parametrize("engine", ["gpu-host-cluster", *thoroughly("gpu-host-block", "gpu-host-grid")])
def test_kernels_for_a_gpu_give_what_the_plain_loop_gives(engine: str, name: str) -> None:
    assert set(SHAPES) >= {engine}
    torch.manual_seed(0)
    net = lp.Recurrent(Cell(STEPS[name]), engine=engine)
    inputs = torch.randn(5, 9, 3)
    report = lp.check_gradients(net, inputs, lengths=torch.arange(9) % 5 + 1)
    assert report.ok, report


def test_a_number_of_a_row_may_be_multiplied() -> None:
    net = lp.Recurrent(Multiplied(), engine="gpu-host-cluster")
    assert lp.check_gradients(net, torch.randn(4, 3, 3)).ok


def test_an_input_may_be_multiplied_inside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[bool] = []

    def spy(kernel: Kernel) -> Kernel:
        found = multiplied_inputs(kernel)
        copied.append(found.blocks != kernel.blocks)
        return found

    monkeypatch.setattr(scheduler, "multiplied_inputs", spy)
    net = lp.Recurrent(Kept(), engine="gpu-host-cluster")
    report = lp.check_gradients(net, torch.randn(4, 3, 3), resets=torch.rand(4, 3) < 0.4)
    assert report.ok, report
    assert any(copied)


@pytest.mark.parametrize("name", STEPS)
def test_each_element_is_stored_once_and_is_the_same(name: str) -> None:
    torch.manual_seed(0)
    kernels = kernels_of(Cell(STEPS[name]), 3, torch.float32)
    assert any(map(stored_twice, kernels)) or name not in REPLACED
    for kernel in kernels:
        pieces = Counter(buffer for block in kernel.blocks for buffer, _, _ in stores_of(block))
        found = whole_stores(kernel, frozenset(buffer for buffer, count in pieces.items() if count > 1))
        places = Evaluator()
        for block in found.blocks:
            for buffer, index, sizes in stores_of(block):
                count = int(torch.tensor(sizes).prod()) if sizes else 1
                assert len(set(places(index, Part(count, 0, tuple(sizes))))) == buffer.count
        stores = Counter(buffer for block in found.blocks for buffer, _, _ in stores_of(block))
        assert set(stores.values()) == {1}
        for one, other in zip(results(kernel), results(found), strict=True):
            assert torch.equal(one, other)


def results(kernel: Kernel) -> list[Tensor]:
    """What a kernel gives for three steps of two rows of random numbers."""
    numbers = torch.Generator().manual_seed(1)

    def values(place: Any, *front: int) -> list[Tensor]:
        return [torch.rand((*front, *b.sizes), generator=numbers).to(b.dtype) for b in kernel.buffers[place]]

    arguments = {
        "states": values("state", 2),
        "reads": values("read", 3, 2),
        "rows": values("row", 2),
        "fixed": values("fixed"),
    }
    states, written = interpreter.run(kernel, **arguments, steps=3, batch=2)
    return [*states, *written]
