"""The backward loop's split: nothing but gradients of states inside, all weight gradients outside."""

from __future__ import annotations

import functools

import pytest
import torch

import leporello as lp
from leporello.loop.stages import Split
from leporello.loop.value_classes import ValueClass
from leporello.rewrite import differentiate
from tests.cells.examples import EXAMPLES, KINDS, step_inputs


def gradient_split(cell: lp.Cell) -> Split:
    return differentiate(lp.fold(cell.double(), *step_inputs(cell, 3))).split()


@functools.cache
def split_of(name: str) -> Split:
    return gradient_split(EXAMPLES[name]())


@pytest.mark.parametrize("name", KINDS)
def test_all_gradients_of_parameters_are_totals_outside(name: str) -> None:
    split = split_of(name)
    totals = {port.name for port in split.loop.outputs if port.kind == "total"}
    used = {port.name for port in split.loop.inputs if port.kind == "invariant" and port.dtype.is_floating_point}
    assert totals == {name for name in used if not name.startswith("grad.") and name not in split.loop.constants}
    for stage in split.insides:
        assert all(split.classes[node] is ValueClass.VARYING for node in stage.writes)


@pytest.mark.parametrize("name", KINDS)
def test_only_gradients_of_states_are_on_cycles(name: str) -> None:
    split = split_of(name)
    states = {port.name for port in split.loop.inputs if port.kind == "state"}
    forward = {node for node in split.loop.placeholders if node.name.startswith(("input_", "before_"))}
    for stage in split.insides:
        assert set(stage.states) <= states
        assert not any(node in forward for node in stage.writes)


@pytest.mark.parametrize("name", ["Elman", "RNN", "GRU", "LSTM", "LayerNormLSTM"])
def test_one_product_is_left_in_the_backward_step(name: str) -> None:
    inside = split_of(name).inside
    assert inside is not None
    assert inside.products == ["W"]


def test_gains_of_layer_norm_get_their_gradient_after_the_loop() -> None:
    split = gradient_split(lp.LayerNormLSTM(3, 5))
    gains = [
        node
        for port, node in zip(split.loop.outputs, split.loop.results, strict=True)
        if port.kind == "total" and len(port.shape) == 1
    ]
    after = split.stages[split.stages.index(split.insides[0]) + 1]
    assert len(gains) == sum(parameter.dim() == 1 for parameter in lp.LayerNormLSTM(3, 5).parameters())
    assert set(gains) <= set(after.writes)


def test_the_gradient_of_a_parallel_net_is_parallel() -> None:
    assert gradient_split(lp.Perceptron(3, 5, 2)).parallel
    assert gradient_split(lp.TimeDelay(3, 2, 4)).parallel


def test_time_runs_backwards_in_the_gradient_and_forwards_in_its_gradient() -> None:
    loop = lp.fold(lp.GRU(3, 5), torch.zeros(2, 3))
    assert not loop.reverse
    assert differentiate(loop).reverse
    assert not differentiate(differentiate(loop)).reverse
