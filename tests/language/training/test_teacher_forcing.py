"""Schedules of teacher forcing: their values, their spelling, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leporello.errors import ArgumentError
from leporello.language.training.teacher_forcing import (
    KINDS,
    ConstantForcing,
    ExponentialForcing,
    ForcingSchedule,
    InverseSigmoidForcing,
    LinearForcing,
    forcing_of,
)

shares = st.floats(0, 1)
falling = st.one_of(
    st.builds(InverseSigmoidForcing, st.floats(1.001, 1e12)),
    st.builds(ExponentialForcing, st.floats(1e-12, 0.999)),
    st.builds(lambda a, b: LinearForcing(max(a, b), min(a, b)), shares, shares),
)
schedules = st.one_of(falling, st.builds(ConstantForcing, shares), st.builds(LinearForcing, shares, shares))


@given(schedules, st.floats(-1, 2))
def test_every_schedule_gives_a_probability(schedule: ForcingSchedule, progress: float) -> None:
    assert 0 <= schedule(progress) <= 1


@given(falling, shares, shares)
def test_a_falling_schedule_never_rises(schedule: ForcingSchedule, one: float, other: float) -> None:
    early, late = sorted((one, other))
    assert schedule(late) <= schedule(early) + 1e-12


@given(schedules)
def test_a_schedule_reads_back_from_its_text(schedule: ForcingSchedule) -> None:
    assert forcing_of(str(schedule)) == schedule


def test_a_schedule_is_written_as_one_would_write_it() -> None:
    assert [str(forcing_of(text)) for text in ("0.8", "linear:1:0")] == ["constant:0.8", "linear:1:0"]


@given(schedules, st.floats(1, 100))
def test_progress_outside_counts_as_the_end_it_is_past(schedule: ForcingSchedule, beyond: float) -> None:
    assert schedule(beyond) == schedule(1)
    assert schedule(-beyond) == schedule(0)


@pytest.mark.parametrize("k", [1.01, 6, 1000, 1e300])
def test_an_inverse_sigmoid_goes_from_one_to_zero_and_is_a_half_halfway(k: float) -> None:
    schedule = InverseSigmoidForcing(k)
    assert [schedule(0), schedule(0.5), schedule(1)] == pytest.approx([1, 0.5, 0])


def test_an_inverse_sigmoid_is_the_paper_s_curve_stretched() -> None:
    k, schedule = 6.0, InverseSigmoidForcing(6)

    def paper(i: float) -> float:
        return k / (k + math.exp(i / k))

    last = 2 * k * math.log(k)
    for progress in (0, 0.1, 0.3, 0.7, 1):
        stretched = (paper(last * progress) - paper(last)) / (paper(0) - paper(last))
        assert schedule(progress) == pytest.approx(stretched)


def test_a_larger_k_makes_a_steeper_fall() -> None:
    assert InverseSigmoidForcing(100)(0.3) > InverseSigmoidForcing(6)(0.3) > InverseSigmoidForcing(1.1)(0.3)
    assert InverseSigmoidForcing(1.000002)(0.3) == pytest.approx(0.7, abs=1e-4)


def test_an_exponential_leaves_k_in_the_end() -> None:
    schedule = ExponentialForcing(0.01)
    assert [schedule(0), schedule(0.5), schedule(1)] == pytest.approx([1, 0.1, 0.01])


def test_a_line_may_rise_too() -> None:
    assert [LinearForcing(0, 1)(share) for share in (0, 0.25, 1)] == [0, 0.25, 1]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1", ConstantForcing(1)),
        (0.8, ConstantForcing(0.8)),
        (" constant : 0.8 ", ConstantForcing(0.8)),
        ("linear:1:0", LinearForcing(1, 0)),
        ("linear", LinearForcing(1, 0)),
        ("Inverse_Sigmoid:6", InverseSigmoidForcing(6)),
        ("exponential:0.01", ExponentialForcing(0.01)),
        (LinearForcing(1, 0.5), LinearForcing(1, 0.5)),
    ],
)
def test_a_schedule_is_read_from_its_spelling(written: str | float | ForcingSchedule, meant: ForcingSchedule) -> None:
    assert forcing_of(written) == meant


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="no schedule of teacher forcing is called 'expotential'") as found:
        forcing_of("expotential:0.01")
    assert found.value.details["nearest"] == "exponential"


@pytest.mark.parametrize("written", ["linear:1:0:2", "linear:a:b", "exponential:", "constant:1:1"])
def test_other_ways_of_writing_are_refused_with_the_form(written: str) -> None:
    with pytest.raises(ArgumentError, match="written in another way") as found:
        forcing_of(written)
    assert found.value.details["expected"].startswith(written.split(":")[0] + ":")


@pytest.mark.parametrize(
    "written",
    ["1.5", "-0.1", "nan", "linear:2:0", "linear:1:-1", "inverse-sigmoid:1", "inverse-sigmoid:inf", "exponential:1"],
)
def test_numbers_out_of_range_are_refused_with_the_schedule(written: str) -> None:
    with pytest.raises(ArgumentError, match="out of range") as found:
        forcing_of(written)
    assert found.value.details["schedule"] == written


@pytest.mark.parametrize("written", ["", " ", True])
def test_what_is_no_schedule_at_all_is_refused(written: str | bool) -> None:
    with pytest.raises(ArgumentError, match="no schedule"):
        forcing_of(written)


def test_progress_that_is_no_number_is_refused() -> None:
    with pytest.raises(ArgumentError, match="progress"):
        ConstantForcing(1)(math.nan)


def test_every_kind_has_numbers_of_its_own_if_none_are_written() -> None:
    for name, kind in KINDS.items():
        assert forcing_of(name) == kind()
