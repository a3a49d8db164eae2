"""`fixed_points`: found where they are known to be, stable or unstable, each one once."""

from __future__ import annotations

from collections.abc import Callable

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


def test_a_plane_of_fixed_points_is_named_a_continuum() -> None:
    result = fixed_points(linear(torch.eye(2, dtype=torch.float64)), torch.zeros(1, 3), starts=4)
    assert result.kinds == ("continuum",) * 4
    assert result.dimensions.tolist() == [2, 2, 2, 2]
    assert result.verdict == "a continuum of fixed points, of 2 dimensions: 4 points of it found"


class Ring(lp.Cell):
    """h' = h + h (1 - |h|^2) / 4: the origin, and a circle that attracts."""

    def __init__(self) -> None:
        super().__init__(h=2)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + 0.25 * h * (1 - h.square().sum(-1, keepdim=True))
        return h, h


def test_a_circle_of_fixed_points_is_one_continuum_beside_a_point() -> None:
    ways = normal(12, 2, seed=3)
    starts = torch.cat([1.1 * ways / ways.norm(dim=-1, keepdim=True), torch.zeros(1, 2, dtype=torch.float64)])
    result = fixed_points(lp.Recurrent(Ring()), None, starts)
    found = sorted(zip(result.kinds, result.dimensions.tolist(), strict=True))
    assert found == [("continuum", 1)] * 12 + [("unstable", 0)]
    assert result.verdict == (
        "one fixed point: unstable; and a continuum of fixed points, of 1 dimension: 12 points of it found"
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_points_that_the_search_cannot_tell_apart_are_one_where_an_eigenvalue_is_1(seed: int) -> None:
    torch.manual_seed(seed)
    result = fixed_points(lp.Recurrent(lp.Elman(2, 8, 1)), torch.zeros(2), starts=20)  # W is orthogonal
    assert (len(result), result.kinds, result.found.tolist()) == (1, ("undecided",), [20])
    assert "-0.000" not in str(result)


def test_three_points_close_to_each_other_stay_three() -> None:
    net = elman(torch.tensor([[1.0005]], dtype=torch.float64), inputs=1)
    result = fixed_points(net, torch.zeros(1), starts=30)
    assert sorted(result.kinds) == ["stable", "stable", "unstable"]
    assert result.points.abs().max().item() == pytest.approx((3 * 0.0005) ** 0.5, rel=1e-2)


def test_a_change_that_grows_decides_beside_one_that_stays() -> None:
    W = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    assert fixed_points(linear(W), torch.zeros(1, 3), starts=4).kinds == ("saddle",) * 4


def test_where_there_is_none_none_is_found() -> None:
    result = fixed_points(lp.Recurrent(Rising()), None, starts=5)
    assert (len(result), result.lost) == (0, 5)
    assert result.verdict == "no fixed point was found from 5 starts"


class Noisy(lp.Cell):
    """h' = tanh(h / 2 + noise), with whatever noise."""

    def __init__(self, noise: Callable[[Tensor], Tensor]) -> None:
        super().__init__(h=3)
        self.noise = noise

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h / 2 + self.noise(h))
        return h, h


NOISES = {
    "normal": (lambda h: 0.5 + torch.randn_like(h), 0.5),
    "uniform": (torch.rand_like, 0.5),
    "of its own range": (lambda h: torch.empty_like(h).uniform_(-1, 2), 0.5),
    "of its own mean": (lambda h: torch.normal(torch.full_like(h, 0.3), 2.0), 0.3),
    "coins": (lambda h: torch.bernoulli(torch.full_like(h, 0.2)), 0.2),
    "coins of one probability": (lambda h: torch.bernoulli(h, 0.3), 0.3),
    "coins in place": (lambda h: torch.empty_like(h).bernoulli_(0.4), 0.4),
    "exponential": (lambda h: torch.empty_like(h).exponential_(4.0), 0.25),
    "dropout": (lambda h: torch.nn.functional.dropout(torch.full_like(h, 0.7), 0.9), 0.7),
    "of a size": (lambda h: torch.randn(h.shape[0], 3, dtype=h.dtype) + 0.1, 0.1),
    "once a call": (lambda h: lp.once(torch.rand_like, h), 0.5),
}


