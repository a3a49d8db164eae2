"""Law: every engine gives what the plain loop gives, outputs and gradients, whatever the arguments.

The engine `interpreted` (tests/interpreted.py) runs kernels as they are described, without a compiler: what it shows of
lowering need not be shown again with built kernels, so there are fewer cases with those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leporello as lp
from tests.close import assert_close
from tests.interpreted import INTERPRETED
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, results, tensors_of
from tests.laws.examples import cells
from tests.laws.shared import one_gradient_for_all_engines
from tests.laws.windows import windows_of
from tests.random_cells import cell_of

REFUSED = 0.1  # of random cells, at most, may hold an operator that kernels do not cover


def agree(case: Case, *engines: str) -> list[str]:
    """Each engine gives what the plain loop gives; those that refuse the cell by name."""
    net = lp.Recurrent(cell_of(case.program), engine="stepwise")
    refused = _agree(net, case, engines)
    if case.program.context:  # other lengths of the context: what was traced and built serves them too
        sizes = tuple(2 + size for size in case.arguments.sizes)
        other = replace(case, arguments=replace(case.arguments, sizes=sizes))
        _agree(net, other, [engine for engine in engines if engine not in refused])
    return refused


def _agree(net: lp.Recurrent, case: Case, engines: Sequence[str]) -> list[str]:
    cell, tensors = net.cell, tensors_of(case, net.cell)
    draws = draws_of(net, tensors)
    plain = results(case, cell, tensors, lambda: by_plain_loop(cell, tensors, draws))
    refused = []
    for engine in engines:
        net.engine = engine
        with windows_of(case.arguments.window):
            try:
                by_engine = results(
                    case, cell, tensors, lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws)
                )
            except lp.errors.EngineRefusal:
                refused.append(engine)
                continue
        assert_close(by_engine.values, plain.values, engine)
        assert_close(by_engine.gradients, plain.gradients, f"{engine} gradient of")
        if "weights.unused" in plain.gradients:
            assert by_engine.gradients["weights.unused"] is None
    return refused


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("engines", "share"), [(("reference", "stepwise", INTERPRETED.name), 0.22), (("cpu",), 0.1)], ids=["torch", "cpu"]
)
def test_engines_equal_the_plain_loop(engines: tuple[str, ...], share: float) -> None:
    refused: list[bool] = []

    @cells(share)
    @given(st.one_of(cases(most=3), cases()))  # half of them small, and quick
    def law(case: Case) -> None:
        with one_gradient_for_all_engines():
            refusing = agree(case, *engines)
        assert refusing in ([], [engines[-1]])  # kernels alone may refuse
        refused.append(bool(refusing))

    law()
    assert sum(refused) <= REFUSED * len(refused), f"kernels refuse {sum(refused)} of {len(refused)} cells"
