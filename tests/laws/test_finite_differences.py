"""Law: first and second derivatives are those of finite differences, on a few smooth cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

import leporello as lp
from leporello.loop.state import leaves_of, map_leaves
from tests.laws.calls import Case, cases, draws_of, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of

WITHOUT = [
    "convolution",  # its second derivative is refused: torch decides by the batch there
    "glu",
    "detach",  # finite differences see what gradients must not
    "no_grad",
]


@pytest.mark.timeout(3600)
@cells(0.02)
@given(cases(smooth=True, draws=False, without=WITHOUT))
def test_derivatives_are_those_of_finite_differences(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    sources = tensors.leaves(cell)
    draws = draws_of(net, tensors)

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        swapped = {id(source): value for source, value in zip(sources.values(), values, strict=True)}

        def own(tree: Any) -> Any:
            return map_leaves(lambda leaf: swapped.get(id(leaf), leaf), tree)

        parameters = {f"cell.{name}": own(parameter) for name, parameter in cell.named_parameters()}
        arguments = (own(tensors.inputs), own(tensors.state))
        options = {**own(tensors.options), "draws": draws}
        outputs, final = torch.func.functional_call(net, parameters, arguments, options)
        return tuple(leaf for leaf in [*leaves_of(outputs), *leaves_of(final)] if _counts(leaf))

    with torch.enable_grad():
        if sources and run(*sources.values()):
            assert torch.autograd.gradcheck(run, tuple(sources.values()), fast_mode=True)
            assert torch.autograd.gradgradcheck(run, tuple(sources.values()), fast_mode=True)


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
