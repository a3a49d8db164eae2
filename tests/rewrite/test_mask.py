"""mask: each row ends at its own length; outputs past it are zero, the state stays, padding never matters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.loop.port import Port
from leporello.rewrite import mask
from leporello.rewrite.mask import held_states
from tests.close import assert_close
from tests.rewrite.running import loop_of, numbers, run

LENGTHS = torch.tensor([5, 1, 3])
X = numbers(5, 3, 2)
TIMES = torch.arange(5).unsqueeze(1)
PAST, ELSEWHERE = TIMES >= LENGTHS, TIMES != LENGTHS - 1
CELLS = {
    "a cycle": lambda: lp.LSTM(2, 4),
    "a shift": lambda: lp.TimeDelay(2, 3, 3),
    "both": lambda: lp.Stack(lp.TimeDelay(2, 3, 2), lp.RNN(3, 4)),
    "no state": lambda: lp.Perceptron(2, 4, 3),
}


def masked(cell: lp.Cell, x: Tensor = X) -> dict[str, Tensor]:
    loop = mask(loop_of(cell, X))
    states = {port.name: numbers(3, *port.shape, seed=7) for port in loop.inputs if port.kind == "state"}
    given = {"x": x, "call.past": PAST, "call.elsewhere": ELSEWHERE}
    return run(loop, {**given, **states}, {"call.first.x": x[0].detach()})


def alone(cell: lp.Cell, row: int) -> dict[str, Tensor]:
    """One row, without its padding."""
    loop = loop_of(cell, X)
    states = {port.name: numbers(3, *port.shape, seed=7)[row : row + 1] for port in loop.inputs if port.kind == "state"}
    return run(loop, {"x": X[: LENGTHS[row], row : row + 1], **states})


@pytest.mark.parametrize("name", CELLS)
def test_a_row_gives_what_it_gives_without_padding(name: str) -> None:
    cell = CELLS[name]()
    found = masked(cell)
    for row, length in enumerate(LENGTHS.tolist()):
        own = alone(cell, row)
        assert_close({"o": found["o"][:length, row]}, {"o": own["o"][:, 0]}, f"row {row}")
        for state in [state for state in own if state.startswith("final")]:
            end = found.get(f"call.{state.replace(' ', '.')}", found[state])
            assert_close({state: end[row]}, {state: own[state][0]}, f"row {row}")


@pytest.mark.parametrize("name", CELLS)
def test_outputs_past_the_end_are_zero(name: str) -> None:
    assert not masked(CELLS[name]())["o"][PAST].any()


@pytest.mark.parametrize("name", CELLS)
def test_nan_in_the_padding_reaches_no_output_and_no_gradient(name: str) -> None:
    x = X.masked_fill(PAST.unsqueeze(-1), float("nan")).requires_grad_()
    cell = CELLS[name]()
    found = masked(cell, x)
    total = sum(value.sum() for result, value in found.items() if result == "o" or "final" in result)
    gradients = torch.autograd.grad(total, [x, *cell.parameters()])  # type: ignore[arg-type]
    assert not any(gradient.isnan().any() for gradient in gradients)
    assert not gradients[0][PAST].any()


class Direction(lp.Cell):
    """Reads the direction of its input, which zero has not."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.gain = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y = self.gain * x
        h = torch.tanh(h + y / y.norm(dim=-1, keepdim=True))
        return h, h


@pytest.mark.parametrize("engine", ["reference", "stepwise"])
def test_a_step_without_derivative_at_zero_may_be_padded(engine: str) -> None:
    net = lp.Recurrent(Direction(), engine=engine)
    outputs, state = net(X.float(), lengths=LENGTHS)
    (outputs.sum() + state.sum()).backward()
    assert net.cell.gain.grad.isfinite().all()  # type: ignore[union-attr]
    lp.check_gradients(net, X.float(), lengths=LENGTHS)


class Root(lp.Cell):
    """Its derivative divides by its result."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.gain = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.sqrt(h + (self.gain * x).square())
        return h, h


@pytest.mark.parametrize("engine", ["stepwise", "cpu"])
def test_the_held_state_is_the_one_value_that_is_kept(engine: str) -> None:
    net = lp.Recurrent(Root(), engine=engine).double()
    assert [port.name for port in held_states_of(net.cell)] == ["h"]
    outputs, state = net(X, lengths=LENGTHS)
    (outputs.sum() + state.square().sum()).backward()
    assert net.cell.gain.grad.isfinite().all()  # type: ignore[union-attr]
    lp.check_gradients(net, X, lengths=LENGTHS)
    rows = net.explain(X, lengths=LENGTHS)
    assert str(rows).count("float64 [rows, 2]: 240 bytes") == 1, rows  # 5 steps, 3 rows, 2 numbers


def held_states_of(cell: lp.Cell) -> list[Port]:
    """The states that stand for a value of the step."""
    loop = mask(loop_of(cell, X))
    held = set(held_states(loop).values())
    return [port for port, node in zip(loop.outputs, loop.results, strict=True) if node in held]


def test_a_shift_stays_a_shift() -> None:
    assert mask(loop_of(CELLS["a shift"](), X)).split().parallel


def test_a_state_that_no_step_changes_needs_no_hold() -> None:
    class Kept(lp.Cell):
        def __init__(self) -> None:
            super().__init__(s=2)

        def forward(self, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
            return x * s, s

    loop = mask(loop_of(Kept(), X))
    assert loop.split().parallel
    assert not any(port.kind == "total" for port in loop.outputs)
