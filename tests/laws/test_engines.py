"""Law: every engine gives what the plain loop gives, outputs and gradients, whatever the arguments."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given

import leporello as lp
from leporello.engine import stepwise
from tests.close import assert_close
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


@pytest.mark.timeout(3600)
@cells(0.5)
@given(cases())
def test_engines_equal_the_plain_loop(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    draws = draws_of(net, tensors)
    plain = results(case, cell, tensors, lambda: by_plain_loop(cell, tensors, draws))
    for engine in ("reference", "cpu", "stepwise"):
        net.engine = engine
        with mock.patch.dict(stepwise.WINDOW_ROWS, cpu=case.arguments.window, kernels=case.arguments.window):
            try:
                found = results(
                    case, cell, tensors, lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws)
                )
            except lp.errors.EngineRefusal:
                if engine != "cpu":  # kernels do not cover every operator
                    raise
                continue
        assert_close(found.values, plain.values, engine)
        assert_close(found.gradients, plain.gradients, f"{engine} gradient of")
    if "weights.unused" in plain.gradients:
        assert found.gradients["weights.unused"] is None
