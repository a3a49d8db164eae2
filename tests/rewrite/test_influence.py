"""The rewrite `influence`: what it carries is the derivative of the state, and its totals are gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.targets import target_of
from leporello.gradient.forward_in_time import CarryingLoop
from leporello.rewrite.forward_in_time.influence import influence
from leporello.rewrite.forward_in_time.linearize import Linear
from leporello.view.folded_loop import loop_from
from tests.nets.twins import normal, shaken, state_like
from tests.rewrite.running import loop_of

LENGTH, BATCH = 4, 3


class Mixed(lp.Cell):
    """Leaves of several shapes, an integer among them; a parameter that reaches outputs alone, one that is detached."""

    def __init__(self) -> None:
        super().__init__(h=2, m=(2, 2), count=())
        self.inputs = 3
        self.W, self.V, self.D = (nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
        self.scale = nn.Parameter(torch.zeros(()))

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Any:
        h, m, _ = super().initial_state(batch, device=device, dtype=dtype)
        return h, m, torch.zeros(batch, dtype=torch.int64, device=device)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, m, count = state
        h = torch.tanh(x[:, :2] + h @ self.W + (m @ h.unsqueeze(2)).squeeze(2) + (h @ self.D).detach())
        h = torch.where((count % 2 == 0).unsqueeze(1), h, self.scale * h)
        return h @ self.V, (h, 0.5 * m.mT + h.unsqueeze(1), count + 1)


def linear_of(cell: lp.Cell) -> Linear:
    loop = loop_of(cell, normal(LENGTH, BATCH, 3))
    return Linear(loop, [port.dtype.is_floating_point and port.kind != "sequence" for port in loop.inputs])


def test_a_source_without_a_way_to_the_state_has_no_influence() -> None:
    linear = linear_of(Mixed())
    assert [port.name for port in linear.influencing] == ["W", "scale", "h", "m"]
    assert {port.name for port in linear.sources} >= {"V", "D"}
    names = [port.name for port in influence(linear).inputs if port.kind == "state"]
    own = [f"influence of {name}" for name in ("W", "scale", "the state h", "the state m")]
    assert names == ["h", "m", "count", *own]


def test_leaves_stand_side_by_side() -> None:
    linear = linear_of(Mixed())
    assert (linear.size, [linear.place(port) for port in linear.states]) == (6, [slice(0, 2), slice(2, 6)])
    leaves = [normal(BATCH, 2), normal(BATCH, 2, 2, seed=2)]
    torch.testing.assert_close(linear.to_leaves(linear.to_vector(leaves)), tuple(leaves), rtol=0, atol=0)


@pytest.mark.parametrize("engine", ["reference", "stepwise"])
def test_what_is_carried_is_the_derivative_of_the_state(engine: str) -> None:
    cell = shaken(Mixed())
    linear = linear_of(cell)
    x, state = normal(LENGTH, BATCH, 3), (*state_like(lp.RNN(1, 2), BATCH).unsqueeze(0), normal(BATCH, 2, 2, seed=9))
    counts = torch.tensor([0, 1, 2])

    def final(W: Tensor, scale: Tensor, h: Tensor, m: Tensor) -> Tensor:
        last: Any = (h, m, counts)
        for each in x:
            _, last = torch.func.functional_call(cell, {"W": W, "scale": scale}, (each, last))
        return torch.cat([last[0], last[1].flatten(1)], 1)

    by_hand = torch.autograd.functional.jacobian(final, (cell.W, cell.scale, *state))
    carried = CarryingLoop.of(linear, influence(linear), target_of(engine))
    values: dict[Any, Tensor] = {("sequence", "x"): x, ("sequence", "grad.o"): torch.zeros(LENGTH, BATCH, 2).double()}
    values |= {("invariant", name): value for name, value in cell.named_parameters()}
    names = zip(("h", "m", "count"), (*state, counts), strict=True)
    values |= {("state", name): value.detach() for name, value in names}
    found = carried.run(values | lp.RTRL().beginning(linear, BATCH), LENGTH, BATCH)
    rows = torch.arange(BATCH)
    for name, wanted in zip(("W", "scale", "the state h", "the state m"), by_hand, strict=True):
        own = wanted[rows, :, rows] if name.startswith("the state") else wanted
        torch.testing.assert_close(found["state", f"influence of {name}"], own, rtol=1e-12, atol=1e-12)


def test_a_loop_that_carries_can_be_written_and_read() -> None:
    text = influence(linear_of(Mixed())).text()
    assert text.startswith("loop influence of Mixed\n")
    assert "state      influence_of_W = 'influence of W' float64 [rows, 6, 2, 2]" in text
    assert loop_from(text).text() == text


def test_a_cell_without_state_carries_nothing() -> None:
    cell = shaken(lp.Perceptron(3, 4, 2))
    loop = influence(linear_of(cell))
    assert not loop.delays
    assert {(port.kind, port.name) for port in loop.outputs} == {("total", name) for name, _ in cell.named_parameters()}
