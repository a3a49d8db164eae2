"""First and second derivatives of built-in cells against finite differences; of all of them in make check-all."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import leporello as lp
from tests.cells.examples import EXAMPLES, FEW
from tests.nets.twins import normal, shaken, state_like, thoroughly


@pytest.mark.parametrize("name", [*list(FEW)[:2], *thoroughly(*list(FEW)[2:])])
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    """Through functional_call, so that every number the net reads is moved."""
    net = lp.Recurrent(shaken(EXAMPLES[name](), seed=1).eval(), engine="stepwise")
    names = [name for name, _ in net.named_parameters()]
    state, spec = torch.utils._pytree.tree_flatten(state_like(net, 2))

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, before, parameters = values[0], values[1 : 1 + len(state)], values[1 + len(state) :]
        handed = torch.utils._pytree.tree_unflatten(before, spec)
        outputs, final = torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x, handed))
        return outputs, *(leaf for leaf in torch.utils._pytree.tree_leaves(final) if leaf.requires_grad)

    values = (normal(3, 2, 3, grad=True), *state, *(p.detach().requires_grad_() for p in net.parameters()))
    assert gradcheck(run, values, fast_mode=True)
    assert gradgradcheck(run, values, fast_mode=True)
