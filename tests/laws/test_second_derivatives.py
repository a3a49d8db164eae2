"""Law: gradients of gradients are those of the plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given

import leporello as lp
from tests.close import assert_close
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


@pytest.mark.timeout(3600)
@cells(0.03)
@given(cases(without=["convolution", "glu"]))  # refused: torch decides by the batch there
def test_second_derivatives_equal_those_of_the_plain_loop(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    draws = draws_of(net, tensors)
    plain = results(case, cell, tensors, lambda: by_plain_loop(cell, tensors, draws), twice=True)
    for engine in ("stepwise", "cpu"):
        net.engine = engine
        try:
            found = results(
                case,
                cell,
                tensors,
                lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws),
                twice=True,
            )
        except lp.errors.EngineRefusal:
            assert engine == "cpu"  # kernels do not cover every operator
            continue
        assert_close(found.values, plain.values, engine)
        assert_close(found.gradients, plain.gradients, f"{engine} gradient of")
