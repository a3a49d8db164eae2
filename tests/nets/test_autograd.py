"""A call as one node of autograd's graph: used twice, kept, changed in place, chained, differentiated again."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.loop.state import leaves_of
from leporello.nets.plain_loop import plain_loop
from tests.cells.examples import EXAMPLES
from tests.nets.twins import (
    ENGINES,
    FASTEST,
    STEPWISE,
    agrees_with_the_plain_loop,
    close,
    crossed,
    gradients,
    normal,
    shaken,
    somewhere,
    thoroughly,
    weighed,
)


def written_out(net: lp.Recurrent, x: torch.Tensor, state: object = None) -> tuple[object, object]:
    return plain_loop(net.cell, checked_call(net.cell, x, state))


@pytest.mark.parametrize("engine", FASTEST)
def test_a_kept_graph_gives_the_same_gradients_again(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.LSTM(3, 4)), engine=engine)
    loss = weighed(net(normal(4, 2, 3)))
    loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in net.parameters()]
    loss.backward()
    close([parameter.grad for parameter in net.parameters()], [2 * gradient for gradient in first], tolerance=1e-14)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("engine", STEPWISE)
def test_outputs_used_twice_get_the_sum_of_both_gradients(engine: str) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine), normal(4, 2, 3, grad=True)
    sources = [x, *net.parameters()]

    def loss(outputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return outputs.sin().sum() + (outputs[1] * outputs[-1]).sum() + (state * outputs[0]).sum() + state.sum()

    got, wanted = loss(*net(x)), loss(*written_out(net, x))
    close(torch.autograd.grad(got, sources), torch.autograd.grad(wanted, sources))


@pytest.mark.parametrize("engine", FASTEST)
def test_parts_of_the_results_may_go_unused(engine: str) -> None:
    net, x = lp.Recurrent(shaken(lp.LSTM(3, 4)), engine=engine), normal(4, 2, 3, grad=True)
    sources = [x, *net.parameters()]
    parts: list[Callable] = [
        lambda outputs, state: outputs[2],
        lambda outputs, state: outputs[:, 1, :2],
        lambda outputs, state: state[0],
        lambda outputs, state: state[1],
    ]
    for part in parts:
        close(gradients(part(*net(x)), sources), gradients(part(*written_out(net, x)), sources), what="gradient")


@pytest.mark.parametrize("engine", STEPWISE)
def test_nets_feed_each_other(engine: str) -> None:
    encoder = lp.Recurrent(shaken(lp.LSTM(3, 4), seed=1), engine=engine)
    decoder = lp.Recurrent(shaken(lp.LSTM(4, 4), seed=2), engine=engine)
    x = normal(4, 2, 3, grad=True)
    sources = [x, *encoder.parameters(), *decoder.parameters()]

    def chained(one: Callable, two: Callable) -> object:
        outputs, state = one(x)
        return two(outputs.flip(0), state)

    got = chained(encoder, decoder)
    wanted = chained(lambda *a: written_out(encoder, *a), lambda *a: written_out(decoder, *a))
    close(got, wanted)
    close(gradients(got, sources), gradients(wanted, sources))


@pytest.mark.parametrize("engine", FASTEST)
def test_a_net_may_read_its_own_outputs(engine: str) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(4, 4)), engine=engine), normal(3, 2, 4, grad=True)
    sources = [x, *net.parameters()]
    got = net(net(net(x)[0])[0])
    wanted = written_out(net, written_out(net, written_out(net, x)[0])[0])
    close(gradients(got, sources), gradients(wanted, sources))


@pytest.mark.parametrize(
    ("name", "engine"),
    crossed(
        ["LSTM", "GRU", "RNN", "Elman", "Perceptron", "MinGRU", "Jordan", "TimeDelay"],
        cpu=("LSTM", "RNN", "Perceptron", "Jordan"),
        stepwise=("LSTM", "Elman", "MinGRU", "TimeDelay"),
    ),
)
def test_results_changed_in_place_raise_or_change_nothing(name: str, engine: str) -> None:
    """Never wrong in silence: torch's own error, or the gradients of the plain loop."""
    net = lp.Recurrent(shaken(EXAMPLES[name]()).eval(), engine=engine)
    x = normal(4, 2, 3, grad=True)
    sources = [x, *net.parameters()]
    for place in range(len(leaves_of(net(x)))):
        wanted = [2 * value if index == place else value for index, value in enumerate(leaves_of(written_out(net, x)))]
        got = leaves_of(net(x))
        if not got[place].requires_grad:
            continue
        try:
            got[place].mul_(2)
            found = gradients(got, sources)
        except RuntimeError as error:
            if not re.search("in-?place", str(error)):
                raise
        else:
            close(got, wanted)
            close(found, gradients(wanted, sources))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("grad", [False, True])
