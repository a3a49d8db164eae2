"""`jacobians`: dh(t + 1)/dh(t) beside finite differences; radii and singular values that are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leporello.analysis import jacobians
from leporello.loop.draws import replay
from leporello.loop.state import leaves_of, map_leaves
from leporello.loop.step import take
from tests.analysis.nets import RADII, SMOOTH, example, linear, normal, orthogonal, walked

SMALL = 1e-6  # a step of the central difference: its square, and rounding over it, are both below 1e-9


def differences(net, inputs: Tensor, draws: list[Tensor], time: int) -> Tensor:
    """dh(t + 1)/dh(t) by moving each number of the state a little, (batch, numbers, numbers)."""
    _, states = walked(net, inputs, draws)
    state = map_leaves(lambda leaf: leaf.detach(), states[time])
    columns = []
    for index, leaf in enumerate(leaves_of(state)):
        for number in range(leaf[0].numel()):
            ends = []
            for way in (SMALL, -SMALL):
                counter = iter(range(len(leaves_of(state))))

                def moved(leaf: Tensor, way: float = way, index: int = index, number: int = number) -> Tensor:
                    leaf = leaf.clone()
                    if next(counter) == index:  # noqa: B023
                        leaf.flatten(1)[:, number] += way
                    return leaf

                with replay(draws, time), torch.no_grad():
                    _, after = take(net.cell, inputs[time], map_leaves(moved, state))
                ends.append(torch.cat([leaf.flatten(1) for leaf in leaves_of(after)], 1))
            columns.append((ends[0] - ends[1]) / (2 * SMALL))
    return torch.stack(columns, -1)


@pytest.mark.parametrize("name", SMOOTH)
def test_they_are_the_limits_of_finite_differences(name: str) -> None:
    net, inputs = example(name), normal(3, 2, 3)
    draws = net.draw(inputs)
    result = jacobians(net, inputs, draws=draws)
    for time in range(3):
        torch.testing.assert_close(result.values[time], differences(net, inputs, draws, time), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("radius", RADII)
def test_a_linear_net_has_its_matrix_at_every_step(radius: float) -> None:
    W = radius * orthogonal(5)
    result = jacobians(linear(W), normal(4, 3, 3))
    torch.testing.assert_close(result.values, W.expand(4, 3, 5, 5), rtol=0, atol=1e-14)
    torch.testing.assert_close(result.radius, torch.full((4, 3), radius, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(result.singular, torch.full((4, 3, 5), radius, dtype=torch.float64), rtol=1e-12, atol=0)


def test_eigenvalues_come_with_the_largest_first() -> None:
    W = torch.diag(torch.tensor([0.1, -2.0, 0.7], dtype=torch.float64))
    result = jacobians(linear(W), normal(2, 1, 3))
    torch.testing.assert_close(result.eigenvalues[1, 0].real, torch.tensor([-2.0, 0.7, 0.1], dtype=torch.float64))


def test_leaves_lie_side_by_side() -> None:
    result = jacobians(example("LSTM with projection"), normal(2, 1, 3))
    assert result.places == {"h": slice(0, 2), "c": slice(2, 7)}
    assert result.values.shape == (2, 1, 7, 7)


def test_verdicts_tell_stretching_from_shrinking() -> None:
    shear = torch.tensor([[0.5, 3.0], [0.0, 0.5]], dtype=torch.float64)
    said = [jacobians(linear(W), normal(2, 1, 3)).verdict for W in (0.5 * orthogonal(2), shear, 1.5 * orthogonal(2))]
    assert said == [
        "no step stretches any change of the state (mean spectral radius 0.5)",
        "steps stretch some changes of the state, but no spectral radius is above 1 (mean 0.5)",
        "the spectral radius is above 1 at 100% of the steps (mean 1.5)",
    ]


def test_it_reads_well() -> None:
    lines = str(jacobians(linear(0.5 * orthogonal(3)), normal(4, 2, 3))).split("\n")
    assert lines[1:] == [
        "  spectral radius          from 0.5 to 0.5",
        "  largest singular value   from 0.5 to 0.5",
        "  smallest singular value  from 0.5 to 0.5",
        "  4 steps over 2 rows, 3 numbers (h 3)",
    ]
