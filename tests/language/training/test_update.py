"""What is said where a loss is not finite."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

import leporello as lp
from leporello.errors import LeporelloError, NotFinite
from leporello.language.training.update import (
    ADVICE_BY_PLACE,
    ADVICE_WITHOUT_ORIGIN,
    advice,
    not_finite,
    refuse_not_finite,
)
from leporello.nets.non_finite import Origin, first_not_finite
from leporello.nets.non_finite.origin import Where


def test_a_finite_number_is_not_looked_into() -> None:
    def search() -> None:
        raise AssertionError("nobody asked")

    refuse_not_finite(1.5, "the loss", search)


def test_a_run_that_fails_names_operator_step_row_and_line() -> None:
    net = lp.Recurrent(lambda x, h: (torch.log(x), h))
    inputs = torch.ones(5, 3, 1)
    inputs[4, 2] = 0
    with pytest.raises(NotFinite, match=r"the loss is -inf\.") as found:
        refuse_not_finite(-math.inf, "the loss", lambda: first_not_finite(net, inputs, torch.zeros(3, 1)), update=71)
    details = found.value.details
    assert details["update"] == "71"
    assert details["first"] == "log gives -inf, at step 4 of row 2"
    assert "torch.log(x)" in details["line"]
    assert "clamp_min" in details["tries"]


def test_where_nothing_is_found_the_engine_is_named() -> None:
    error = not_finite(math.inf, "the gradient", None)
    assert error.details == {"tries": ADVICE_WITHOUT_ORIGIN}


def test_it_is_an_arithmetic_error_of_ours() -> None:
    assert issubclass(NotFinite, ArithmeticError)
    assert issubclass(NotFinite, LeporelloError)


@pytest.mark.parametrize("where", get_args(Where))
def test_every_place_has_its_advice(where: Where) -> None:
    assert advice(Origin(where, "nan", name="W")) == ADVICE_BY_PLACE[where]


def test_an_operator_s_advice_holds_for_its_gradient_too() -> None:
    assert advice(Origin("loss", "inf", "the gradient of sqrt")) == advice(Origin("backward", "inf", "sqrt"))