def test_every_result_has_memory_of_its_own(engine: str, grad: bool) -> None:
    """As the plain loop's: a step that gives one value twice, or its input, gives copies."""

    class Repeating(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2, g=2)

        def forward(self, x: torch.Tensor, state: tuple) -> tuple:
            h = torch.tanh(state[0] + state[1] + x)
            return (h, h, x, state[1]), (h, 2 * h)

    x = normal(3, 2, 2, grad=grad)
    results = leaves_of(lp.Recurrent(Repeating(), engine=engine)(x))
    places = [value.untyped_storage().data_ptr() for value in (x, *results)]
    assert len(set(places)) == len(places) == 7


def test_what_was_saved_must_not_change_before_the_backward_sweep() -> None:
    net, x = lp.Recurrent(shaken(lp.LSTM(3, 4))), normal(4, 2, 3, grad=True)
    for saved in (x, net.cell.W):
        loss = weighed(net(x))
        saved.detach().mul_(2)
        with pytest.raises(lp.errors.GraphGone, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("engine", STEPWISE)
def test_gradients_of_gradients_are_those_of_the_plain_loop(engine: str) -> None:
    """A gradient penalty, with lengths and resets."""
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine), normal(4, 2, 3, grad=True)
    more = {"lengths": [4, 2], "resets": somewhere(4, 2)}
    sources = list(net.parameters())

    def penalty(results: object) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(weighed(results), x, create_graph=True)
        return gradient.square().sum()

    got = torch.autograd.grad(penalty(net(x, **more)), sources, allow_unused=True)
    wanted = plain_loop(net.cell, checked_call(net.cell, x, None, **more))
    close(got, torch.autograd.grad(penalty(wanted), sources, allow_unused=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_without_a_state_whose_product_reads_joined_values_has_second_derivatives(engine: str) -> None:
    first, second = nn.Linear(3, 4).double(), nn.Linear(7, 2).double()
    step = lambda x, state: (second(torch.cat([x, first(x)], -1)), state)  # noqa: E731
    x = normal(7, 5, 3, grad=True)
    sources = [x, *first.parameters(), *second.parameters()]

    def twice(outputs: Tensor) -> list[Tensor]:
        once = torch.autograd.grad(outputs.square().sum(), sources, create_graph=True)
        return list(torch.autograd.grad(sum(gradient.square().sum() for gradient in once), sources))

    found = twice(lp.Recurrent(step, engine=engine)(x, ())[0])
    close(found, twice(torch.stack([step(row, ())[0] for row in x])))


def test_hooks_on_outputs_and_parameters_are_called() -> None:
    net, seen = lp.Recurrent(shaken(lp.GRU(3, 4))), []
    outputs, _ = net(normal(4, 2, 3))
    outputs.register_hook(lambda gradient: seen.append("outputs"))
    net.cell.W.register_hook(lambda gradient: seen.append("W"))
    net.cell.U.register_post_accumulate_grad_hook(lambda parameter: seen.append("U"))
    outputs.sum().backward()
    assert sorted(seen) == ["U", "W", "outputs"]


def test_gradients_accumulate_over_calls() -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4))), normal(4, 2, 3)
    weighed(net(x)).backward()
    first = [parameter.grad.clone() for parameter in net.parameters()]
    weighed(net(2 * x)).backward()
    alone = gradients(net(2 * x), list(net.parameters()))
    close([p.grad for p in net.parameters()], [a + b for a, b in zip(first, alone, strict=True)], tolerance=1e-13)


@pytest.mark.parametrize("engine", FASTEST)
def test_the_same_call_gives_the_same_bits(engine: str) -> None:
    net, x = lp.Recurrent(shaken(lp.Stack(lp.LSTM(3, 5), lp.GRU(5, 3))), engine=engine), normal(30, 7, 3, grad=True)
    sources = [x, *net.parameters()]
    one, two = net(x, lengths=list(range(24, 31))), net(x, lengths=list(range(24, 31)))
    close(one, two, tolerance=0)
    close(gradients(one, sources), gradients(two, sources), tolerance=0)


