"""Law: kernels in float32 give what the plain loop gives in float64, but for rounding.

The numbers of both are the same: those of float32. What differs is that every operation of the kernel is rounded to a
unit of 6e-8. A value is the sum of some tens of terms of order one, over at most seven steps, and gradients and norms
cancel some of it: a thousand units are allowed, of the largest number of a tensor. A wrong term is larger by far.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, reject
from torch import Tensor

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.loop.state import leaves_of, map_leaves
from leporello.nets.plain_loop import plain_loop
from tests.cells.examples import EXAMPLES, FEW, shaken, step_inputs
from tests.close import error
from tests.laws.calls import Case, Tensors, cases, gradients, named, random_weights, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of

TOLERANCE = 1e-4  # a thousand units


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """The floats of a tree in another type, as fresh leaves."""
    return map_leaves(
        lambda leaf: (
            leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
            else leaf
        ),
        tree,
    )


def in_type(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    return Tensors(cast(tensors.inputs, dtype), cast(tensors.state, dtype), cast(tensors.options, dtype))


def on_device(tensors: Tensors, device: str) -> Tensors:
    """Fresh leaves on a device."""

    def moved(leaf: Any) -> Any:
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    return Tensors(*(map_leaves(moved, tree) for tree in (tensors.inputs, tensors.state, tensors.options)))


def measured(cell: Any, tensors: Tensors, run: Callable[[], tuple[Any, Any]]) -> dict[str, Tensor | None]:
    """Values, and the gradients of a random weighting of them."""
    values = named(*run(), cell)
    sources = tensors.leaves(cell)
    found = gradients(list(values.values()), list(sources.values()), random_weights)
    return {**values, **{f"gradient of {name}": value for name, value in zip(sources, found, strict=True)}}


def agree(cell: Any, tensors: Tensors, engine: str = "cpu", device: str = "cpu") -> None:
    """`cell` and `tensors` in float64 on the CPU; the engine runs them in float32 on a device."""
    single, given = copy.deepcopy(cell).float(), in_type(tensors, torch.float32)
    cell.load_state_dict(single.state_dict())  # the rounded numbers
    tensors = in_type(given, torch.float64)
    single, given = single.to(device), on_device(given, device)
    net = lp.Recurrent(single, engine=engine)
    draws = net.draw(given.inputs, given.state, **given.options)
    found = measured(single, given, lambda: net(given.inputs, given.state, **given.options, draws=draws))
    call = checked_call(cell, tensors.inputs, tensors.state, **tensors.options)
    wanted = measured(cell, tensors, lambda: plain_loop(cell, call, [draw.cpu().double() for draw in draws]))
    for name, value in found.items():
        other = wanted[name]
        if value is None or other is None:
            assert value is other or not (value if other is None else other).any(), name  # type: ignore[union-attr]
            continue
        assert not value.is_floating_point() or value.dtype == torch.float32, name
        off = error(value.detach().cpu().to(other.dtype), other.detach())
        assert off <= TOLERANCE, f"{name}: error {off:.1e}\n{value}\n{other}"


@pytest.mark.parametrize("name", FEW)
def test_built_in_cells_in_single_precision(name: str) -> None:
    cell = shaken(EXAMPLES[name]())
    _, state = step_inputs(cell, 3)
    inputs = torch.stack([step_inputs(cell, 3, seed)[0] for seed in range(7)])
    for leaf in leaves_of(state):
        leaf.requires_grad_()
    agree(cell, Tensors(inputs.requires_grad_(), state, {"lengths": torch.tensor([7, 1, 4])}))


# What jumps may jump elsewhere in another precision; how to convolve in float32 torch decides by the batch.
@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases(smooth=True, draws=False, without=["convolution"]))
def test_random_cells_in_single_precision(case: Case) -> None:
    cell = cell_of(case.program)
    try:
        agree(cell, tensors_of(replace(case, arguments=replace(case.arguments, state=True)), cell))
    except lp.errors.EngineRefusal:
        reject()  # counted by the law in double precision