@pytest.mark.parametrize("name", NOISES)
def test_the_noise_of_a_step_is_at_its_mean(name: str) -> None:
    noise, mean = NOISES[name]
    result = fixed_points(lp.Recurrent(Noisy(noise).double()), None, starts=3)
    wanted = fixed_points(lp.Recurrent(Noisy(lambda h: torch.full_like(h, mean))), None, starts=3)
    torch.testing.assert_close(result.points, wanted.points)
    assert str(result).endswith("the noise of the step is at its mean")
    assert "noise" not in str(wanted)


def test_a_noisy_cell_has_the_same_fixed_points_each_time() -> None:
    noisy = [fixed_points(example("Leaky"), normal(3), starts=6) for _ in range(2)]
    assert [result.found.tolist() for result in noisy] == [[6], [6]]
    assert torch.equal(noisy[0].points, noisy[1].points)


def test_draws_may_be_passed() -> None:
    net = lp.Recurrent(Noisy(torch.rand_like))
    result = fixed_points(net, None, starts=3, draws=[torch.full((1, 1, 3), 0.9, dtype=torch.float64)])
    wanted = fixed_points(lp.Recurrent(Noisy(lambda h: torch.full_like(h, 0.9))), None, starts=3)
    torch.testing.assert_close(result.points, wanted.points, rtol=1e-6, atol=1e-6)
    assert "the draws that were passed" in str(result)


@pytest.mark.parametrize(
    "noise",
    [
        lambda h: (torch.rand_like(h) < 0.3).to(h.dtype),
        lambda h: (0.5 * torch.rand_like(h) - 0.1 > h).to(h.dtype),
        lambda h: torch.randint_like(h, 3),
        lambda h: torch.multinomial(torch.ones_like(h), 1).to(h.dtype),
    ],
    ids=["compared", "compared with a value", "whole numbers", "a choice"],
)
def test_noise_without_a_mean_is_refused(noise: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(lp.errors.UntraceableStep, match=r"the noise of this step has no mean: [\s\S]*draws=\[...\]"):
        fixed_points(lp.Recurrent(Noisy(noise)), None, starts=3)


class Tokens(lp.Cell):
    """Reads a token and two vectors."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.embedding = torch.nn.Embedding(5, 2)

    def forward(self, x: tuple[Tensor, dict[str, Tensor]], h: Tensor) -> tuple[Tensor, Tensor]:
        token, more = x
        h = torch.tanh(0.5 * h + self.embedding(token) + more["a"] + more["b"])
        return h, h


@pytest.mark.parametrize("token", [3, torch.tensor(3), torch.tensor([3])], ids=["int", "no axis", "a row"])
def test_inputs_need_no_batch_axis(token: object) -> None:
    net = lp.Recurrent(Tokens())
    a, b = normal(2), normal(2, seed=4)
    rows = isinstance(token, Tensor) and token.dim()
    more = {"a": a.unsqueeze(0), "b": b.unsqueeze(0)} if rows else {"a": a, "b": b}
    result = fixed_points(net, (token, more), starts=3)
    pushed = net.cell.embedding.weight[3].double() + a + b
    torch.testing.assert_close(result.points[0], torch.tanh(0.5 * result.points[0] + pushed))


def test_it_reads_well() -> None:
    net = elman(torch.diag(torch.tensor([0.5, 0.3], dtype=torch.float64)), inputs=1)
    net.cell.b.data.copy_(torch.tensor([0.2, 0.1]))
    assert str(fixed_points(net, torch.zeros(1), starts=3)) == (
        "one fixed point: stable.\n  stable     largest |eigenvalue| 0.433  from 3 starts  (0.365, 0.141)"
    )
