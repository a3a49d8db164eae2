"""One output per row, at the row's own end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.cells.examples import EXAMPLES
from tests.errors.said import said
from tests.nets.twins import ENGINES, close, gradients, normal, shaken, somewhere, state_like


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.calls = nn.Linear(4, 2), 0

    def forward(self, state: Any) -> Tensor:
        self.calls += 1
        return self.read(state.h)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_head_reads_each_rows_own_end_and_runs_once(engine: str) -> None:
    net = shaken(lp.Summary(lp.LSTM(3, 4), Counted(), reads="state", engine=engine))
    whole = lp.Recurrent(net.net.cell.cell, engine="reference")
    x, state = normal(6, 3, 3, grad=True), state_like(net, 3)
    for lengths in (None, [6, 1, 3]):
        before = net.head.calls
        got = net(x, state, lengths=lengths, resets=somewhere(6, 3))
        assert net.head.calls == before + 1
        assert got[0].shape == (3, 2)
        final = whole(x, state, lengths=lengths, resets=somewhere(6, 3))[1]
        wanted = net.head.read(final.h), final
        close(got, wanted)
        sources = [x, *net.parameters()]
        close(gradients(got, sources), gradients(wanted, sources))


def test_a_row_that_ended_knows_nothing_of_what_follows() -> None:
    net = shaken(lp.Summary(lp.GRU(3, 4), nn.Identity()))
    x = normal(6, 3, 3)
    other = x.clone()
    other[2:, 1] = torch.nan
    close(net(x, lengths=[6, 2, 3])[0], net(other, lengths=[6, 2, 3])[0], tolerance=0)
    close(net(x, lengths=[6, 2, 3])[0][1], net(x[:2])[0][1])


def test_the_output_of_the_cell_is_not_computed() -> None:
    net = lp.Summary(lp.Elman(3, 4, 2), nn.Linear(4, 5), reads="state")
    net(normal(3, 2, 3).float())[0].sum().backward()
    assert net.net.cell.cell.V.grad is None
    assert net.net.cell.cell.W.grad is not None


def test_the_head_may_be_a_function() -> None:
    net = lp.Summary(lp.GRU(3, 4), lambda h: h.sum(-1))
    output, final = net(normal(3, 2, 3).float())
    close(output, final.sum(-1), tolerance=0)


def test_a_cell_with_feedback_can_be_forced() -> None:
    cell = lp.Jordan(3, 4, 2).double()
    y = normal(3, 2, 2, seed=4)
    output, final = lp.Summary(cell, lambda o: 2 * o, reads="state")(normal(3, 2, 3), targets=y)
    close(final, y[-1], tolerance=0)
    close(output, 2 * y[-1], tolerance=0)


def test_what_is_fed_back_is_fed_in_a_summary_too() -> None:
    class Choosing(lp.Cell):
        feedback = "o"

        def __init__(self) -> None:
            super().__init__(o=3)

        def feed(self, output: Tensor) -> Tensor:
            return torch.softmax(output, -1)

        def forward(self, x: Tensor, o: Tensor) -> tuple[Tensor, Tensor]:
            return x + o, o

    x = normal(3, 2, 3)
    close(lp.Summary(Choosing(), nn.Identity(), reads="state")(x)[0], lp.Recurrent(Choosing())(x)[1], tolerance=0)


def test_the_explanation_names_the_head() -> None:
    assert "the head, once" in lp.Summary(lp.GRU(3, 4), nn.Identity()).explain(normal(3, 2, 3).float())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("of", ["LSTM", "Elman", "Stack", "Recurrent", "packed", "batch_first"])
def test_the_head_reads_the_output_at_each_rows_own_end(of: str, engine: str) -> None:
    cell = lp.Elman(3, 4, 2) if of == "Elman" else lp.LSTM(3, 4)
    if of == "Stack":
        cell = lp.Stack(lp.LSTM(3, 4), lp.LSTM(4, 4))
    read = lp.Recurrent(cell, engine=engine) if of == "Recurrent" else cell
    options = {} if of == "Recurrent" else {"engine": engine, "batch_first": of == "batch_first"}
    net = shaken(lp.Summary(read, nn.Linear(2 if of == "Elman" else 4, 5), **options))
    whole, x = lp.Recurrent(cell, engine="reference"), normal(6, 3, 3, grad=True)
    for lengths in ([6, 6, 6], [6, 1, 3]):
        if of == "packed":
            got = net(nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
        else:
            got = net(x.transpose(0, 1) if of == "batch_first" else x, lengths=None if min(lengths) == 6 else lengths)
        outputs, final = whole(x, lengths=lengths)
        wanted = net.head(torch.stack([outputs[end - 1, row] for row, end in enumerate(lengths)])), final
        close(got, wanted)
        sources = [x, *net.parameters()]
        close(gradients(got, sources), gradients(wanted, sources))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name]().output_leaf])
def test_the_leaf_a_cell_says_its_output_is_is_its_output(name: str) -> None:
    cell = EXAMPLES[name]()
    output, state = cell(torch.zeros(2, 3))
    leaf = dict(zip(cell.state_names(), [state] if isinstance(state, Tensor) else state, strict=True))[cell.output_leaf]
    assert output is leaf


def test_a_subclass_with_another_forward_does_not_inherit_what_its_output_is() -> None:
    class Doubled(lp.GRU):
        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            output, h = super().forward(x, h)
            return 2 * output, h

    x = normal(3, 2, 3)
    output, final = lp.Summary(Doubled(3, 4).double(), nn.Identity())(x)
    close(output, 2 * final)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_summary_of_both_directions_reads_the_end_of_each(engine: str) -> None:
    both = lp.Bidirectional(lp.LSTM(3, 4), lp.LSTM(3, 2), engine=engine)
    net, x = shaken(lp.Summary(both, nn.Linear(6, 5))), normal(6, 3, 3, grad=True)
    for lengths in (None, [6, 1, 3]):
        got, (_, (ahead, back)) = net(x, lengths=lengths)[0], both(x, lengths=lengths)
        wanted = net.head(torch.cat([ahead.h, back.h], -1))
        close(got, wanted)
        sources = [x, *net.parameters()]
        found = gradients(got, sources)
        close(found, gradients(wanted, sources))
        assert all(gradient is not None for gradient in found)
    of_states = lp.Summary(both, lambda states: states[0].c, reads="state")
    close(of_states(x)[0], both(x)[1][0].c)


def test_a_summary_of_layers_reads_the_end_of_the_last() -> None:
    layers = lp.Layers(lp.Bidirectional(lp.LSTM(3, 4), lp.LSTM(3, 4)), lp.Bidirectional(lp.GRU(8, 2), lp.GRU(8, 2)))
    net, x = shaken(lp.Summary(layers, nn.Identity())), normal(6, 3, 3)
    got, states = net(x, lengths=[6, 1, 3])
    close(got, torch.cat(states[1], -1))


def test_what_a_summary_cannot_read_is_refused() -> None:
    both = lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4))
    said(
        ArgumentError,
        lambda: lp.Summary(lp.GRU(3, 4), nn.Identity(), reads="h"),
        "the argument 'reads'",
        "came      'h'",
    )
    said(
        ArgumentError,
        lambda: lp.Summary(both, nn.Identity(), engine="cpu"),
        "'engine'",
        "lp.Bidirectional(..., engine=...)",
    )
    said(ArgumentError, lambda: lp.Summary(both, nn.Identity()).fold(normal(3, 2, 3)), "a summary of Bidirectional")
    said(ArgumentError, lambda: lp.Stack(both, lp.GRU(8, 4)), "came      Bidirectional", "lp.Layers(")