class Peak(lp.Cell):
    """A running maximum of the new state."""

    def __init__(self) -> None:
        super().__init__(h=3, p=1)
        self.W = nn.Parameter(normal(3, 3))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, p = state
        h = torch.tanh(x + h @ self.W)
        p = torch.maximum(p, h.abs().amax(-1, keepdim=True))
        return torch.cat([h, p], -1), (h, p)


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_past_a_rows_end_the_largest_value_of_a_state_is_still_one_of_its_values(engine: str) -> None:
    agrees_with_the_plain_loop(lp.Recurrent(Peak(), engine=engine), normal(5, 2, 3, grad=True), lengths=[5, 2])


GATHERED = {
    "amax": lambda h: h.abs().amax(-1, keepdim=True),
    "amax without its axis": lambda h: h.amax(-1).unsqueeze(-1) * 2,
    "norm": lambda h: torch.linalg.vector_norm(h, float("inf"), -1, keepdim=True),
    "winner": lambda h: h * (h >= h.max(-1, keepdim=True).values),
}


class Mixed(lp.Cell):
    """The new state is a sum of products, cheap to compute again, and the output is gathered from all its values."""

    def __init__(self, gathered: Callable[[Tensor], Tensor]) -> None:
        super().__init__(h=17)
        self.mix = nn.Linear(17, 17, dtype=torch.float64)
        self.gate = nn.Linear(17, 3, dtype=torch.float64)
        self.gathered = gathered

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        one, two, three = torch.softmax(self.gate(state), -1).split(1, -1)
        h = one * state + two * torch.tanh(x + self.mix(state)) + three * torch.sin(x)
        return self.gathered(h), h


@pytest.mark.parametrize("argument", ["lengths", "resets", *thoroughly("nothing")])
@pytest.mark.parametrize("gathered", GATHERED)
@pytest.mark.parametrize("engine", FASTEST)
def test_what_is_gathered_belongs_to_values_that_are_computed_again(engine: str, gathered: str, argument: str) -> None:
    """The largest value is among them, bit by bit, or its gradient is 0 / 0."""
    torch.manual_seed(0)
    given = {"nothing": {}, "lengths": {"lengths": [11, 3, 7, 1]}, "resets": {"resets": torch.rand(11, 4) < 0.2}}
    net = lp.Recurrent(Mixed(GATHERED[gathered]), engine=engine)
    agrees_with_the_plain_loop(net, normal(11, 4, 17, grad=True), **given[argument])


class Sharp(lp.Cell):
    """The new state is far from the one before, and its gradient grows with how far it is from what was gathered."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.U = nn.Linear(3, 4, dtype=torch.float64)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + 1000 * self.U(x)
        return h.logsumexp(-1, keepdim=True), h


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_past_a_rows_end_nothing_overflows(engine: str) -> None:
    torch.manual_seed(3)
    agrees_with_the_plain_loop(lp.Recurrent(Sharp(), engine=engine), 3 * normal(9, 8, 3), lengths=[9, *range(1, 8)])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_minus_sign_that_torch_has_only_noted_is_read(engine: str) -> None:
    net = lp.Recurrent(lp.RNN(1, 1).double(), engine=engine)
    x = torch.complex(normal(1, 1, 1), normal(1, 1, 1)).conj().imag
    start = torch.complex(normal(1, 1), normal(1, 1)).conj().imag
    assert x.is_neg()
    assert start.is_neg()
    for _ in range(3):  # the long way, and warm; of more than one number they would not be contiguous, and copied
        noted, plain = net(x, start)[0], net(x.resolve_neg(), start.resolve_neg())[0]
        close(noted, plain, tolerance=0)
        one, two = (torch.autograd.grad(_conjugated(y), list(net.parameters())) for y in (noted, plain * 1))
        close(one, two, tolerance=1e-14)
        with torch.no_grad():
            close(net.step(x[0], start), net.step(x[0].resolve_neg(), start.resolve_neg()), tolerance=0)


def _conjugated(y: Tensor) -> Tensor:
    """A loss whose gradient torch hands on with a minus sign that is only noted."""
    return torch.complex(torch.zeros_like(y), y).conj().abs().sum()
