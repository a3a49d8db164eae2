"""save: what passes from the forward sweep to the backward one is all that is needed, and nothing else."""

from __future__ import annotations

import functools

import pytest
import torch

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.engine.cpu.target import EXPENSIVE_IN_KERNELS
from leporello.rewrite import differentiate, prune, save
from leporello.rewrite.save import Saved
from tests.cells.examples import EXAMPLES, KINDS, step_inputs

SAVED = "call.saved."  # in front of the names of saved values


@functools.cache
def saved(name: str) -> tuple[lp.Loop, lp.Loop, Saved]:
    cell = EXAMPLES[name]()
    forward = lp.fold(cell.double(), *step_inputs(cell, 3))
    backward = differentiate(forward)
    return forward, backward, save(forward, backward)


def names(ports: tuple, prefix: str) -> set[str]:
    return {port.name for port in ports if port.name.startswith(prefix)}


@pytest.mark.parametrize("name", KINDS)
def test_everything_saved_is_read_by_the_backward_sweep(name: str) -> None:
    _, _, pair = saved(name)
    read = names(pair.backward.inputs, SAVED) | set(pair.befores.values())
    assert names(pair.forward.outputs, SAVED) <= read
    used = {node for node in pair.backward.placeholders if node.users or node in pair.backward.results}
    for port, node in zip(pair.backward.inputs, pair.backward.placeholders, strict=True):
        assert node in used or port.kind == "state", port.name


@pytest.mark.parametrize("name", KINDS)
def test_everything_the_backward_sweep_reads_is_there(name: str) -> None:
    forward, _, pair = saved(name)
    outputs = {port.name for port in pair.forward.outputs if port.kind == "sequence"}
    assert names(pair.backward.inputs, SAVED) <= outputs
    assert {name.removeprefix("output.") for name in names(pair.backward.inputs, "output.")} <= outputs
    assert {name.removeprefix("before.") for name in names(pair.backward.inputs, "before.")} == set(pair.befores)
    assert set(pair.befores.values()) <= outputs
    assert pair.forward.outputs[: len(forward.outputs)] == forward.outputs


@pytest.mark.parametrize("name", KINDS)
def test_no_product_of_the_forward_step_is_computed_again(name: str) -> None:
    _, backward, pair = saved(name)

    def products(loop: lp.Loop) -> int:
        return sum(node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) for node in loop.nodes)

    assert products(pair.backward) <= products(prune(backward))
    wanted = sum(port.kind == "total" and len(port.shape) >= 2 for port in pair.backward.outputs)
    assert products(pair.backward) <= 2 * products(pair.forward) + wanted


def test_an_lstm_saves_its_gates_and_its_state_and_no_more() -> None:
    forward, backward, pair = saved("LSTM")

    def width(pair: Saved) -> int:
        return sum(port.shape[-1] for port in pair.forward.outputs if port.name.startswith(SAVED))

    assert width(pair) == 6 * 5  # four gates, the cell state and its tanh; the output is there anyway
    assert width(save(forward, backward, expensive=EXPENSIVE_IN_KERNELS)) == 5 * 5  # tanh is cheap in kernels


def test_what_no_wanted_gradient_needs_is_not_saved() -> None:
    """The last layer's matrix: its gradient asks for the state and goes back through no step."""
    forward = lp.fold(lp.Leaky(3, 5, 2, alpha=0.2), torch.zeros(2, 3))
    pair = save(forward, differentiate(forward, wanted=[port.name == "V" for port in forward.inputs]))
    assert names(pair.forward.outputs, SAVED) == names(pair.backward.inputs, SAVED)
    assert len(names(pair.forward.outputs, SAVED)) == 1
    assert not pair.befores


def test_nothing_is_saved_where_no_gradient_is_wanted() -> None:
    forward = lp.fold(lp.LSTM(3, 5), torch.zeros(2, 3))
    pair = save(forward, differentiate(forward, wanted=[False] * len(forward.inputs)))
    assert names(save(forward, differentiate(forward)).forward.outputs, SAVED)
    assert not names(pair.forward.outputs, SAVED)
    assert not pair.befores


def test_a_call_without_gradients_plans_nothing_to_save() -> None:
    net, inputs = lp.Recurrent(lp.LSTM(3, 5)), torch.zeros(4, 2, 3)
    with torch.no_grad():
        net(inputs)
        plan, _ = net._plan_cache.plan(net.cell, checked_call(net.cell, inputs, None), net.gradient, net.engine)
    assert "saved" not in vars(plan)
    assert plan.plain.loop.outputs == plan.loop.outputs
