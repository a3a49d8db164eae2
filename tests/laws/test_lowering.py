"""Law: the kernels of a loop's insides, run by the interpreter, give what the loop's own graph gives; no compiler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leporello as lp
from leporello.rewrite import differentiate, rows_for_draws
from tests.kernel.lowered import assert_lowered_equals_graph
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of

REFUSED = 0.1  # of random cells, at most, may hold an operator that kernels do not cover


@pytest.mark.timeout(3600)
def test_lowered_insides_run_by_the_interpreter_equal_the_graph_in_any_order_of_blocks() -> None:
    refused: list[bool] = []

    @cells(0.08)
    @given(st.one_of(cases(most=3), cases()))
    def law(case: Case) -> None:
        cell, arguments = cell_of(case.program), case.arguments
        tensors = tensors_of(case, cell)
        loop = rows_for_draws(lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options))
        try:
            for sweep in (loop, differentiate(loop)):
                assert_lowered_equals_graph(sweep, arguments.length, arguments.batch, arguments.seed)
            refused.append(False)
        except lp.errors.EngineRefusal:
            refused.append(True)

    law()
    assert sum(refused) <= REFUSED * len(refused), f"kernels refuse {sum(refused)} of {len(refused)} cells"
