"""`fixed_points`: found where they are known to be, stable or unstable, each one once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.analysis import fixed_points
from tests.analysis.nets import SMOOTH, elman, example, linear, normal, orthogonal


class Rising(lp.Cell):
    """h' = h + 1: no state stays as it is."""

    def __init__(self) -> None:
        super().__init__(h=1)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, h + 1


def root(weight: float) -> float:
    """The positive h with h = tanh(weight h), by iteration."""
    h = torch.tensor(1.0, dtype=torch.float64)
    for _ in range(500):
        h = torch.tanh(weight * h)
    return h.item()


def test_the_nine_of_two_units_that_excite_themselves() -> None:
    weights = (1.5, 2.0)
    net = elman(torch.diag(torch.tensor(weights, dtype=torch.float64)), inputs=1)
    result = fixed_points(net, torch.zeros(1), starts=200)
    places = [[-root(weight), 0.0, root(weight)] for weight in weights]
    wanted = {(a, b): (a != 0) + (b != 0) for a in places[0] for b in places[1]}
    assert len(result) == 9
    for point, kind in zip(result.points.tolist(), result.kinds, strict=True):
        near = [place for place in wanted if max(abs(a - b) for a, b in zip(place, point, strict=True)) < 1e-9]
        assert len(near) == 1
        assert kind == ("unstable", "saddle", "stable")[wanted[near[0]]]
    assert result.lost == 0
    assert result.found.sum() == 200
    assert result.residuals.max() < 1e-9
    assert result.verdict == "9 fixed points: 4 stable, 4 saddle, 1 unstable"


def test_eigenvalues_are_those_of_the_step_there() -> None:
    net = elman(torch.diag(torch.tensor([1.5, 2.0], dtype=torch.float64)), inputs=1)
    result = fixed_points(net, torch.zeros(1), starts=100)
    origin = int(result.points.norm(dim=1).argmin())
    torch.testing.assert_close(result.eigenvalues[origin].real, torch.tensor([2.0, 1.5], dtype=torch.float64))


def test_a_linear_net_has_the_one_that_algebra_gives() -> None:
    net, x = linear(0.8 * orthogonal(5)), normal(3)
    W, U = net.cell.W.detach(), net.cell.U.detach()
    wanted = torch.linalg.solve(torch.eye(5, dtype=torch.float64) - W, U @ x)
    result = fixed_points(net, x.unsqueeze(0), starts=7)
    torch.testing.assert_close(result.points, wanted.unsqueeze(0), rtol=1e-9, atol=1e-9)
    assert (result.kinds, result.found.tolist()) == (("stable",), [7])


@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_found_stays_as_it_is_in_every_cell(name: str) -> None:
    net, x = example(name, train=False), normal(1, 3)
    result = fixed_points(net, x, starts=5)
    assert len(result) > 0
    state, at = net.cell.initial_state(len(result)), 0
    leaves = []
    for leaf in state if isinstance(state, tuple) else (state,):
        leaves.append(result.points[:, at : at + leaf.shape[1]])
        at += leaf.shape[1]
    points = type(state)(*leaves) if isinstance(state, tuple) else leaves[0]
    _, after = net.step(x.expand(len(result), 3), points)
    for leaf, wanted in zip(after if isinstance(after, tuple) else (after,), leaves, strict=True):
        torch.testing.assert_close(leaf, wanted, rtol=0, atol=1e-8)


def test_starts_may_be_given() -> None:
    net = elman(torch.diag(torch.tensor([1.5, 2.0], dtype=torch.float64)), inputs=1)
    starts = torch.tensor([[1.0, 1.0], [0.9, 1.1], [-1.0, 1.0]])
    result = fixed_points(net, torch.zeros(1), starts)
    assert result.found.tolist() == [2, 1]
    assert torch.equal(result.paths[0], starts.double())


def test_a_ring_of_neutral_states_decides_nothing() -> None:
    result = fixed_points(linear(torch.eye(2, dtype=torch.float64)), torch.zeros(1, 3), starts=4)
    assert result.kinds == ("undecided",) * 4


def test_a_change_that_grows_decides_beside_one_that_stays() -> None:
    W = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    assert fixed_points(linear(W), torch.zeros(1, 3), starts=4).kinds == ("saddle",) * 4


def test_where_there_is_none_none_is_found() -> None:
    result = fixed_points(lp.Recurrent(Rising()), None, starts=5)
    assert (len(result), result.lost) == (0, 5)
    assert result.verdict == "no fixed point was found from 5 starts"


def test_one_draw_stands_for_all_of_them() -> None:
    noisy = [fixed_points(example("Leaky"), normal(3), starts=6) for _ in range(2)]
    assert [result.found.tolist() for result in noisy] == [[6], [6]]
    assert (noisy[0].points - noisy[1].points).abs().max() > 1e-3


def test_it_reads_well() -> None:
    net = elman(torch.diag(torch.tensor([0.5, 0.3], dtype=torch.float64)), inputs=1)
    net.cell.b.data.copy_(torch.tensor([0.2, 0.1]))
    assert str(fixed_points(net, torch.zeros(1), starts=3)) == (
        "one fixed point: stable.\n  stable     largest |eigenvalue| 0.433  from 3 starts  (0.365, 0.141)"
    )
