"""join: what is kept between the sweeps lies side by side, and nothing else changes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.engine.cpu.target import EXPENSIVE_IN_KERNELS
from leporello.rewrite import differentiate, part, save
from leporello.rewrite.join_saved import join_saved
from leporello.rewrite.save import Saved
from tests.cells.examples import EXAMPLES, step_inputs
from tests.close import assert_same
from tests.rewrite.running import numbers, run

SAVED = "call.saved."  # in front of the names of saved values

STEPS, BATCH = 5, 3
JOINED = ("GRU", "LSTM", "LayerNormLSTM", "ZoneoutLSTM", "Leaky learned")
ALONE = ("Elman", "RNN", "TimeDelay", "Perceptron")  # one value, or none but the states


def saved(cell: lp.Cell, *inputs: Any) -> Saved:
    loop = part(lp.fold(cell, *inputs))
    return save(loop, differentiate(loop), expensive=EXPENSIVE_IN_KERNELS)


@functools.cache
def saved_of(name: str) -> Saved:
    cell = EXAMPLES[name]().double()
    return saved(cell, *step_inputs(cell, BATCH))


def kept(loop: lp.Loop) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The values kept for the other sweep, with their shapes and types."""
    ports = [*loop.inputs, *loop.outputs]
    return {port.name: (port.shape, port.dtype) for port in ports if port.name.startswith(SAVED)}


def values_for(loop: lp.Loop, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random numbers for all inputs that are not given, the same for the same name."""
    values = dict(given)
    for port in loop.inputs:
        if port.name not in values and port.kind != "invariant":
            steps = (STEPS,) if port.kind in ("sequence", "draw") else ()
            rows = (BATCH,) if port.rows else ()
            drawn = numbers(*steps, *rows, *port.shape, seed=sum(map(ord, port.name)))
            values[port.name] = drawn.to(port.dtype)
    return values


@torch.no_grad()
def sweeps(pair: Saved) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The results of both sweeps, the second on what the first has kept."""
    invariants = {
        port.name: pair.forward.invariant(port.name) for port in pair.forward.inputs if port.kind == "invariant"
    }
    forward = run(pair.forward, values_for(pair.forward, {}))
    given = {name: value for name, value in forward.items() if name.startswith(SAVED)}
    backward = run(pair.backward, values_for(pair.backward, given), invariants)
    return {name: value for name, value in forward.items() if not name.startswith(SAVED)}, backward


@pytest.mark.parametrize("name", [*JOINED, *ALONE])
def test_both_sweeps_give_the_same_bits(name: str) -> None:
    pair = saved_of(name)
    for found, wanted in zip(sweeps(join_saved(pair)), sweeps(pair), strict=True):
        assert_same(found, wanted, name)


@pytest.mark.parametrize("name", JOINED)
def test_kept_values_of_a_type_are_one_sequence(name: str) -> None:
    pair = saved_of(name)
    joined = join_saved(pair)
    states = {*pair.befores.values()}
    for dtype in (torch.float64, torch.bool):
        before = [shape for own, (shape, kind) in kept(pair.forward).items() if own not in states and kind == dtype]
        after = {
            own: shape for own, (shape, kind) in kept(joined.forward).items() if own not in states and kind == dtype
        }
        assert len(after) == (1 if before else 0)
        assert [*after.values()] == ([(sum(size for (size,) in before),)] if before else [])
        assert all(own.startswith(f"{SAVED}joined") for own in after)
    assert {own for own in kept(joined.forward) if own not in states} == {
        own for own in kept(joined.backward) if own not in states
    }


@pytest.mark.parametrize("name", JOINED)
def test_the_outputs_of_the_loop_and_the_states_kept_stay_as_they_are(name: str) -> None:
    pair = saved_of(name)
    joined = join_saved(pair)
    assert joined.befores == pair.befores
    own = [port for port in pair.forward.outputs if not port.name.startswith(SAVED)]
    assert [port for port in joined.forward.outputs if not port.name.startswith(SAVED)] == own
    assert joined.forward.inputs == pair.forward.inputs
    assert joined.backward.outputs == pair.backward.outputs
    assert {*pair.befores.values()} <= {port.name for port in joined.forward.outputs}


@pytest.mark.parametrize("name", ALONE)
def test_where_there_is_nothing_to_join_the_pair_stays_as_it_is(name: str) -> None:
    pair = saved_of(name)
    assert join_saved(pair) is pair


class Kinds(lp.Cell):
    """Keeps rows, a matrix per row, and one row of another type."""

    def __init__(self) -> None:
        super().__init__(h=4)
        self.W, self.V = (nn.Parameter(numbers(4, 4, seed=seed) / 4) for seed in (2, 3))
        self.H = nn.Parameter(numbers(2, 2, seed=4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.sigmoid(h @ self.W), torch.tanh(h @ self.V)
        heads = torch.tanh(h.view(-1, 2, 2) @ self.H)
        h = torch.tanh(a * b + heads.flatten(1) + x) + torch.tanh(a.float()).double()
        return h, h


def test_matrices_and_a_value_without_others_of_its_type_are_not_joined() -> None:
    pair = saved(Kinds(), numbers(BATCH, 4))
    joined = join_saved(pair)
    before, after = kept(pair.forward), kept(joined.forward)
    loose = {own: form for own, form in before.items() if len(form[0]) != 1 or form[1] == torch.float32}
    assert {len(shape) for shape, _ in loose.values()} == {1, 2}
    assert {own: form for own, form in after.items() if own in before} == loose
    assert len(after) == len(loose) + 1
    for found, wanted in zip(sweeps(joined), sweeps(pair), strict=True):
        assert_same(found, wanted, "kinds")
