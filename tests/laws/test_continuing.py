"""Laws: two calls with the state handed on are one call, and so is `step` once per step; one trace serves all."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from torch import Tensor

import leporello as lp
from leporello.call import plan_cache
from leporello.loop.state import map_leaves
from tests.close import assert_close
from tests.laws.calls import Case, Tensors, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of

TIMED = ("resets", "targets", "forcing")


@pytest.mark.timeout(3600)
@cells(0.06)
@given(cases())
def test_calls_with_the_state_handed_on_equal_one_call(case: Case) -> None:
    case = _without_lengths(case)
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell)
    with mock.patch.object(plan_cache, "trace", wraps=plan_cache.trace) as traced:
        draws = draws_of(net, tensors)
        whole = results(case, cell, tensors, lambda: _piece(net, tensors, draws, 0, case.arguments.length))
        for middle in {1, case.arguments.length - 1} - {0, case.arguments.length}:
            found = results(case, cell, tensors, lambda: _in_two(net, case, tensors, draws, middle))  # noqa: B023
            assert_close(found.values, whole.values, f"{middle} steps and the rest")
            assert_close(found.gradients, whole.gradients, f"{middle} steps and the rest, gradient of")
        found = results(case, cell, tensors, lambda: _step_by_step(net, case, tensors, draws))
        assert_close(found.values, whole.values, "step by step")
        assert_close(found.gradients, whole.gradients, "step by step, gradient of")
        _other_batch(net, case)
    assert traced.call_count == 1


def _without_lengths(case: Case) -> Case:
    return dataclasses.replace(case, arguments=dataclasses.replace(case.arguments, lengths=False))


def _piece(net: lp.Recurrent, tensors: Tensors, draws: list[Tensor], start: int, end: int, state: Any = None) -> Any:
    """The call on the steps from start to end."""
    options: dict[str, Any] = {name: v[start:end] for name, v in tensors.options.items() if name in TIMED}
    inputs = map_leaves(lambda leaf: leaf[start:end] if isinstance(leaf, Tensor) else leaf, tensors.inputs)
    if "steps" in tensors.options:
        options["steps"] = end - start
    state = tensors.state if start == 0 else state
    return net(inputs, state, **options, draws=[draw[start:end] for draw in draws])


def _in_two(net: lp.Recurrent, case: Case, tensors: Tensors, draws: list[Tensor], middle: int) -> Any:
    first, state = _piece(net, tensors, draws, 0, middle)
    second, state = _piece(net, tensors, draws, middle, case.arguments.length, state)
    return _joined([first, second]), state


def _joined(outputs: list[Any]) -> Any:
    """Outputs of stretches one after another."""
    columns = [torch.utils._pytree.tree_leaves(output) for output in outputs]
    leaves = [None if column[0] is None else torch.cat(column) for column in zip(*columns, strict=True)]
    return torch.utils._pytree.tree_unflatten(leaves, torch.utils._pytree.tree_structure(outputs[0]))


def _step_by_step(net: lp.Recurrent, case: Case, tensors: Tensors, draws: list[Tensor]) -> Any:
    names = {"resets": "reset", "targets": "target", "forcing": "forcing"}
    outputs, state = [], tensors.state
    for time in range(case.arguments.length):
        x = map_leaves(lambda leaf: leaf[time] if isinstance(leaf, Tensor) else leaf, tensors.inputs)  # noqa: B023
        options = {names[name]: value[time] for name, value in tensors.options.items() if name in names}
        output, state = net.step(x, state, **options, draws=[draw[time] for draw in draws])
        outputs.append(map_leaves(lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, output))
    return _joined(outputs), state


def _other_batch(net: lp.Recurrent, case: Case) -> None:
    """A call with another batch and length."""
    other = dataclasses.replace(case.arguments, batch=5 - case.arguments.batch, length=3)
    tensors = tensors_of(dataclasses.replace(case, arguments=other), net.cell)
    net(tensors.inputs, tensors.state, **tensors.options)
