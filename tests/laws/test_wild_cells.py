"""Law: every engine gives what the plain loop gives on cells as people write them, kind by kind.

What a cell of a kind holds is in `tests/wild`; the other half of its lines is that of any random cell. A context is
read with two lengths in turn: the second call uses what was traced and built for the first.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.interpreted import INTERPRETED
from tests.laws.calls import Case, cases
from tests.laws.examples import cells
from tests.laws.shared import one_gradient_for_all_engines
from tests.laws.test_engines import agree
from tests.random_cells import EVERY
from tests.random_operators import OPERATORS
from tests.wild.kinds import KINDS

ENGINES = {"torch": ("reference", "stepwise", INTERPRETED.name), "cpu": ("cpu",)}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engines", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_engines_equal_the_plain_loop(kind: str, engines: str) -> None:
    @cells(0.005, least=2)
    @given(cases(most=4, kinds=[kind]))
    def law(case: Case) -> None:
        with one_gradient_for_all_engines():
            refusing = agree(case, *ENGINES[engines])
        assert refusing in ([], [ENGINES[engines][-1]])  # kernels alone may refuse
        assert not refusing or case.program.refused, "kernels refuse what they cover"

    law()


def test_every_operator_has_a_name_of_its_own() -> None:
    assert len(EVERY) == len(OPERATORS) + sum(map(len, KINDS.values()))
