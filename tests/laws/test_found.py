"""What random cells have found, each as a small case of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leporello as lp
from leporello.errors import EngineRefusal
from leporello.rewrite import differentiate
from leporello.view.folded_loop import loop_from
from tests.close import TOLERANCE

ENGINES = ("reference", "stepwise")


class Written(lp.Cell):
    """A step from a function (cell, x, state), with a matrix, a vector and a table to use."""

    def __init__(self, step: Callable[..., Any], learned: bool = False, **leaves: int) -> None:
        super().__init__(learned=learned, **leaves)
        numbers = torch.Generator().manual_seed(0)
        self.W = nn.Parameter(torch.randn(3, 3, generator=numbers) / 3)
        self.a = nn.Parameter(torch.randn(3, generator=numbers))
        self.table = nn.Parameter(torch.randn(5, 3, generator=numbers))
        self.step = step
        self.double()

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.step(self, x, state)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_exact(cell: lp.Cell, inputs: Any, state: Any = None, **arguments: Any) -> None:
    for engine in ENGINES:
        report = lp.check_gradients(lp.Recurrent(cell, engine=engine), inputs, state, **arguments)
        assert report.worst <= TOLERANCE[torch.float64], f"{engine}\n{report}"


X, INTEGERS = floats(4, 3, 3), torch.tensor([[0, 4, 2], [1, 1, 3], [4, 0, 0], [2, 3, 1]])


def test_no_gradient_passes_parts_taken_under_no_grad() -> None:
    def step(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            first, second = h.chunk(2, -1)
        return x * first[:, :1], torch.tanh(x + second)

    assert_exact(Written(step, h=3), X, floats(3, 3))


def test_no_gradient_passes_the_largest_taken_under_no_grad() -> None:
    def step(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            largest = h.max(-1, keepdim=True).values
        h = torch.tanh(x + cell.a * h - largest)
        return h, h

    assert_exact(Written(step, h=3), X, floats(3, 3))


def test_one_hot_rows_come_from_integers() -> None:
    assert_exact(Written(lambda cell, x, h: (F.one_hot(x, 5).double() @ cell.table * h, torch.tanh(h)), h=3), INTEGERS)


def test_a_table_indexed_by_integers_gets_its_gradient() -> None:
    assert_exact(Written(lambda cell, x, h: (cell.table[x], torch.tanh(h + cell.table[x])), h=3), INTEGERS)


def test_a_table_indexed_by_integers_has_second_derivatives() -> None:
    cell = Written(lambda cell, x, h: (cell.table[x] ** 3, torch.tanh(h + cell.table[x])), h=3)
    outputs, _ = lp.Recurrent(cell, engine="stepwise")(INTEGERS)
    (first,) = torch.autograd.grad(outputs.sum(), cell.table, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), cell.table)
    counts = torch.bincount(INTEGERS.flatten(), minlength=5).unsqueeze(1)
    torch.testing.assert_close(second, 6 * cell.table.detach() * counts)


def test_outputs_may_be_none_in_padded_batches() -> None:
    cell = Written(lambda cell, x, h: ((None, {"h": h, "none": None}), torch.tanh(x + h)), h=3)
    assert_exact(cell, X, lengths=torch.tensor([4, 1, 2]))


def test_a_system_without_input_may_end_at_different_lengths() -> None:
    cell = Written(lambda cell, x, h: (h, torch.tanh(cell.a * h)), h=3)
    assert_exact(cell, None, floats(3, 3), steps=4, lengths=torch.tensor([4, 1, 2]))


def test_dropout_on_a_cycle_is_exact_in_float64() -> None:
    assert_exact(Written(lambda cell, x, h: (h, torch.tanh(F.dropout(h, 0.3) + x)), h=3), X)


def test_two_states_that_become_one_value_keep_their_own_beginnings() -> None:
    def step(cell: Written, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h = torch.tanh(x + cell.a * state[0] + state[1] @ cell.W)
        return h, (h, h)

    assert_exact(Written(step, p=3, q=3), X, (floats(3, 3), floats(3, 3, seed=1)))


def test_states_that_change_places_each_step() -> None:
    cell = Written(lambda cell, x, s: (s[0] * x, (s[1], torch.tanh(s[0]))), p=3, q=3)
    assert_exact(cell, X, (floats(3, 3), floats(3, 3, seed=1)))


def test_a_learned_initial_state_may_meet_an_operator_that_needs_its_rows_side_by_side() -> None:
    cell = Written(lambda cell, x, h: (F.group_norm(h, 1, cell.a), torch.tanh(h + x)), learned=True, h=3)
    assert_exact(cell, X)
    loop = lp.fold(cell, X[0])
    assert loop.unfold(4).run(X)[0].shape == (4, 3, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_one_number_everywhere_is_read_as_such(engine: str) -> None:
    """The gradient of a sum takes no memory; an operator that reads rows side by side would read beyond it."""
    cell = Written(lambda cell, x, h: (F.group_norm(x, 1, cell.a, cell.a), torch.tanh(h + x)), h=3)
    net = lp.Recurrent(cell, engine=engine)
    outputs, final = net(X)
    (found,) = torch.autograd.grad(outputs.sum(), cell.a)
    (wanted,) = torch.autograd.grad(F.group_norm(X.flatten(0, 1), 1, cell.a, cell.a).sum(), cell.a)
    torch.testing.assert_close(found, wanted)
    outputs, final = net(X.clone().requires_grad_())
    (found,) = torch.autograd.grad(final.sum(), cell.a, allow_unused=True)
    assert found is None or not found.any()


@pytest.mark.parametrize("function", [F.silu, F.mish, lambda h: F.group_norm(h, 1)], ids=["silu", "mish", "group norm"])
def test_operators_with_a_gradient_of_their_own_for_speed_have_second_derivatives(function: Callable) -> None:
    net = lp.Recurrent(Written(lambda cell, x, h: (function(h + x), torch.tanh(h + x)), h=3), engine="stepwise")
    x = X[:2].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: net(x)[0], (x,), fast_mode=True)


def test_a_second_derivative_that_decides_by_the_batch_is_refused_and_leaves_the_net_usable() -> None:
    cell = Written(
        lambda cell, x, h: (F.conv1d(h.unsqueeze(1), cell.W[:1].unsqueeze(1)).squeeze(1), torch.tanh(h + x)), h=3
    )
    net, x = lp.Recurrent(cell, engine="stepwise"), X.clone().requires_grad_()
    with pytest.raises(EngineRefusal, match="one number of rows"):
        torch.autograd.grad(net(x)[0].pow(2).sum(), x, create_graph=True)
    assert_exact(cell, X)


def test_the_parameters_of_a_loop_with_resets_and_a_learned_initial_state_can_be_asked_for() -> None:
    net = lp.Recurrent(Written(lambda cell, x, h: (h, torch.tanh(h + x)), learned=True, h=3))
    loop = lp.fold(net, X, resets=torch.zeros(4, 3, dtype=torch.bool))
    assert loop.parameters == {"call.initial.h": None}


def test_a_parameter_may_have_the_name_of_a_constant() -> None:
    class Named(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.constant0 = nn.Parameter(torch.tensor([3.0, 4.0, 5.0]))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(h * torch.tensor([0.1, 0.2, 0.3]) + self.constant0 * x)
            return h, h

    cell = Named().double()
    assert_exact(cell, X)
    loop = lp.fold(cell, X[0])
    assert loop_from(loop.text()).text() == loop.text()


def test_a_constant_shaped_like_a_value_does_not_depend_on_it() -> None:
    loop = lp.fold(Written(lambda cell, x, h: (h + x, torch.full_like(h, 0.5) + h.new_ones(3)), h=3), X[0])
    assert loop.split().parallel
    assert differentiate(loop).split().parallel


def test_an_input_may_have_the_name_of_a_state() -> None:
    cell = Written(lambda cell, x, h: (h, torch.tanh(h @ cell.W + x["h"])), h=3)
    assert_exact(cell, {"h": X})


def test_inputs_with_none_in_another_place_are_another_structure() -> None:
    def step(cell: Written, x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h + (x["p"] if x["q"] is None else 2 * x["q"]))
        return h, h

    net = lp.Recurrent(Written(step, h=3))
    one, other = net({"p": X, "q": None})[0], net({"p": None, "q": X})[0]
    assert not torch.equal(one, other)
    torch.testing.assert_close(other, net({"p": 2 * X, "q": None})[0])


def test_a_step_may_solve_equations_although_torch_checks_them() -> None:
    def step(cell: Written, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        matrices = torch.eye(3, dtype=x.dtype) + 0.1 * torch.einsum("bi,bj->bij", h, h)
        h = torch.tanh(torch.linalg.solve(matrices, x.unsqueeze(-1)).squeeze(-1) + cell.a * h)
        return h, h

    assert_exact(Written(step, h=3), X, floats(3, 3))


@pytest.mark.parametrize("engine", ["reference", "stepwise", "cpu"])
def test_a_parameter_and_a_value_may_differ_in_case_alone(engine: str) -> None:
    class Both(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Parameter(2 * torch.eye(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            w = torch.linspace(0.1, 0.9, 9, dtype=x.dtype).view(3, 3)
            h = torch.tanh(h @ self.W + x + torch.tanh(h) @ w)
            return h, h

    net, x = lp.Recurrent(Both().double(), engine=engine), torch.ones(3, 2, 3, dtype=torch.float64) / 9
    assert lp.check_gradients(net, x).ok


@pytest.mark.parametrize("engine", ["reference", "stepwise", "cpu"])
def test_resets_go_back_to_an_initial_state_of_another_precision(engine: str) -> None:
    """The cell has no parameter and reads integers: nobody tells it the precision of the state that is passed."""

    class Ones(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)

        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
            return torch.ones(batch, 3, device=device, dtype=dtype)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.sin(h)
            return h, h

    resets = torch.tensor([[False, True, False], [True, False, False], [False, False, False], [True, False, False]])
    outputs, _ = lp.Recurrent(Ones(), engine=engine)(INTEGERS, floats(3, 3), resets=resets)
    torch.testing.assert_close(outputs[3, 0], torch.ones(3, dtype=torch.float64).sin())
    torch.testing.assert_close(outputs[1, 1], torch.ones(3, dtype=torch.float64).sin().sin())


def test_a_value_without_elements_is_left_to_the_reference() -> None:
    class Neighbours(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.value = nn.Linear(3, 3)

        def forward(self, x: Tensor, h: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + h + self.value(memory[:, 1:] * memory[:, :-1]).sum(1))
            return h, h

    net, context = lp.Recurrent(Neighbours().double()), floats(3, 1, 3, seed=1)
    assert lp.check_gradients(net, X, context=context).ok
    assert "loses the rows of a value without elements" in net.explain(X, context=context)
