"""Law: the exact gradient that goes forward in time is that of the plain loop, for parameters and the initial state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

import leporello as lp
from tests.close import assert_close
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


@pytest.mark.timeout(3600)
@cells(0.04)
@given(cases())
def test_gradients_forward_in_time_equal_those_of_the_plain_loop(case: Case) -> None:
    case = replace(case, arguments=replace(case.arguments, frozen="inputs"))  # those get no gradient there
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, gradient=lp.RTRL(), engine="stepwise")
    draws = draws_of(net, tensors)
    plain = results(case, cell, tensors, lambda: by_plain_loop(cell, tensors, draws))
    for engine in ("stepwise", "reference"):
        net.engine = engine
        found = results(case, cell, tensors, lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws))
        assert_close(found.values, plain.values, engine)
        assert_close(found.gradients, plain.gradients, f"{engine} gradient of")
