"""torch.compile of a network gives one graph, and in it what the network gives by itself, gradients included."""

from __future__ import annotations

import shutil
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import leporello as lp
from tests.call.compiling import _compiler_begins_anew, agrees_with_eager, compiled  # noqa: F401
from tests.nets.twins import FASTEST, close, crossed, normal, shaken, somewhere, state_like, thoroughly

LENGTHS = torch.tensor([5, 1, 3])


class Own(lp.Cell):
    """A user's step: plain attributes, a buffer, a constant, a computed weight; outputs in a tree with a gap."""

    def __init__(self) -> None:
        super().__init__(learned=True, h=4, n=1)
        self.U, self.W = nn.Linear(3, 4), parametrizations.weight_norm(nn.Linear(4, 4))
        self.rate, self.squash = 0.9, torch.tanh
        self.register_buffer("shift", torch.linspace(-1, 1, 4))

    def forward(self, x: Tensor, state: Any) -> tuple[Any, Any]:
        h, n = state
        scale = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=x.dtype)
        h = self.rate * h + self.squash(self.U(x) + self.W(h) * scale + self.shift)
        return {"h": h, "nothing": None, "pair": (h.sum(-1), n)}, (h, n + 1)


CELLS = {
    "Elman": lambda: lp.Elman(3, 4, 2),
    "LSTM": lambda: lp.LSTM(3, 4),
    "GRU": lambda: lp.GRU(3, 4),
    "Jordan": lambda: lp.Jordan(3, 4, 2),
    "Own": Own,
}


@pytest.mark.parametrize(("cell", "engine"), crossed(CELLS, cpu=("Elman", "LSTM", "Own"), stepwise=["Jordan"]))
def test_a_compiled_net_gives_what_it_gives_by_itself(cell: str, engine: str) -> None:
    net = lp.Recurrent(shaken(CELLS[cell]()), engine=engine)
    agrees_with_eager(net, normal(5, 3, 3, grad=True))


@pytest.mark.parametrize("engine", FASTEST)
def test_a_state_lengths_and_resets_are_compiled(engine: str) -> None:
    net = lp.Recurrent(shaken(Own()), engine=engine)
    x = normal(5, 3, 3, grad=True)
    agrees_with_eager(net, x, state_like(net, 3), lengths=LENGTHS, resets=somewhere(5, 3))


def test_lengths_may_be_a_list() -> None:
    agrees_with_eager(lp.Recurrent(shaken(lp.GRU(3, 4))), normal(5, 3, 3, grad=True), lengths=[5, 1, 3])


def test_batch_first_holds_in_a_graph() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), batch_first=True)
    agrees_with_eager(net, normal(3, 5, 3, grad=True), lengths=LENGTHS, resets=somewhere(3, 5))


def test_a_graph_gives_out_no_memory_that_another_result_writes_to() -> None:
    net = lp.Recurrent(shaken(lp.RNN(3, 4)), batch_first=True)
    outputs, state = compiled(net, "aot_eager")(normal(3, 5, 3, grad=True))
    before = state.clone()
    with torch.no_grad():
        outputs.zero_()
    assert torch.equal(state, before)


@pytest.mark.parametrize("forcing", [None, 0, 0.4, torch.tensor(0.4), somewhere(5, 3)], ids=str)
def test_targets_and_forcing_are_compiled(forcing: Any) -> None:
    net = lp.Recurrent(shaken(lp.Jordan(3, 4, 2)))
    agrees_with_eager(net, normal(5, 3, 3, grad=True), targets=normal(5, 3, 2, grad=True), forcing=forcing)


def test_targets_may_be_classes() -> None:
    classes = torch.tensor([[0, 1, 1]] * 5)
    agrees_with_eager(lp.Recurrent(shaken(lp.Jordan(3, 4, 2))), normal(5, 3, 3, grad=True), targets=classes)


@pytest.mark.parametrize("engine", FASTEST)
def test_a_truncated_gradient_is_cut_at_the_same_borders(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine, gradient=lp.Truncated(2))
    agrees_with_eager(net, normal(5, 3, 3, grad=True), state_like(net, 3), lengths=LENGTHS)


def test_a_system_without_input_is_compiled() -> None:
    net = lp.Recurrent(shaken(lp.Feedback(lp.GRU(2, 2))))
    agrees_with_eager(net, None, state_like(net, 3), steps=4)


