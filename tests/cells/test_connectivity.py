"""Dale's law and masks, as the leaky cell uses them."""

import pytest
import torch

from leporello.cells import Leaky
from tests.cells.by_hand import mix, product, tanh, total
from tests.cells.examples import assert_rows, lists, shaken, step_inputs

SIGNS = [1, -1, 0, 1, -1]


def test_a_step_uses_signs_and_mask() -> None:
    mask = (torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    cell = shaken(Leaky(3, 5, 2, alpha=0.25, signs=SIGNS, mask=mask))
    x, h = step_inputs(cell, 3)
    p = lists(cell)
    W = [
        [
            (abs(p.W[to][sender]) * SIGNS[sender] if SIGNS[sender] else p.W[to][sender]) * mask[to, sender].item()
            for sender in range(5)
        ]
        for to in range(5)
    ]
    after = [
        mix(0.25, tanh(total(product(W, old), product(p.U, row), p.b)), old)
        for row, old in zip(x.tolist(), h.tolist(), strict=True)
    ]
    assert_rows(cell(x, h)[1], after)


def test_the_sign_belongs_to_the_sending_unit() -> None:
    cell = shaken(Leaky(3, 5, 2, alpha=1.0, signs=SIGNS, nonlinearity="softplus"))
    x, h = step_inputs(cell, 1)
    jacobian = torch.autograd.functional.jacobian(lambda h: cell(x, h)[1], h)[0, :, 0]  # [receiver, sender]
    assert (jacobian[:, [0, 3]] > 0).all()
    assert (jacobian[:, [1, 4]] < 0).all()
    assert (jacobian[:, 2] > 0).any()
    assert (jacobian[:, 2] < 0).any()


def test_signs_hold_after_any_update() -> None:
    cell = Leaky(3, 5, 2, alpha=0.5, signs=SIGNS)
    x, h = step_inputs(cell, 3)
    for _ in range(5):
        cell.zero_grad()
        cell(x, h)[0].sum().backward()
        torch.optim.SGD(cell.parameters(), lr=5.0).step()
    connections = cell.connections()
    assert (connections[:, [0, 3]] >= 0).all()
    assert (connections[:, [1, 4]] <= 0).all()


def test_absent_connections_stay_absent_and_get_no_gradient() -> None:
    cell = shaken(Leaky(3, 5, 2, alpha=0.5, mask=1 - torch.eye(5)))
    assert not cell.connections().diagonal().any()
    cell(*step_inputs(cell, 3))[0].sum().backward()
    assert not cell.W.grad.diagonal().any()
    assert cell.W.grad.any()


def test_signs_and_mask_are_buffers() -> None:
    cell = Leaky(3, 5, 2, alpha=0.5, signs=SIGNS, mask=torch.ones(5, 5, dtype=torch.bool))
    assert {name for name, _ in cell.named_buffers()} == {"signs", "mask"}
    assert {buffer.dtype for buffer in cell.double().buffers()} == {torch.float64}


def test_a_later_change_of_what_was_passed_does_not_reach_the_cell() -> None:
    mask, alpha = torch.ones(5, 5), torch.full((5,), 0.5)
    cell = Leaky(3, 5, 2, alpha=alpha, mask=mask)
    mask.zero_()
    alpha.zero_()
    assert cell.mask.all()
    assert (cell.alpha == 0.5).all()


@pytest.mark.parametrize("excitatory", [63, 50, 31, 3, 0])
def test_signed_connections_start_with_a_spectral_radius_near_one(excitatory: int) -> None:
    torch.manual_seed(0)
    signs = [1] * excitatory + [-1] * (63 - excitatory)
    W = Leaky(3, 63, 2, alpha=0.1, signs=signs).connections().detach()
    assert torch.linalg.eigvals(W).abs().max().item() == pytest.approx(1.0, rel=0.02)


def test_excitation_and_inhibition_balance_at_first() -> None:
    torch.manual_seed(0)
    W = Leaky(3, 200, 2, alpha=0.1, signs=[1] * 160 + [-1] * 40).connections().detach()
    excitation, inhibition = W[:, :160].sum().item(), -W[:, 160:].sum().item()
    assert excitation == pytest.approx(inhibition, rel=0.05)


def test_a_wiring_without_cycles_starts_finite() -> None:
    W = Leaky(3, 5, 2, alpha=0.1, mask=torch.ones(5, 5).triu(1)).W
    assert W.isfinite().all()
    assert W.any()
