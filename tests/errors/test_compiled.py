"""What is wrong with a call reaches the user through torch.compile in our words."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, EngineRefusal
from tests.call.compiling import _compiler_begins_anew, compiled  # noqa: F401
from tests.nets.twins import close

X = torch.zeros(5, 3, 4)
PACKED = nn.utils.rnn.pack_padded_sequence(X, torch.tensor([5, 3, 2]))
WRONG = {
    "the argument 'inputs' has the wrong number of features.": ((torch.zeros(5, 3, 2),), {}, "came      2 features"),
    "the argument 'inputs' has the wrong number of axes.": ((torch.zeros(5, 4),), {}, "[5, 4]"),
    "the step fails on these inputs.": ((X.double(),), {}, "mat1 and mat2 must have the same dtype"),
    "the argument 'lengths' has the wrong shape.": ((X,), {"lengths": torch.tensor([1, 2])}, "(3,)"),
    "the argument 'resets' is not boolean.": ((X,), {"resets": torch.zeros(5, 3)}, "bool (5, 3)"),
    "the state 'h' has the wrong shape.": ((X, torch.zeros(2, 6)), {}, "float32 [3, 6]"),
    "a PackedSequence is not compiled.": ((PACKED,), {}, "pad_packed_sequence"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_can_be_seen_in_forms_is_said_while_the_graph_is_made(what: str) -> None:
    arguments, options, detail = WRONG[what]
    net = lp.Recurrent(lp.RNN(4, 6))
    graph = compiled(net, dynamic=True)
    with pytest.raises(RuntimeError) as caught:
        graph(*arguments, **options)
    text = str(caught.value).replace("\\'", "'")
    assert what in text
    assert detail in text
    close(graph(X), net(X), 1e-6)  # the net works afterwards


LATER: dict[str, dict[str, Any]] = {
    "the argument 'lengths' is out of range.": {"lengths": torch.tensor([5, 6, 1])},
    "the argument 'targets' holds a class that does not exist.": {"targets": torch.full((5, 3), 2)},
    "the argument 'forcing' is no probability.": {"targets": torch.zeros(5, 3, 2), "forcing": 1.5},
}


@pytest.mark.parametrize("what", LATER)
def test_what_can_be_seen_in_numbers_alone_is_said_when_the_graph_runs(what: str) -> None:
    net = lp.Recurrent(lp.Jordan(4, 6, 2))
    with pytest.raises(ArgumentError, match=re.escape(what)):
        compiled(net)(X, **LATER[what])


def test_both_directions_look_at_lengths_before_they_turn() -> None:
    net = lp.Bidirectional(lp.RNN(4, 2), lp.RNN(4, 2))
    with pytest.raises(ArgumentError, match="out of range"):
        compiled(net)(X, lengths=torch.tensor([5, 9, 1]))


def test_gradients_of_gradients_are_refused() -> None:
    x = torch.zeros(5, 3, 4, requires_grad=True)
    net = lp.Recurrent(lp.RNN(4, 6))
    outputs, _ = compiled(net, "eager")(x)
    (first,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    with pytest.raises(EngineRefusal, match="no gradients of gradients"):
        first.sum().backward()
