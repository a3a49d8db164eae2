"""Other numbers than float64: float32, bfloat16, complex ones; autocast; integer inputs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.modules.twins import ENGINES, agrees_with_the_plain_loop, close, gradients, normal, shaken, somewhere

# What rounding may add over a few steps, of the largest value: some hundred units in the last place.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


def grown(net: lp.Recurrent, dtype: torch.dtype) -> list[Tensor | None]:
    """Outputs and gradients in another dtype, in float64."""
    net = copy.deepcopy(net).to(dtype)
    x = normal(6, 3, 3).to(dtype).requires_grad_()
    outputs, state = net(x, lengths=[6, 2, 4], resets=somewhere(6, 3))
    assert outputs.dtype == dtype
    assert all(leaf.dtype == dtype for leaf in torch.utils._pytree.tree_leaves(state))
    found = gradients((outputs, state), [x, *net.parameters()])
    assert all(gradient.dtype == dtype for gradient in found)
    return [value.detach().double() for value in (outputs, *torch.utils._pytree.tree_leaves(state), *found)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "cell", [lp.LSTM(3, 4), lp.LayerNormLSTM(3, 4), lp.Elman(3, 4, 2)], ids=["LSTM", "norm", "Elman"]
)
def test_narrower_floats_give_nearly_the_same(cell: lp.Cell, engine: str) -> None:
    net = lp.Recurrent(shaken(copy.deepcopy(cell)), engine=engine)
    wanted = grown(net, torch.float64)
    for dtype, tolerance in TOLERANCE.items():
        close(grown(net, dtype), wanted, tolerance=tolerance * 4, what=str(dtype))


class Rotating(lp.Cell):
    """h' = lambda h + B x, all complex; the output is C h'."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.rate = nn.Parameter(0.9 * torch.exp(1j * normal(4)))
        self.B = nn.Parameter(normal(4, 3, dtype=torch.complex128))
        self.C = nn.Parameter(normal(2, 4, dtype=torch.complex128))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.rate * h + x @ self.B.T
        return h @ self.C.T, h


@pytest.mark.parametrize("engine", ENGINES)
def test_a_complex_recurrence_gives_what_the_plain_loop_gives(engine: str) -> None:
    net = lp.Recurrent(Rotating(), engine=engine)
    x = normal(6, 3, 3, dtype=torch.complex128, grad=True)
    outputs, state = agrees_with_the_plain_loop(net, x)
    assert outputs.dtype == state.dtype == torch.complex128
    agrees_with_the_plain_loop(net, x, lengths=[6, 2, 4], resets=somewhere(6, 3))


class Oscillating(lp.Cell):
    """A complex state between real inputs and real outputs."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.angle, self.B, self.C = nn.Parameter(normal(4)), nn.Linear(3, 4), nn.Linear(4, 2)

    def initial_state(self, batch: int, **options: object) -> Tensor:
        return torch.zeros(batch, 4, dtype=torch.complex128)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = 0.9 * torch.exp(1j * self.angle) * h + self.B(x)
        return self.C(h.real) + self.C(h.imag), h


@pytest.mark.parametrize("engine", ENGINES)
def test_a_complex_state_may_lie_between_real_values(engine: str) -> None:
    net = lp.Recurrent(Oscillating().double(), engine=engine)
    x = normal(6, 3, 3, grad=True)
    outputs, state = agrees_with_the_plain_loop(net, x, resets=somewhere(6, 3))
    assert (outputs.dtype, state.dtype) == (torch.float64, torch.complex128)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "cell", [lp.LSTM(3, 8), lp.Elman(3, 8, 2), lp.LayerNormLSTM(3, 8)], ids=["LSTM", "Elman", "norm"]
)
def test_under_autocast_the_state_keeps_its_dtype_and_gradients_are_close(cell: lp.Cell, engine: str) -> None:
    net = lp.Recurrent(copy.deepcopy(cell), engine=engine)
    x = normal(6, 3, 3, dtype=torch.float32, grad=True)
    sources = [x, *net.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        got = net(x, lengths=[6, 2, 4])
        inside = gradients(got, sources)
    assert all(leaf.dtype == torch.float32 for leaf in torch.utils._pytree.tree_leaves(got[1]))
    assert all(gradient.dtype == torch.float32 for gradient in inside)
    wanted = net(x, lengths=[6, 2, 4])
    assert wanted[0].dtype == torch.float32
    exact = gradients(wanted, sources)
    close(
        [value.float() for value in torch.utils._pytree.tree_leaves(got)],
        list(torch.utils._pytree.tree_leaves(wanted)),
        3e-2,
    )
    close(inside, exact, tolerance=6e-2)
    assert any(not torch.equal(a, b) for a, b in zip(inside, exact, strict=True))  # it did compute in bfloat16


@pytest.mark.parametrize("engine", ENGINES)
def test_autocast_and_not_do_not_disturb_each_other(engine: str) -> None:
    net = lp.Recurrent(lp.RNN(3, 4), engine=engine)
    x = normal(4, 2, 3, dtype=torch.float32)
    with torch.no_grad():
        before = net(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            assert net(x)[0].dtype == torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                assert torch.equal(net(x)[0], before)
            plain = net.cell(x[0])[0]
        assert torch.equal(net(x)[0], before)
    assert plain.dtype == torch.bfloat16


@pytest.mark.parametrize("engine", ENGINES)
def test_integer_inputs_are_read_as_they_are(engine: str) -> None:
    class Embedded(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.table, self.step = nn.Embedding(5, 3), lp.RNN(3, 4)

        def forward(self, token: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return self.step(self.table(token), h)

    net = lp.Recurrent(shaken(Embedded()), engine=engine)
    tokens = torch.randint(5, (6, 3), generator=torch.Generator().manual_seed(0))
    outputs, _ = agrees_with_the_plain_loop(net, tokens, lengths=[6, 1, 4])
    assert outputs.dtype == torch.float64


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_and_states_may_be_integers_and_booleans(engine: str) -> None:
    def step(x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        total, count = state
        total, count = total + x, count + 1
        return {"mean": total / count, "large": total > 1, "count": count}, (total, count)

    net = lp.Recurrent(step, engine=engine)
    x = normal(4, 2, 3, grad=True)
    start = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.int64)
    outputs, (total, count) = agrees_with_the_plain_loop(net, x, start)
    close(total, x.sum(0))
    assert (outputs["large"].dtype, count.dtype) == (torch.bool, torch.int64)
    assert count.tolist() == [[4], [4]]
    assert not outputs["count"].requires_grad
