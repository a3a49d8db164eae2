"""Two cells over one sequence, from both ends: lengths, borders and packings, against pieces cut by hand."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import STEPWISE, close, gradients, normal, said, shaken, somewhere, state_like

LENGTH, BATCH = 7, 3
LENGTHS = [7, 1, 4]


@functools.cache
def net_of(engine: str = "stepwise") -> lp.Bidirectional:
    return shaken(lp.Bidirectional(lp.LSTM(3, 4), lp.GRU(3, 2), engine=engine))


def plain(cell: lp.Cell, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """One row, step by step."""
    outputs = []
    for step in x:
        output, state = cell(step.unsqueeze(0), state)
        outputs.append(output[0])
    return torch.stack(outputs), state


def by_hand(net: lp.Bidirectional, x: Tensor, lengths: list[int], resets: Tensor | None = None) -> tuple[Tensor, Any]:
    """Each row cut at its borders, each piece read from both ends; zeros behind a row's end."""
    rows, ends = [], []
    for row, length in enumerate(lengths):
        borders = [] if resets is None else [t for t in range(1, length) if resets[t, row]]
        pieces = [x[start:end, row] for start, end in zip([0, *borders], [*borders, length], strict=True)]
        read = [(plain(net.ahead.cell, piece), plain(net.back.cell, piece.flip(0))) for piece in pieces]
        joined = torch.cat([torch.cat([ahead[0], back[0].flip(0)], -1) for ahead, back in read])
        rows.append(torch.cat([joined, joined.new_zeros(LENGTH - length, joined.shape[1])]))
        ends.append((read[-1][0][1], read[0][1][1]))  # the last piece ends ahead, the first one ends backwards
    h, c = (torch.cat([ahead[k] for ahead, _ in ends]) for k in (0, 1))
    return torch.stack(rows, 1), ((h, c), torch.cat([back for _, back in ends]))


def same(net: lp.Bidirectional, got: Any, wanted: Any, x: Tensor) -> None:
    close(got, wanted)
    sources = [x, *net.parameters()]
    close(gradients(got, sources), gradients(wanted, sources), what="gradient")


@pytest.mark.parametrize("engine", STEPWISE)
def test_both_directions_respect_lengths_and_borders(engine: str) -> None:
    net, resets = net_of(engine), somewhere(LENGTH, BATCH)
    resets[0] = torch.tensor([True, False, True])
    resets[LENGTHS[2], 2] = resets[LENGTHS[2] + 1, 2] = True  # in the padding, and at its border
    for lengths in (None, LENGTHS):
        for borders in (None, resets):
            x = normal(LENGTH, BATCH, 3)
            if lengths is not None:
                x[torch.arange(LENGTH).unsqueeze(1) >= torch.tensor(lengths)] = torch.nan
            x.requires_grad_()
            with said(f"lengths {lengths is not None}, resets {borders is not None}"):
                wanted = by_hand(net, x, lengths or [LENGTH] * BATCH, borders)
                same(net, net(x, lengths=lengths, resets=borders), wanted, x)


def test_a_reset_cuts_both_directions_at_the_same_border() -> None:
    """What stands on one side of the border changes nothing on the other."""
    net, resets = net_of(), torch.zeros(LENGTH, 1, dtype=torch.bool)
    resets[3] = True
    x = normal(LENGTH, 1, 3)
    whole = net(x, resets=resets)[0]
    for changed, kept in ((slice(0, 3), slice(3, None)), (slice(3, None), slice(0, 3))):
        other = x.clone()
        other[changed] += 1
        outputs = net(other, resets=resets)[0]
        close(outputs[kept], whole[kept], tolerance=0)
        assert (outputs[changed] - whole[changed]).abs().max() > 1e-3


@pytest.mark.parametrize("lengths", [[7, 4, 2], [4, 7, 2]], ids=["sorted", "unsorted"])
def test_packed_sequences_are_given_back_packed(lengths: list[int]) -> None:
    net, x = net_of(), normal(LENGTH, BATCH, 3, grad=True)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=lengths == sorted(lengths, reverse=True))
    outputs, final = net(packed)
    assert torch.equal(outputs.batch_sizes, packed.batch_sizes)
    padded, ends = pad_packed_sequence(outputs)
    assert ends.tolist() == lengths
    same(net, (padded, final), by_hand(net, x, lengths), x)


def test_states_are_a_pair_and_go_in_as_they_come_out() -> None:
    net, x = net_of(), normal(LENGTH, BATCH, 3)
    state = state_like(net, BATCH)
    ahead, back = net.ahead(x, state[0]), net.back(x.flip(0), state[1])
    close(net(x, state), (torch.cat([ahead[0], back[0].flip(0)], -1), (ahead[1], back[1])))
    close(net(x, net.initial_state(BATCH)), net(x), tolerance=0)


def test_trees_go_in_and_come_out() -> None:
    class Two(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2)

        def forward(self, x: Any, h: Tensor) -> tuple[Any, Tensor]:
            h = torch.tanh(h + x["a"] * x["b"])
            return {"h": h, "more": (h + 1, None)}, h

    net = lp.Bidirectional(Two(), Two())
    x = {"a": normal(4, 2, 2), "b": normal(4, 2, 1, seed=2)}
    outputs, _ = net(x, lengths=[4, 2])
    assert outputs["h"].shape == (4, 2, 4)
    assert outputs["more"][1] is None
    close(outputs["more"][0][:2], outputs["h"][:2] + 1)


def test_outputs_that_cannot_be_joined_are_refused() -> None:
    def scalars(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1), h

    with pytest.raises(ArgumentError, match="cannot be joined"):
        lp.Bidirectional(scalars, scalars)(normal(4, 2, 3), (normal(2, 1), normal(2, 1)))
    with pytest.raises(ArgumentError, match="cannot be joined"):
        lp.Bidirectional(lp.GRU(3, 4), lp.record(lp.GRU(3, 4)))(normal(4, 2, 3).float())


def test_another_state_than_a_pair_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no pair"):
        net_of()(normal(LENGTH, BATCH, 3), normal(BATCH, 4))


def test_the_explanation_has_both_directions() -> None:
    text = net_of().explain(normal(LENGTH, BATCH, 3), resets=somewhere(LENGTH, BATCH))
    assert "from the beginning" in text
    assert "from the end" in text
