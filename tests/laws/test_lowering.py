"""Law: the kernels of a loop's insides, run by the interpreter, give what the loop's own graph gives; no compiler."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import leporello as lp
from leporello.kernel.description import Kernel
from leporello.rewrite import differentiate
from tests.close import assert_close
from tests.kernel.lowered import insides_of, interpreted_and_expected, random_input, values_of_steps
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of

REFUSED = 0.1  # of random cells, at most, may hold an operator that kernels do not cover


def lowered_equals_the_graph(case: Case) -> bool:
    """Forward and backward; False where an operator is refused."""
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    loop = lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options)
    steps, batch, seed = case.arguments.length, case.arguments.batch, case.arguments.seed
    for sweep in (loop, differentiate(loop)):
        split = sweep.split()
        numbers = torch.Generator().manual_seed(seed)
        inputs = [random_input(port, split.loop, steps, batch, numbers) for port in split.loop.inputs]
        with torch.no_grad():
            values = values_of_steps(split.loop, inputs, steps, batch)
            try:
                insides = insides_of(split)
            except lp.errors.EngineRefusal:
                return False
            for inside in insides:
                for order in (None, shuffled(inside.kernel, seed)):
                    found, expected = interpreted_and_expected(inside, values, batch, order)
                    infinite = {name: ~value.isfinite() for name, value in expected.items()}
                    assert all(torch.equal(~found[name].isfinite(), odd) for name, odd in infinite.items())
                    assert_close(
                        {name: value.masked_fill(infinite[name], 0) for name, value in found.items()},
                        {name: value.masked_fill(infinite[name], 0) for name, value in expected.items()},
                        f"{sweep.name}, blocks in the order {order}",
                    )
    return True


def shuffled(kernel: Kernel, seed: int) -> list[int]:
    """A random order of the blocks that respects their dependencies."""
    numbers, waiting, order = random.Random(seed), set(range(len(kernel.blocks))), []
    while waiting:
        ready = [block for block in waiting if not {need.block for need in kernel.dependencies[block]} & waiting]
        order.append(numbers.choice(sorted(ready)))
        waiting.remove(order[-1])
    return order


@pytest.mark.timeout(3600)
def test_lowered_insides_run_by_the_interpreter_equal_the_graph_in_any_order_of_blocks() -> None:
    refused: list[bool] = []

    @cells(0.2)
    @given(st.one_of(cases(most=3), cases()))
    def law(case: Case) -> None:
        refused.append(not lowered_equals_the_graph(case))

    law()
    assert sum(refused) <= REFUSED * len(refused), f"kernels refuse {sum(refused)} of {len(refused)} cells"
