"""States of any structure: taken from their history, moved, parted by rows, pickled; resets from done flags."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest
import torch

import leporello as lp
from tests.nets.twins import close, normal

NAMED = lp.LSTM(3, 4).initial_state(5)
TREES: dict[str, Any] = {
    "a tensor": normal(5, 4),
    "a named tuple": type(NAMED)(normal(5, 4), normal(5, 2, seed=2)),
    "a dict": {"a": normal(5, 4), "b": (normal(5, 1, seed=2), [normal(5, 3, 2, seed=3)])},
    "a stack's": lp.Stack(lp.LSTM(3, 4), lp.Perceptron(4, 3, 2), lp.GRU(2, 3)).initial_state(5),
    "nothing": (),
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


def same_structure(one: Any, other: Any) -> bool:
    return torch.utils._pytree.tree_structure(one) == torch.utils._pytree.tree_structure(other)


@every_tree
def test_a_detached_state_has_the_same_values_and_no_history(tree: Any) -> None:
    grown = torch.utils._pytree.tree_map(lambda leaf: leaf.clone().requires_grad_() * 2, tree)
    free = lp.detach(grown)
    assert same_structure(free, tree)
    close(free, torch.utils._pytree.tree_map(lambda leaf: 2 * leaf, tree), tolerance=0)
    assert not any(leaf.requires_grad for leaf in torch.utils._pytree.tree_leaves(free))


@every_tree
@pytest.mark.parametrize(
    ("index", "count"),
    [
        (2, 1),
        (-1, 1),
        (numpy.int64(3), 1),
        (torch.tensor(3), 1),
        (slice(1, 4), 3),
        ([4, 0], 2),
        (torch.tensor([1, 1, 3]), 3),
        (torch.tensor([True, False, True, False, False]), 2),
    ],
)
def test_some_rows_of_a_state(tree: Any, index: Any, count: int) -> None:
    some = lp.rows(tree, index)
    assert same_structure(some, tree)
    wanted = [int(index)] if count == 1 else index
    close(some, torch.utils._pytree.tree_map(lambda leaf: leaf[wanted], tree), tolerance=0)
    assert all(leaf.shape[0] == count for leaf in torch.utils._pytree.tree_leaves(some))


@every_tree
@pytest.mark.parametrize(
    "index", [2, -1, torch.tensor(3), slice(1, 4), [4, 0], torch.tensor([True, False, True, False, False])]
)
def test_rows_that_are_written_are_read_again_and_the_others_stay(tree: Any, index: Any) -> None:
    before = copy.deepcopy(tree)
    values = torch.utils._pytree.tree_map(lambda leaf: leaf + 7, lp.rows(tree, index))
    after = lp.write_rows(tree, index, values)
    assert same_structure(after, tree)
    close(lp.rows(after, index), values, tolerance=0)
    close(tree, before, tolerance=0)
    close(lp.write_rows(after, index, lp.rows(tree, index)), tree, tolerance=0)


def test_gradients_reach_the_rows_that_are_written_and_those_that_stay() -> None:
    state, values = torch.ones(3, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    (lp.write_rows(state, [0, 2], values) * torch.arange(3)[:, None]).sum().backward()
    assert state.grad.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert values.grad.tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize(
    ("index", "values"),
    [
        ([0], torch.ones(2, 4)),
        ([0, 1], torch.ones(2, 3)),
        ([0], torch.ones(4)),
        ([0], torch.ones(1, 4, dtype=torch.float64)),
        ([0], (torch.ones(1, 4), torch.ones(1, 4))),
    ],
)
def test_rows_of_another_form_are_refused(index: list[int], values: Any) -> None:
    with pytest.raises(lp.errors.StateMismatch, match="another form than the rows that it replaces"):
        lp.write_rows(torch.zeros(3, 4), index, values)


@every_tree
def test_a_state_moves_as_tensors_do(tree: Any) -> None:
    for moved in (lp.to(tree, torch.bfloat16), lp.to(tree, dtype=torch.bfloat16)):
        assert same_structure(moved, tree)
        assert all(leaf.dtype == torch.bfloat16 for leaf in torch.utils._pytree.tree_leaves(moved))
    far = lp.to(tree, "meta")
    assert all(leaf.device.type == "meta" for leaf in torch.utils._pytree.tree_leaves(far))


@every_tree
def test_a_state_can_be_copied_and_pickled(tree: Any) -> None:
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert type(other) is type(tree)
        assert same_structure(other, tree)
        close(other, tree, tolerance=0)


def test_no_state_yet_stays_none() -> None:
    assert lp.detach(None) is None
    assert lp.rows(None, [1]) is None
    assert lp.write_rows(None, [1], None) is None
    assert lp.to(None, torch.float64) is None


def test_named_tuples_have_the_names_of_the_leaves() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4))
    _, state = net(torch.ones(2, 5, 3))
    assert state._fields == ("h", "c")
    assert type(state) is type(NAMED)
    assert torch.equal(state.h, state[0])


def test_rows_of_a_state_continue_as_those_rows() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4)).double()
    with torch.no_grad():
        _, state = net(normal(4, 5, 3))
        outputs, _ = net(normal(3, 5, 3, seed=2), state)
        some, _ = net(normal(3, 5, 3, seed=2)[:, [3, 1]], lp.rows(state, [3, 1]))
    close(some, outputs[:, [3, 1]])


def test_a_plain_tuple_passes_for_a_state() -> None:
    net = lp.Recurrent(lp.LSTM(3, 4)).double()
    h, c = normal(2, 4), normal(2, 4, seed=2)
    with torch.no_grad():
        wanted = net(normal(3, 2, 3), type(NAMED)(h, c))
        for state in ((h, c), [h, c]):
            close(net(normal(3, 2, 3), state), wanted, tolerance=0)


class BeginsWithATuple(lp.Cell):
    """Declares its leaves, reads them by name, and begins with a plain tuple."""

    def __init__(self) -> None:
        super().__init__(h=3, c=3)

    def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Any:
        return torch.zeros(batch, 3, dtype=dtype), torch.ones(batch, 3, dtype=dtype)

    def forward(self, x: Any, state: Any) -> Any:
        return state.h + state.c, (state.c, x + state.h)


def test_a_cell_that_begins_with_a_plain_tuple_keeps_the_names_of_its_leaves() -> None:
    cell, inputs = BeginsWithATuple(), normal(4, 2, 3)
    outputs, state = lp.Recurrent(cell, engine="stepwise")(inputs)
    assert state._fields == ("h", "c")
    inner, _ = lp.Recurrent(lp.Stack(cell, cell), engine="stepwise")(inputs)
    assert torch.equal(cell(inputs[0])[0], outputs[0])
    assert torch.equal(inner[0], outputs[0])


def test_an_episode_done_after_a_step_begins_anew_before_the_next() -> None:
    dones = torch.tensor([[False, True], [True, False], [False, True]])
    assert lp.resets_after(dones).tolist() == [[False, False], [False, True], [True, False]]
    first = torch.tensor([True, False])
    assert lp.resets_after(dones, first).tolist() == [[True, False], [False, True], [True, False]]
    assert lp.resets_after(dones[:1]).tolist() == [[False, False]]
    assert lp.resets_after(dones.int()).dtype == torch.bool


def test_done_flags_of_the_last_window_begin_the_next_one() -> None:
    """Two windows with the last flags handed on are one."""
    net, x = lp.Recurrent(lp.GRU(3, 4)).double(), normal(6, 2, 3)
    dones = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0], [1, 0], [0, 0]]).bool()
    with torch.no_grad():
        whole, _ = net(x, resets=lp.resets_after(dones))
        one, state = net(x[:3], resets=lp.resets_after(dones[:3]))
        two, _ = net(x[3:], state, resets=lp.resets_after(dones[3:], dones[2]))
    close(torch.cat([one, two]), whole)
