"""What is printed of networks, and what a notebook shows of them and of reports about them."""

from __future__ import annotations

import html
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.errors.said import said

X = torch.zeros(5, 2, 3)


class Leaky(lp.Cell):
    def __init__(self) -> None:
        super().__init__(h=4, memory=(2, 3))
        self.U = nn.Linear(3, 4)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h = torch.tanh(self.U(x) + state.h)
        return h, (h, state.memory)


def test_a_printed_network_shows_its_sizes() -> None:
    assert str(lp.Recurrent(lp.GRU(3, 4))) == (
        "Recurrent(\n  engine='auto', gradient=Full()\n  (cell): GRU(\n    inputs=3, hidden=4, outputs=4, state: h=4\n"
        "  )\n)"
    )
    text = str(lp.Recurrent(lp.Stack(Leaky(), lp.LSTM(4, 5, learned=True))))
    assert "state: h=4, memory=(2, 3)" in text
    assert "(c): Parameter containing: [torch.FloatTensor of size 5]" in text
    assert "(initial): ParameterDict()" not in text


class Tagger(nn.Module):
    def __init__(self, engine: str) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 3), nn.Linear(6, 9)
        self.net = lp.Bidirectional(lp.LSTM(3, 4), lp.Elman(3, 4, 2), engine=engine)

    def forward(self, words: Tensor, lengths: Any = None) -> Tensor:
        return self.head(self.net(self.embedding(words), lengths=lengths)[0])


@pytest.mark.parametrize("engine", ["stepwise", "reference"])
def test_a_summary_counts_parameters_states_operators_and_work(engine: str) -> None:
    model = Tagger(engine)
    model.embedding.requires_grad_(False)
    found = lp.summary(model, torch.zeros(5, 2, dtype=torch.long), lengths=[5, 2])
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.learned == found.parameters - 27
    assert found.parameter_bytes == 4 * found.parameters
    assert {part.path: (part.kind, part.state) for part in found.parts} == {
        "embedding": ("Embedding", ""),
        "head": ("Linear", ""),
        "net.ahead.cell": ("LSTM", "h 4, c 4"),
        "net.back.cell": ("Elman", "h 4"),
    }
    ahead, back = found.loops
    assert (ahead.path, ahead.engine, ahead.length, ahead.batch) == ("net.ahead", engine, 5, 2)
    assert ahead.state_bytes == 2 * 8 * 4
    if engine == "reference":
        assert back.outside == 0
        return
    products = 2 * 2 * 4 * (3 + 4 + 2)  # of Elman: U x, W h, V h, a multiply-add is two operations, two rows
    assert products < back.flops_inside + back.flops_outside < products + 2 * 40
    assert 2 * 2 * 4 * 4 < back.flops_inside < back.flops_outside
    assert back.inside < ahead.inside
    assert not model.net.ahead._forward_pre_hooks
    text = str(found)
    for line in ("net.ahead.cell  LSTM", "net.back.cell   Elman", "operators in the loop", f"{found.parameters:,}"):
        assert line in text


def test_a_summary_needs_a_network() -> None:
    said(ArgumentError, lambda: lp.summary(lp.GRU(3, 4), X), "the argument 'net' has no loop", "came      GRU")


def test_a_notebook_shows_networks_and_what_is_said_of_them() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    built_in = net._repr_html_()
    assert built_in.startswith("<pre>Recurrent(")
    assert "<svg" in built_in
    plain = lp.Recurrent(Leaky())
    assert "<svg" not in plain._repr_html_()  # nobody knows what its inputs are
    plain(X)
    assert "<svg" in plain._repr_html_()
    explained = net.explain(X)
    assert explained._repr_html_() == f"<pre>{html.escape(explained)}</pre>"
    for other in (lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), lp.Summary(lp.GRU(3, 4), nn.Identity())):
        assert other.explain(X)._repr_html_().startswith("<pre>")
    assert "<table>" in lp.check_gradients(net, X)._repr_html_()
    assert "<table>" in lp.summary(net, X)._repr_html_()


@pytest.mark.parametrize(
    ("network", "drawings"),
    [
        (lp.Recurrent(lp.GRU(3, 4)), 1),
        (lp.Bidirectional(lp.GRU(3, 4), lp.LSTM(3, 4)), 2),
        (lp.Layers(lp.Recurrent(lp.GRU(3, 4)), lp.Recurrent(lp.Elman(4, 3, 2))), 2),
        (lp.Summary(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), nn.Linear(8, 1)), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_notebook_shows_every_network_with_its_steps(network: Any, drawings: int) -> None:
    page = network._repr_html_()
    assert page.startswith(f"<pre>{type(network).__name__}(")
    assert page.count("<svg") == drawings
