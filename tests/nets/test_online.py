"""`lp.online`: one step's input and target at a time; what adds up in .grad is the gradient of all losses so far."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from benchmarks.memory import peak_bytes
from leporello.call.arguments import checked_call
from leporello.errors import ArgumentError, MissingState, UntraceableStep
from leporello.nets.plain_loop import plain_loop
from tests.benchmarks.made import Calling
from tests.errors.said import said
from tests.nets.twins import close, normal, quickly, shaken, state_like, thoroughly

ENGINES = ("stepwise", *thoroughly("reference"))
CELLS: dict[str, Any] = {
    "GRU": lambda: lp.GRU(3, 2),
    "learned LSTM": lambda: lp.LSTM(3, 2, learned=True),
    "Jordan": lambda: lp.Jordan(3, 4, 2),
    "Stack": lambda: lp.Stack(lp.GRU(3, 4), lp.Elman(4, 3, 2)),
    "Perceptron": lambda: lp.Perceptron(3, 4, 2),
}


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum()


def grads(module: nn.Module) -> list[Tensor | None]:
    found = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    return found


def by_full(cell: nn.Module, x: Tensor, y: Tensor, **arguments: Any) -> list[Tensor | None]:
    """By the plain loop."""
    draws = arguments.pop("draws", None)
    outputs, _ = plain_loop(cell, checked_call(cell, x, None, **arguments), draws)
    loss(outputs, y).backward()
    return grads(cell)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", quickly(CELLS, "learned LSTM", "Stack"))
def test_gradients_add_up_to_that_of_all_losses(name: str, engine: str) -> None:
    cell, x, y = shaken(CELLS[name]()), normal(5, 3, 3), normal(5, 3, 2, seed=2)
    outputs, final = plain_loop(cell, checked_call(cell, x, None))
    learner = lp.online(lp.Recurrent(cell, engine=engine), lp.RTRL(), loss)
    for time in range(5):
        close(learner.step(x[time], y[time]), outputs[time], 1e-12, "output")
        close(learner.loss, loss(outputs[time], y[time]), 1e-12, "loss")
    close(learner.state, final, 1e-12, "state")
    found = grads(cell)
    close(found, by_full(cell, x, y), 1e-10, "gradient")


def test_after_each_step_the_gradient_of_its_loss_is_added() -> None:
    cell, x, y = shaken(lp.RNN(3, 2)), normal(4, 3, 3), normal(4, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), loss)
    for time in range(4):
        learner.step(x[time], y[time])
        found = grads(cell)
        outputs, _ = plain_loop(cell, checked_call(cell, x[: time + 1], None))
        loss(outputs[-1], y[time]).backward()
        close(found, grads(cell), 1e-10, "gradient")


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_may_change_between_steps(engine: str) -> None:
    """By hand: the influence is carried with the parameters of each step."""
    cell, x, y = shaken(lp.RNN(3, 2, bias=False)), normal(5, 1, 3), normal(5, 1, 2, seed=2)
    twin, optimizers = shaken(lp.RNN(3, 2, bias=False)), []
    learner = lp.online(lp.Recurrent(cell, engine=engine), lp.RTRL(), loss)
    for module in (cell, twin):
        optimizers.append(torch.optim.SGD(module.parameters(), lr=0.1))
    h = torch.zeros(1, 2).double()
    influences = [torch.zeros(2, *parameter.shape).double() for parameter in twin.parameters()]
    for time in range(5):
        learner.step(x[time], y[time])
        h = h.detach().requires_grad_()
        output, after = twin(x[time], h)
        own = [torch.autograd.grad(after[0, i], [h, *twin.parameters()], retain_graph=True) for i in range(2)]
        at_state, *direct = torch.autograd.grad(loss(output, y[time]), [h, *twin.parameters()])
        moved = torch.cat([of_h for of_h, *_ in own])
        for index, parameter in enumerate(twin.parameters()):
            parameter.grad = direct[index] + torch.einsum("s,s...->...", at_state[0], influences[index])
            step_own = torch.stack([each[1 + index] for each in own])
            influences[index] = torch.einsum("st,t...->s...", moved, influences[index]) + step_own
        h = after
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    close(list(cell.parameters()), list(twin.parameters()), 1e-12, "parameter")


def test_reset_forgets_everything() -> None:
    cell, x, y = shaken(lp.LSTM(3, 2, learned=True)), normal(4, 3, 3), normal(4, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), loss)
    found = []
    for _ in range(2):
        for time in range(4):
            learner.step(x[time], y[time])
        found.append(grads(cell))
        learner.reset()
        assert learner.state is None
    close(found[0], found[1], tolerance=0)


def test_some_rows_begin_again() -> None:
    cell, x, y = shaken(lp.LSTM(3, 2, learned=True)), normal(5, 3, 3), normal(5, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), loss)
    resets = torch.zeros(5, 3, dtype=torch.bool)
    resets[3, 1] = True
    wanted = by_full(cell, x, y, resets=resets)
    for rows in ([1], torch.tensor([False, True, False]), slice(1, 2)):
        for time in range(5):
            if time == 3:
                learner.reset(rows)
            learner.step(x[time], y[time])
        close(grads(cell), wanted, 1e-10, f"rows {rows}: gradient")
        learner.reset()


def test_a_state_can_be_given_and_is_gone_back_to() -> None:
    cell, x, y = shaken(lp.RNN(3, 2)), normal(4, 3, 3), normal(4, 3, 2, seed=2)
    state = state_like(cell, 3, grad=False)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), loss, state)
    for _ in range(2):
        for time in range(4):
            learner.step(x[time], y[time])
        outputs, _ = plain_loop(cell, checked_call(cell, x, state))
        found = grads(cell)
        loss(outputs, y).backward()
        close(found, grads(cell), 1e-10, "gradient")
        learner.reset()
    close(learner.state, state, tolerance=0)


def test_another_batch_after_a_reset() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), loss)
    for batch in (3, 1, 4):
        assert learner.step(torch.zeros(batch, 3), torch.zeros(batch, 2)).shape == (batch, 2)
        learner.reset()


def test_parameters_of_the_loss_learn_too() -> None:
    cell, head, x, y = shaken(lp.RNN(3, 4)), shaken(nn.Linear(4, 2), seed=1), normal(4, 3, 3), normal(4, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), lambda output, target: loss(head(output), target))
    for time in range(4):
        learner.step(x[time], y[time])
    found = [*grads(cell), *grads(head)]
    loss(head(lp.Recurrent(cell)(x)[0]), y).backward()
    close(found, [*grads(cell), *grads(head)], 1e-10, "gradient")


def test_outputs_and_inputs_may_be_trees() -> None:
    class Tree(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2)
            self.W = nn.Parameter(torch.zeros(2, 2))

        def forward(self, x: Any, h: Tensor) -> Any:
            h = torch.tanh(x["a"] + x["b"] + h @ self.W)
            return {"h": h, "none": None, "sign": h > 0, "unheard": h.square()}, h

    cell, x, y = shaken(Tree()), normal(4, 3, 2), normal(4, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), lambda output, target: loss(output["h"], target))
    for time in range(4):
        output = learner.step({"a": x[time], "b": y[time]}, y[time])
        assert output["none"] is None
        assert not output["h"].requires_grad
    found = grads(cell)
    loss(lp.Recurrent(cell)({"a": x, "b": y})[0]["h"], y).backward()
    close(found, grads(cell), 1e-10, "gradient")


def test_random_numbers_of_a_step_are_the_same_in_output_and_gradient() -> None:
    cell = shaken(lp.Stack(lp.RNN(3, 4), lp.RNN(4, 2), dropout=0.5))
    x, y = normal(4, 3, 3), normal(4, 3, 2, seed=2)
    learner = lp.online(lp.Recurrent(cell), lp.RTRL(), loss)
    torch.manual_seed(0)
    for time in range(4):
        learner.step(x[time], y[time])
    found = grads(cell)
    torch.manual_seed(0)
    draws = [torch.cat(parts) for parts in zip(*(lp.Recurrent(cell).draw(x[t : t + 1]) for t in range(4)), strict=True)]
    close(found, by_full(cell, x, y, draws=draws), 1e-10, "gradient")


@pytest.mark.parametrize("engine", ENGINES)
def test_uoro_of_one_step_is_exact_and_later_unbiased(engine: str) -> None:
    cell, x, y = shaken(lp.RNN(2, 2)), normal(3, 1, 2), normal(3, 1, 2, seed=2)
    net, copies, calls = lp.Recurrent(cell, engine=engine), 1000, 30
    learner = lp.online(net, lp.UORO(), lambda output, target: loss(output, target) / copies)
    learner.step(x[0].expand(copies, 2), y[0])
    close(grads(cell), by_full(cell, x[:1], y[:1]), 1e-10, "gradient")
    found = []
    for _ in range(calls):
        learner.reset()
        for time in range(3):
            learner.step(x[time].expand(copies, 2), y[time])
        found.append(torch.cat([gradient.flatten() for gradient in grads(cell)]))
    exact = torch.cat([gradient.flatten() for gradient in by_full(cell, x, y)])
    each = torch.stack(found)
    assert ((each.mean(0) - exact).abs() <= 4 * each.std(0) / calls**0.5 + 1e-12).all()
    assert each.std(0).max() / calls**0.5 < 0.02 * exact.abs().max()


def test_nothing_of_the_past_is_kept() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 5), engine="stepwise"), lp.RTRL(), loss)
    x, y = torch.randn(2, 3), torch.randn(2, 5)

    def steps(count: int) -> Any:
        def run() -> None:
            for _ in range(count):
                learner.step(x, y)
            learner.net.zero_grad()

        return Calling(run)

    assert peak_bytes(steps(50)) <= peak_bytes(steps(5)) + 40  # the size of one state


def test_it_works_where_gradients_are_off() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), loss)
    with torch.no_grad():
        learner.step(torch.zeros(1, 3), torch.ones(1, 2))
    assert learner.net.cell.W.grad is not None


def test_the_network_itself_stays_as_it_was() -> None:
    net = lp.Recurrent(lp.RNN(3, 2), gradient=lp.Truncated(3))
    lp.online(net, lp.RTRL(), loss).step(torch.zeros(1, 3), torch.ones(1, 2))
    assert net.gradient == lp.Truncated(3)


# ---- refusals


@pytest.mark.parametrize("method", [lp.Full(), lp.Truncated(3)], ids=repr)
def test_methods_that_go_back_are_refused(method: Any) -> None:
    what = "the argument 'method' does not go forward in time."
    call = lambda: lp.online(lp.Recurrent(lp.RNN(3, 2)), method, loss)  # noqa: E731
    said(ArgumentError, call, what, repr(method), "lp.RTRL() or lp.UORO()", "on one window of steps after another")


@pytest.mark.parametrize("net", [lp.RNN(3, 2), lp.Summary(lp.RNN(3, 2), nn.Linear(2, 1)), lp.RTRL], ids=type)
def test_what_is_no_network_of_steps_is_refused(net: Any) -> None:
    said(ArgumentError, lambda: lp.online(net, lp.RTRL(), loss), "the argument 'net'", "lp.Recurrent(cell)")


def test_another_batch_is_refused() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), loss)
    learner.step(torch.zeros(3, 3), torch.zeros(3, 2))
    what = "the argument 'x' has another batch than the steps before."
    said(ArgumentError, lambda: learner.step(torch.zeros(2, 3), None), what, "[2, 3]", "batch 3", "learner.reset()")
    learner.step(torch.zeros(3, 3), torch.zeros(3, 2))


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), lambda output, target: (output - target).square())
    call = lambda: learner.step(torch.zeros(3, 3), torch.zeros(3, 2))  # noqa: E731
    said(ArgumentError, call, "the argument 'loss' gives no scalar.", "float32 [3, 2]", "the mean or the sum")
    assert learner.state is None


def test_an_input_that_requires_a_gradient_is_refused() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), loss)
    x = torch.zeros(3, 3, requires_grad=True)
    said(ArgumentError, lambda: learner.step(x, torch.zeros(3, 2)), "requires a gradient", "inputs.detach()")
    learner.step(x.detach(), torch.zeros(3, 2))
    said(ArgumentError, lambda: learner.step(x, torch.zeros(3, 2)), "requires a gradient", "inputs.detach()")


def test_a_network_with_nothing_to_learn_is_refused() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2).requires_grad_(False)), lp.RTRL(), loss)
    said(ArgumentError, lambda: learner.step(torch.zeros(3, 3), torch.zeros(3, 2)), "nothing to learn", "net.step")


def test_other_gradients_on_the_way_are_refused() -> None:
    learner = lp.online(lp.Recurrent(lp.RNN(3, 2)), lp.RTRL(), loss)
    learner.step(torch.zeros(3, 3), torch.zeros(3, 2))
    learner.net.cell.W.requires_grad_(False)
    call = lambda: learner.step(torch.zeros(3, 3), torch.zeros(3, 2))  # noqa: E731
    said(ArgumentError, call, "asks for other gradients than at the steps before", "influence of W", "learner.reset()")
    learner.reset()
    call()


def test_a_cell_without_initial_state_needs_one_given() -> None:
    net = lp.Recurrent(nn.GRUCell(3, 2))
    said(MissingState, lambda: lp.online(net, lp.RTRL(), loss).step(torch.zeros(3, 3), torch.zeros(3, 2)), "state")


def test_what_cannot_be_carried_is_refused_as_in_a_call() -> None:
    class Turning(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2)
            self.W = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + (h.to(self.W.dtype) @ self.W).abs())
            return h, h

    learner = lp.online(lp.Recurrent(Turning(), engine="stepwise"), lp.RTRL(), loss)
    call = lambda: learner.step(torch.zeros(3, 2), torch.zeros(3, 2))  # noqa: E731
    said(UntraceableStep, call, "complex values are not carried forward in time: 'W'")
