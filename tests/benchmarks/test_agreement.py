"""The benchmark refuses to time a wrong thing."""

from __future__ import annotations

import pytest

from benchmarks import agreement
from tests.benchmarks.made import Halves


def test_contestants_that_agree_pass() -> None:
    agreement.check(Halves().tasks("together", "apart"))


@pytest.mark.parametrize("wrong", ["half_detached", "detached", "not_a_number"])
def test_a_wrong_contestant_is_refused(wrong: str) -> None:
    with pytest.raises(agreement.Disagreement, match=f"{wrong} differs from together"):
        agreement.check(Halves().tasks("together", wrong))


def test_agreement_leaves_no_gradient_behind() -> None:
    cell = Halves()
    agreement.check(cell.tasks("together", "apart"))
    assert cell.weight.grad is None
