"""`reach`: the sizes of do(t)/dx(k) beside autograd, carried back or ahead."""

from __future__ import annotations

import pytest
import torch

import leporello as lp
from leporello.analysis import reach, sweeps
from leporello.analysis import reach as reach_function
from leporello.analysis.reach import _sizes_ahead, _sizes_back
from leporello.analysis.step_by_step import StepByStepRun
from tests.analysis.nets import RADII, example, linear, normal, orthogonal, slow_reach
from tests.cells.examples import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_sizes_are_those_of_one_autograd_call_per_output_number(name: str) -> None:
    net, inputs = example(name), normal(6, 3, 3)
    draws = net.draw(inputs)
    result = reach(net, inputs, draws=draws)
    torch.testing.assert_close(result.sizes, slow_reach(net, inputs, draws), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["Elman", "LSTM", "LayerNormLSTM", "TimeDelay"])
@pytest.mark.parametrize("rows", [1, 7, pytest.param(10_000, marks=pytest.mark.slow)])
def test_carried_back_and_carried_ahead_are_the_same(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "MAX_ROWS_AT_ONCE", rows)
    net, inputs = example(name, train=False), normal(5, 2, 3)
    steps = StepByStepRun.of(net, inputs)
    torch.testing.assert_close(_sizes_back(steps), _sizes_ahead(steps), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("radius", RADII)
def test_the_influence_of_an_input_goes_with_the_radius(radius: float) -> None:
    result = reach(linear(radius * orthogonal(5)), normal(20, 2, 3))
    assert result.rate == pytest.approx(radius, rel=1e-9)
    if radius < 1:
        assert result.verdict == "each step back keeps 0.5 of an input's influence: after 7 steps 1% is left"
        assert result.horizon == pytest.approx(6.644, abs=1e-3)


def test_a_net_without_memory_hears_its_own_step_alone() -> None:
    result = reach(example("Perceptron"), normal(5, 2, 3))
    assert torch.equal(result.sizes, torch.diag(result.sizes.diagonal()))
    assert result.verdict == "an input reaches the output of its own step alone"
    assert str(result).endswith("5 steps over 2 rows, in float64")


def test_a_window_of_inputs_ends_where_it_ends() -> None:
    assert reach(example("TimeDelay"), normal(9, 2, 3)).verdict == (
        "an input's influence ends: 4 steps back nothing is left"
    )


def test_padding_reaches_nothing_and_rows_that_ended_do_not_count() -> None:
    net, inputs = example("GRU", train=False), normal(5, 2, 3)
    result = reach(net, inputs, lengths=[5, 3])
    alone = [reach(net, inputs[:, :1]).sizes, reach(net, inputs[:3, 1:]).sizes]
    torch.testing.assert_close(result.sizes[:3, :3], (alone[0][:3, :3] + alone[1]) / 2)
    torch.testing.assert_close(result.sizes[3:], alone[0][3:])


def test_the_package_exports_the_function() -> None:
    assert lp.analysis.reach is reach_function