def test_inputs_and_outputs_may_be_trees() -> None:
    Pair = namedtuple("Pair", "numbers words")

    class Reads(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.U, self.E = nn.Linear(3, 4), nn.Embedding(6, 4)

        def forward(self, x: Any, h: Tensor) -> tuple[Any, Any]:
            h = torch.tanh(self.U(x["pair"].numbers) + self.E(x["pair"].words) + h)
            return Pair(h, [h * 2]), h

    words = torch.tensor([[0, 5, 2]] * 5)
    agrees_with_eager(lp.Recurrent(shaken(Reads())), {"pair": Pair(normal(5, 3, 3, grad=True), words)})


@pytest.mark.parametrize("engine", FASTEST)
def test_random_numbers_are_drawn_anew_at_every_call_of_a_graph(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.ZoneoutLSTM(3, 4)), engine=engine)
    x = normal(5, 3, 3, grad=True)
    agrees_with_eager(net, x)
    graph = compiled(net)
    assert not torch.equal(graph(x)[0], graph(x)[0])
    draws = net.draw(x)
    close(graph(x, draws=draws), net(x, draws=draws))


def test_one_step_is_compiled() -> None:
    net = lp.Recurrent(shaken(lp.LSTM(3, 4)))
    reset = torch.tensor([True, False, True])
    agrees_with_eager(net, normal(3, 3, grad=True), state_like(net, 3), function=net.step, reset=reset)


@pytest.mark.parametrize("batch_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_both_directions_are_compiled(batch_first: bool) -> None:
    net = lp.Bidirectional(shaken(lp.GRU(3, 4)), shaken(lp.LSTM(3, 2), seed=1), batch_first=batch_first)
    shape = (3, 5) if batch_first else (5, 3)
    agrees_with_eager(net, normal(*shape, 3, grad=True), lengths=LENGTHS, resets=somewhere(*shape))


def test_stacks_layers_summaries_and_records_are_compiled() -> None:
    x = normal(5, 3, 3, grad=True)
    stack = lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 2))
    agrees_with_eager(lp.Recurrent(shaken(lp.record(stack))), x)
    agrees_with_eager(shaken(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2))), x, lengths=LENGTHS)
    layers = lp.Layers(lp.Bidirectional(lp.RNN(3, 2), lp.RNN(3, 2)), lp.Recurrent(lp.GRU(4, 2)))
    agrees_with_eager(shaken(layers), x)


class Tagger(nn.Module):
    """A net with modules of torch around it."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 3), nn.Linear(4, 2)
        self.net = lp.Recurrent(lp.GRU(3, 4), engine=engine)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        outputs, state = self.net(self.embed(words).tanh(), lengths=lengths)
        return self.head(outputs).log_softmax(-1) + state.mean()


@pytest.mark.parametrize("engine", FASTEST)
def test_a_model_around_a_net_is_one_graph(engine: str) -> None:
    model, words = shaken(Tagger(engine)), torch.tensor([[0, 6, 2]] * 5)
    agrees_with_eager(model, words, LENGTHS)
    seen = torch._dynamo.explain(model)(words, LENGTHS)
    assert (seen.graph_count, seen.graph_break_count) == (1, 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler of torch.compile needs g++")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when it imports its compiler
@pytest.mark.parametrize("engine", thoroughly("cpu", "stepwise"))
def test_the_default_compiler_agrees(engine: str) -> None:
    agrees_with_eager(shaken(Tagger(engine)), torch.tensor([[0, 6, 2]] * 5), LENGTHS, backend="inductor")


def test_length_1_and_batch_1_are_compiled() -> None:
    net = lp.Recurrent(shaken(lp.RNN(3, 4)))
    for length, batch in ((1, 1), (1, 3), (5, 1)):
        agrees_with_eager(net, normal(length, batch, 3, grad=True))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_a_step_whose_rows_meet_is_compiled(engine: str) -> None:
    class Meets(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Linear(3, 3)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.W(h) + x - h.mean(0)) / x.shape[0]
            return h, h

    agrees_with_eager(lp.Recurrent(shaken(Meets()), engine=engine), normal(5, 3, 3, grad=True), lengths=LENGTHS)


def test_a_plain_module_with_its_state_is_compiled() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNNCell(3, 4)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = self.cell(x, h)
            return h, h

    agrees_with_eager(lp.Recurrent(shaken(Plain())), normal(5, 3, 3, grad=True), normal(3, 4, grad=True))
