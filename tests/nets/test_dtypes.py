"""Other numbers than float64: float32, bfloat16, complex ones; autocast; integer inputs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.nets.plain_loop import plain_loop
from tests.nets.twins import (
    ALL,
    ENGINES,
    agrees_with_the_plain_loop,
    close,
    gradients,
    normal,
    quickly,
    shaken,
    somewhere,
)

# What rounding may add over a few steps, of the largest value: some hundred units in the last place.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}

OTHERS = [engine for engine in ALL if engine != "cpu"]  # kernels have float32 and float64 alone


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


@pytest.mark.parametrize(
    ("make", "engine"),
    [
        (lp.GRU, "stepwise"),
        (lp.LayerNormLSTM, "reference"),
        *(
            pytest.param(make, engine, marks=pytest.mark.slow)
            for make, engine in [(lp.GRU, "reference"), (lp.LayerNormLSTM, "stepwise")]
        ),
    ],
)
def test_narrower_floats_give_nearly_the_same(make: type, engine: str) -> None:
    net = lp.Recurrent(shaken(make(3, 4)), engine=engine)
    wanted = grown(net, torch.float64)
    for dtype, tolerance in TOLERANCE.items():
        close(grown(net, dtype), wanted, tolerance=2 * tolerance, what=str(dtype))


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


@pytest.mark.parametrize("engine", OTHERS)
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


@pytest.mark.parametrize("engine", OTHERS)
def test_a_complex_state_may_lie_between_real_values(engine: str) -> None:
    net = lp.Recurrent(Oscillating().double(), engine=engine)
    x = normal(6, 3, 3, grad=True)
    outputs, state = agrees_with_the_plain_loop(net, x, resets=somewhere(6, 3))
    assert (outputs.dtype, state.dtype) == (torch.float64, torch.complex128)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("make", quickly([lp.LSTM, lp.LayerNormLSTM], lp.LayerNormLSTM))
def test_under_autocast_the_state_keeps_its_dtype_and_gradients_are_close(make: type, engine: str) -> None:
    net = lp.Recurrent(shaken(make(3, 8)).float(), engine=engine)
    x, lengths = normal(6, 3, 3, dtype=torch.float32, grad=True), [6, 2, 4]
    sources = [x, *net.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = net(x, lengths=lengths)
        got = gradients((outputs, state), sources)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # or gradients are summed in bfloat16
        eager = plain_loop(net.cell, checked_call(net.cell, x, None, lengths=lengths))
        like_eager = gradients(eager, sources)
    assert all(leaf.dtype == torch.float32 for leaf in torch.utils._pytree.tree_leaves(state))
    assert all(gradient.dtype == torch.float32 for gradient in got)
    exact = net(x, lengths=lengths)
    assert exact[0].dtype == torch.float32
    wanted = gradients(exact, sources)
    close([outputs.float(), *state], [exact[0], *exact[1]], tolerance=TOLERANCE[torch.bfloat16])
    close(got, wanted, tolerance=2 * TOLERANCE[torch.bfloat16])
    assert any(not torch.equal(a, b) for a, b in zip(got, wanted, strict=True))  # it did compute in bfloat16
    if engine == "reference":
        close(got, like_eager, tolerance=TOLERANCE[torch.float32])


@pytest.mark.parametrize("engine", OTHERS)
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


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_refuse_narrower_floats_by_name_and_auto_goes_on(dtype: torch.dtype) -> None:
    cell, x = lp.RNN(3, 4).to(dtype), normal(4, 2, 3).to(dtype)
    with pytest.raises(lp.errors.EngineRefusal, match=f"type {str(dtype).removeprefix('torch.')}"):
        lp.Recurrent(cell, engine="cpu")(x)
    net = lp.Recurrent(cell)
    net(x)
    assert "engine   stepwise (chosen by auto; not cpu: kernels do not compute with" in net.explain(x)
