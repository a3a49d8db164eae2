"""Whole networks one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import close, gradients, normal, shaken, somewhere, state_like

NET = shaken(lp.Layers(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 2)), lp.Recurrent(lp.LSTM(6, 3))))


def test_the_second_reads_the_outputs_of_the_first() -> None:
    x, state = normal(5, 3, 3, grad=True), state_like(NET, 3)
    more = {"lengths": [5, 2, 4], "resets": somewhere(5, 3)}
    first, one = NET.nets[0](x, state[0], **more)
    second, two = NET.nets[1](first, state[1], **more)
    got = NET(x, state, **more)
    close(got, (second, (one, two)), tolerance=0)
    sources = [x, *NET.parameters()]
    close(gradients(got, sources), gradients((second, (one, two)), sources))


def test_layers_of_one_direction_are_a_stack() -> None:
    cells = lp.GRU(3, 4), lp.LSTM(4, 2)
    x = normal(4, 2, 3).float()
    with torch.no_grad():
        close(lp.Layers(*map(lp.Recurrent, cells))(x), lp.Recurrent(lp.Stack(*cells))(x), tolerance=1e-6)


def test_packed_sequences_stay_packed() -> None:
    x = normal(5, 3, 3)
    lengths = torch.tensor([2, 5, 3])
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    with torch.no_grad():
        outputs, final = NET(packed)
        padded, after = NET(x, lengths=lengths)
    assert isinstance(outputs, PackedSequence)
    close(nn.utils.rnn.pad_packed_sequence(outputs)[0], padded)
    close(final, after)


def test_dropout_stands_between_the_networks_packed_or_not() -> None:
    ones, same = lp.Recurrent(lambda x, s: (torch.ones_like(x), s)), lp.Recurrent(lambda x, s: (x, s))
    net = lp.Layers(ones, same, dropout=0.5)
    x, none = torch.ones(20, 10, 30), ((), ())
    for inputs in (x, pack_padded_sequence(x, torch.full((10,), 20))):
        outputs = net(inputs, none)[0]
        values = outputs.data if isinstance(outputs, PackedSequence) else outputs
        assert set(values.unique().tolist()) == {0.0, 2.0}
        assert abs(values.mean().item() - 1) < 0.05
    assert torch.equal(net.eval()(x, none)[0], x)


def test_wrong_layers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one network"):
        lp.Layers()
    with pytest.raises(ArgumentError, match="another number of layers"):
        NET(normal(5, 3, 3), (None,))
    with pytest.raises(ArgumentError, match="'dropout' is no probability"):
        lp.Layers(lp.Recurrent(lp.GRU(3, 4)), dropout=1.5)
