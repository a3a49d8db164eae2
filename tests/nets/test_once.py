"""`lp.once`: random numbers that all steps of a call share."""

import pytest
import torch
from torch import nn

import leporello as lp
from tests.nets.twins import ENGINES, FASTEST, close, thoroughly

X = torch.randn(7, 5, 3)


class Dropped(lp.Cell):
    """Recurrent weights dropped for a whole call, and a mask of the state that each row keeps."""

    def __init__(self):
        super().__init__(h=6)
        self.U, self.W = nn.Linear(3, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x, h):
        weight = lp.once(nn.functional.dropout, self.W.weight, 0.5, self.training)
        mask = lp.once(lambda: torch.bernoulli(torch.full_like(h, 0.7)))
        h = torch.tanh(self.U(x) + (h * mask) @ weight.T + 0.1 * torch.randn_like(h))
        return (h, mask), h


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_those_of_the_plain_loop_with_the_same_numbers(engine):
    report = lp.check_gradients(lp.Recurrent(Dropped(), engine=engine), X)
    assert report.ok, report


@pytest.mark.parametrize("engine", ENGINES)
def test_all_steps_share_them_and_calls_do_not(engine):
    net = lp.Recurrent(Dropped(), engine=engine)
    masks = [net(X)[0][1] for _ in range(4)]  # cached calls too
    for mask in masks:
        assert (mask == mask[0]).all()
        assert len(mask[0].unique(dim=0)) > 1  # rows have their own
    assert any(not torch.equal(mask, masks[0]) for mask in masks)


@pytest.mark.parametrize("engine", FASTEST)
def test_they_are_repeated_by_the_argument_draws(engine):
    net = lp.Recurrent(Dropped(), engine=engine)
    draws = net.draw(X)
    assert [tuple(draw.shape) for draw in draws] == [(6, 6), (5, 6), (7, 5, 6)]
    first, second = net(X, draws=draws)[0], net(X, draws=draws)[0]
    close(first[0], second[0], 0)
    close(net.fold(X).unfold(7).run(X, draws=draws)[0][0], first[0], 1e-6)
    with pytest.raises(lp.errors.ArgumentError, match=r"draws\[0\] has the wrong form"):
        net(X, draws=[draws[0][None], *draws[1:]])


@pytest.mark.parametrize("method", [lp.Checkpointed(2), *thoroughly(lp.Truncated(3), lp.RTRL())])
def test_every_gradient_method_shares_them(method):
    report = lp.check_gradients(lp.Recurrent(Dropped(), gradient=method), X)
    assert report.ok, report


def test_a_single_step_takes_them_as_a_call_does():
    net = lp.Recurrent(Dropped())
    draws = net.draw(X)
    whole, _ = net(X, draws=draws)
    (output, _), _ = net.step(X[0], draws=[*draws[:2], draws[2][0]])
    close(output, whole[0][0], 1e-6)


def test_a_cell_by_hand_draws_at_every_step():
    cell = Dropped()
    (_, one), h = cell(X[0])
    assert any(not torch.equal(one, cell(X[0], h)[0][1]) for _ in range(5))
