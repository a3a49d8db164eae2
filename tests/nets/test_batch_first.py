"""batch_first holds for inputs, outputs, targets, resets and masks alike; states have the batch in front anyway."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import leporello as lp
from tests.nets.twins import close, gradients, normal, shaken, somewhere, state_like

LENGTH, BATCH = 5, 3
MADE = {
    "Recurrent": lambda first: lp.Recurrent(lp.Feedback(lp.LSTM(5, 2)), batch_first=first),
    "recorded": lambda first: lp.Recurrent(lp.record(lp.Jordan(3, 4, 2)), batch_first=first),
    "Summary": lambda first: lp.Summary(lp.Jordan(3, 4, 2), nn.Identity(), batch_first=first),
    "Bidirectional": lambda first: lp.Bidirectional(lp.GRU(3, 4), lp.LSTM(3, 2), batch_first=first),
    "Layers": lambda first: lp.Layers(
        lp.Bidirectional(lp.RNN(3, 2), lp.RNN(3, 2), batch_first=first), lp.Recurrent(lp.RNN(4, 3), batch_first=first)
    ),
}
FORCED = ("Recurrent", "recorded", "Summary")


@functools.cache
def pair(name: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    first, second = MADE[name](True), MADE[name](False)
    second.load_state_dict(first.state_dict())
    return shaken(first), shaken(second)


def turned(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: leaf.transpose(0, 1), tree)


@pytest.mark.parametrize("name", MADE)
def test_every_argument_and_output_has_the_batch_in_front(name: str) -> None:
    batch_first, time_first = pair(name)
    x, state = normal(LENGTH, BATCH, 3, grad=True), state_like(time_first, BATCH)
    arguments = {"resets": somewhere(LENGTH, BATCH)}
    if name in FORCED:
        arguments |= {"targets": normal(LENGTH, BATCH, 2, seed=4), "forcing": somewhere(LENGTH, BATCH, 0.5, seed=6)}
    wanted = time_first(x, state, lengths=[5, 2, 4], **arguments)
    outputs, final = batch_first(turned(x), state, lengths=[5, 2, 4], **turned(arguments))
    close((outputs if name == "Summary" else turned(outputs), final), wanted)
    sources = [x, *torch.utils._pytree.tree_leaves(state)]
    got = (outputs if name == "Summary" else turned(outputs), final)
    close(gradients(got, sources), gradients(wanted, sources))


def test_class_targets_have_the_batch_in_front_too() -> None:
    batch_first, time_first = pair("Recurrent")
    x, y = normal(LENGTH, BATCH, 3), torch.arange(LENGTH * BATCH).reshape(LENGTH, BATCH) % 2
    with torch.no_grad():
        close(turned(batch_first(x.transpose(0, 1), targets=y.T)[0]), time_first(x, targets=y)[0])


@pytest.mark.parametrize("name", ["Recurrent", "Bidirectional", "Layers"])
def test_packed_inputs_leave_the_other_arguments_with_the_batch_in_front(name: str) -> None:
    batch_first, time_first = pair(name)
    x, resets, lengths = normal(LENGTH, BATCH, 3), somewhere(LENGTH, BATCH), torch.tensor([3, 5, 2])
    arguments = {"resets": resets}
    if name in FORCED:
        arguments |= {"targets": normal(LENGTH, BATCH, 2, seed=4), "forcing": somewhere(LENGTH, BATCH, 0.5, seed=6)}
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    with torch.no_grad():
        outputs, final = batch_first(packed, **turned(arguments))
        wanted = time_first(x, lengths=lengths, **arguments)
    close((pad_packed_sequence(outputs)[0], final), wanted)


def test_a_step_has_no_length_axis_either_way() -> None:
    x, y = normal(BATCH, 3), normal(BATCH, 2, seed=4)
    reset, coin = torch.tensor([True, False, True]), torch.tensor([False, True, True])
    state = state_like(pair("Recurrent")[0], BATCH, grad=False)
    with torch.no_grad():
        got, wanted = (net.step(x, state, reset=reset, target=y, forcing=coin) for net in pair("Recurrent"))
    close(got, wanted, tolerance=0)


def test_plain_steps_of_a_system_without_input_come_out_with_the_batch_in_front() -> None:
    net = lp.Recurrent(lambda x, s: (s, s + 1), batch_first=True)
    outputs, _ = net(None, torch.zeros(BATCH, 1), steps=LENGTH)
    assert outputs.shape == (BATCH, LENGTH, 1)
    assert outputs[0].flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_draws_and_explanations_read_the_arguments_alike() -> None:
    net = lp.Recurrent(shaken(lp.ZoneoutLSTM(3, 4)), batch_first=True)
    x = normal(BATCH, LENGTH, 3)
    draws = net.draw(x, resets=somewhere(BATCH, LENGTH))
    assert all(draw.shape[:2] == (LENGTH, BATCH) for draw in draws)
    with torch.no_grad():
        close(net(x, draws=draws), net(x, draws=draws), tolerance=0)
    assert "engine   stepwise" in net.explain(x, resets=somewhere(BATCH, LENGTH))
    assert "from the end" in pair("Bidirectional")[0].explain(normal(BATCH, LENGTH, 3), resets=somewhere(BATCH, LENGTH))
