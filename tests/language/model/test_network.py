"""The network of a language model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from leporello.errors import ArgumentError
from leporello.gradient import Truncated
from leporello.language.config import Config
from leporello.language.model.network import network_of

OWN = """
import torch
import leporello as lp

class Own(lp.Cell):
    def __init__(self, inputs, hidden, *, gain=1.0):
        super().__init__(h=hidden)
        self.U, self.gain = torch.nn.Linear(inputs, hidden), gain
        self.outputs = hidden

    def forward(self, x, h):
        h = torch.tanh(self.U(x) + self.gain * h)
        return h, h

class Mute(lp.Cell):
    def __init__(self, inputs, hidden):
        super().__init__(h=hidden)

class Odd(lp.Cell):
    def __init__(self, inputs, heads):
        super().__init__(h=heads)

number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_cells.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_cells", raising=False)
    return "my_cells"


def scores(config: Config, size: int = 5, steps: int = 3) -> torch.Tensor:
    net = network_of(config, size)
    return net(torch.arange(steps * 2).reshape(steps, 2) % size)[0]


@pytest.mark.parametrize(
    "cell",
    ["elman", "jordan", "elman-jordan", "rnn", "gru", "lstm", "leaky", "time-delay", "min-gru", "leaky:alpha=0.3"],
)
def test_any_built_in_cell_scores_every_token(cell: str):
    assert scores(Config(cell=cell, hidden=4, engine="reference")).shape == (3, 2, 5)


def test_layers_lie_one_above_the_other():
    for cell in ("gru", "elman"):
        net = network_of(Config(cell=cell, hidden=4, layers=3, engine="reference"), 5)
        assert len(net.cell.inside.cells) == 3
        assert net(torch.zeros(2, 1, dtype=torch.int64))[0].shape == (2, 1, 5)


def test_one_hot_rows_and_an_embedding_of_the_unit_matrix_are_the_same():
    one_hot = network_of(Config(cell="gru", hidden=4, embedding=0, dropout=0.0, engine="reference"), 5)
    embedded = network_of(Config(cell="gru", hidden=4, embedding=5, dropout=0.0, engine="reference"), 5)
    embedded.load_state_dict({**one_hot.state_dict(), "cell.embedding.weight": torch.eye(5)})
    tokens = torch.tensor([[0, 4], [3, 2]])
    assert torch.equal(one_hot(tokens)[0], embedded(tokens)[0])


def test_a_tied_embedding_is_the_matrix_of_the_output_layer():
    net = network_of(Config(hidden=4, embedding=4, tied=True), 7)
    assert net.cell.head.weight is net.cell.embedding.weight
    with pytest.raises(ArgumentError, match=r"cannot be the matrix(.|\n)*embedding=4"):
        network_of(Config(hidden=4, embedding=3, tied=True), 7)


def test_the_same_seed_gives_the_same_parameters():
    first, second, other = (network_of(Config(hidden=4, seed=seed), 5) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_what_jordan_feeds_back_are_probabilities():
    net = network_of(Config(cell="jordan", hidden=4, engine="reference"), 5)
    outputs, state = net(torch.zeros(2, 1, dtype=torch.int64))
    assert torch.allclose(state, torch.softmax(outputs[-1], -1))
    assert net.feedback_leaf() == "o"
    assert network_of(Config(hidden=4), 5).feedback_leaf() is None


def test_gradient_method_and_precision_are_those_asked_for():
    net = network_of(Config(hidden=4, gradient="truncated:7", precision="float64"), 5)
    assert net.gradient == Truncated(7)
    assert next(net.parameters()).dtype == torch.float64


def test_a_cell_of_ones_own_is_built_from_its_module(own_module: str):
    net = network_of(Config(cell=f"{own_module}:Own:gain=0.5", hidden=6, layers=2, engine="reference"), 5)
    assert net.cell.inside.cells[1].gain == 0.5
    assert net(torch.zeros(2, 1, dtype=torch.int64))[0].shape == (2, 1, 5)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("lstn", "nearest +LSTM"),
        ("lstm:3,4", "without sizes"),
        ("lstm+gru", r"several cells(.|\n)*layers=2"),
        ("my_cells:Mute", "no attribute 'outputs'"),
        ("my_cells:Odd", r"does not know(.|\n)*heads"),
        ("my_cells:number", "makes no cell"),
        ("my_cells:Owm", "nearest +Own"),
    ],
)
def test_cells_that_cannot_be_built_are_refused(own_module: str, cell: str, said: str):
    with pytest.raises(ArgumentError, match=said):
        network_of(Config(cell=cell, hidden=4), 5)


@pytest.mark.parametrize("cell", ["elman", "jordan", "elman-jordan", "gru", "lstm"])
def test_the_third_output_depends_on_the_first_three_letters_and_on_nothing_later(cell: str) -> None:
    torch.manual_seed(0)
    word, letters = "machine", sorted(set("machine"))
    tokens = torch.tensor([letters.index(letter) for letter in word[:-1]])
    net = network_of(Config(cell=cell, hidden=8, embedding=4, dropout=0), len(letters)).eval()
    third = net(tokens.unsqueeze(1))[0][2]
    for step in range(len(tokens)):
        changed = tokens.clone()
        changed[step] = letters.index("e")
        assert torch.equal(net(changed.unsqueeze(1))[0][2], third) == (step >= 3), step
