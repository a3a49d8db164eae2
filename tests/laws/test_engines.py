"""Law: every engine gives what the plain loop gives, outputs and gradients, whatever the arguments."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, reject

import leporello as lp
from leporello.engine import stepwise
from tests.close import assert_close
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


def agree(case: Case, *engines: str) -> None:
    """Each engine gives what the plain loop gives."""
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    draws = draws_of(net, tensors)
    plain = results(case, cell, tensors, lambda: by_plain_loop(cell, tensors, draws))
    for engine in engines:
        net.engine = engine
        with mock.patch.dict(stepwise.WINDOW_ROWS, cpu=case.arguments.window, kernels=case.arguments.window):
            found = results(
                case, cell, tensors, lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws)
            )
        assert_close(found.values, plain.values, engine)
        assert_close(found.gradients, plain.gradients, f"{engine} gradient of")
        if "weights.unused" in plain.gradients:
            assert found.gradients["weights.unused"] is None


@pytest.mark.timeout(3600)
@cells(0.35)
@given(cases())
def test_engines_equal_the_plain_loop(case: Case) -> None:
    agree(case, "reference", "stepwise")


@pytest.mark.timeout(3600)
@cells(0.2)
@given(cases())
def test_kernels_equal_the_plain_loop(case: Case) -> None:
    try:
        agree(case, "cpu")
    except lp.errors.EngineRefusal:
        reject()  # kernels do not cover every operator
