"""`lyapunov`: exponents that theory knows, and what is said of them."""

from __future__ import annotations

import math

import pytest
import torch

from leporello.analysis import jacobians, lyapunov
from tests.analysis.nets import RADII, elman, example, linear, normal, orthogonal


@pytest.mark.parametrize("radius", RADII)
def test_an_orthogonal_matrix_has_the_logarithm_of_its_radius_everywhere(radius: float) -> None:
    result = lyapunov(linear(radius * orthogonal(5)), normal(20, 3, 3))
    torch.testing.assert_close(
        result.exponents, torch.full((5,), math.log(radius), dtype=torch.float64), rtol=0, atol=1e-12
    )
    assert result.by_row.shape == (3, 5)
    assert result.running.shape == (20, 5)


def test_exponents_are_the_logarithms_of_the_eigenvalues_of_a_normal_matrix() -> None:
    values = torch.tensor([1.5, 0.9, 0.4, 0.1], dtype=torch.float64)
    W = orthogonal(4) @ torch.diag(values) @ orthogonal(4).T
    result = lyapunov(linear(W), normal(150, 1, 3), skip=100)
    torch.testing.assert_close(result.exponents, values.log(), rtol=0, atol=1e-9)
    few = lyapunov(linear(W), normal(150, 1, 3), skip=100, count=2)
    torch.testing.assert_close(few.exponents, values.log()[:2], rtol=0, atol=1e-9)


def test_exponents_are_the_logarithms_of_the_moduli_of_complex_eigenvalues() -> None:
    W = normal(6, 6, seed=4)
    wanted = torch.linalg.eigvals(W).abs().log().sort(descending=True).values
    result = lyapunov(linear(W), normal(2000, 1, 3))
    torch.testing.assert_close(result.exponents, wanted, rtol=0, atol=1e-2)
    assert result.exponents.sum().item() == pytest.approx(torch.linalg.det(W).abs().log().item(), abs=1e-9)


def test_the_largest_is_the_rate_of_gradients_of_a_driven_net() -> None:
    """Both follow the product of the same Jacobians: one from the left, the other from the right."""
    net, inputs = elman(0.9 * orthogonal(6)), 0.3 * normal(300, 1, 3)
    product = torch.eye(6, dtype=torch.float64)
    for step in jacobians(net, inputs).values[:, 0]:
        product = step @ product
    size = torch.linalg.matrix_norm(product, 2).log().item() / 300
    assert lyapunov(net, inputs).exponents[0].item() == pytest.approx(size, abs=1e-2)


def test_verdicts_tell_what_becomes_of_nearby_states() -> None:
    said = [lyapunov(linear(r * orthogonal(2)), normal(30, 1, 3)).verdict for r in RADII]
    assert said[0] == "nearby states come together: their distance halves every 1.0 steps"
    assert said[1].startswith("nearby states keep their distance: the largest exponent is ")
    assert said[2] == "nearby states part: their distance doubles every 1.7 steps"
    assert lyapunov(example("TimeDelay"), normal(9, 1, 3)).verdict == (
        "nothing of a difference between two states is left after some steps"
    )


def test_rows_that_ended_are_counted_by_their_own_length() -> None:
    net, inputs = example("GRU", train=False), normal(6, 2, 3)
    result = lyapunov(net, inputs, lengths=[6, 4])
    torch.testing.assert_close(result.by_row[1], lyapunov(net, inputs[:4, 1:]).by_row[0])


def test_it_reads_well() -> None:
    result = lyapunov(linear(0.5 * orthogonal(8)), normal(20, 1, 3))
    assert str(result).split("\n")[1:] == [
        "  exponents per step   -0.693  -0.693  -0.693  -0.693  -0.693  -0.693  ... -0.693",
        "  8 of them, 0 positive, over 20 steps",
    ]
