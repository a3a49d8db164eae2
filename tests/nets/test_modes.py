"""Without gradients, in inference, in training and not, under a profiler."""

from __future__ import annotations

import cProfile
import sys
from typing import Any

import pytest
import torch

import leporello as lp
from tests.nets.twins import FASTEST, agrees_with_the_plain_loop, close, normal, shaken, somewhere


@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_outputs_are_the_same(mode: Any, engine: str) -> None:
    """In either order: a net traced in one mode serves in the other."""
    x, more = normal(5, 3, 3), {"lengths": [5, 2, 4], "resets": somewhere(5, 3)}
    net = lp.Recurrent(shaken(lp.Leaky(3, 4, 2, alpha=[0.1, 0.2, 0.3, 0.4], mask=1 - torch.eye(4))), engine=engine)
    with mode():
        outputs, state = net(x, **more)
        assert not outputs.requires_grad
        assert not state.requires_grad
        stepped, _ = net.step(x[0])
    wanted = net(x, **more)
    assert wanted[0].requires_grad
    close((outputs, state), wanted)
    close(stepped, net(x)[0][0])
    agrees_with_the_plain_loop(net, x, **more)
    with mode():
        close(net(x, **more), wanted)


def test_in_inference_the_results_are_inference_tensors() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    with torch.inference_mode():
        outputs, state = net(normal(2, 1, 3).float())
    assert outputs.is_inference()
    assert state.is_inference()


def test_a_net_without_gradients_to_give_saves_nothing() -> None:
    net = lp.Recurrent(lp.GRU(3, 4).requires_grad_(False))
    outputs, _ = net(normal(2, 1, 3).float())
    assert outputs.grad_fn is None


@pytest.mark.parametrize("engine", FASTEST)
def test_train_and_eval_switch_what_is_random(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.Stack(lp.ZoneoutLSTM(3, 4), lp.Leaky(4, 3, 2, alpha=0.2, noise=0.5))), engine=engine)
    x = normal(5, 3, 3)
    with torch.no_grad():
        net.train()
        assert not torch.equal(net(x)[0], net(x)[0])
        draws = net.draw(x)
        close(net(x, draws=draws), net(x, draws=draws), tolerance=0)
        torch.manual_seed(1)
        one = net(x)
        torch.manual_seed(1)
        close(net(x), one, tolerance=0)
        net.eval()
        assert net.draw(x) == []
        close(net(x), net(x), tolerance=0)


def test_zoneout_in_training_keeps_values_as_often_as_said() -> None:
    net = lp.Recurrent(lp.record(lp.ZoneoutLSTM(3, 40, zoneout_h=0.2, zoneout_c=0.7)))
    with torch.no_grad():
        (_, values), _ = net(torch.randn(30, 20, 3))
    for name, chance in (("h", 0.2), ("c", 0.7)):
        kept = (values[name][1:] == values[name][:-1]).double().mean().item()
        assert abs(kept - chance) < 0.02  # 23,200 draws: five standard deviations


def test_a_net_can_be_traced_under_a_profiler() -> None:
    net, profile = lp.Recurrent(lp.GRU(3, 4)), cProfile.Profile()
    profile.enable()
    try:
        with torch.no_grad():
            net(normal(2, 1, 3).float())
            sorted(range(10), key=str)
    finally:
        profile.disable()
    assert any("sorted" in str(entry.code) for entry in profile.getstats())  # it still listens after the trace
    heard: list[str] = []

    def listener(frame: Any, event: str, argument: Any) -> None:
        heard.append(event)

    sys.setprofile(listener)
    try:
        lp.fold(lp.GRU(3, 4), torch.ones(1, 3))
        assert sys.getprofile() is listener
    finally:
        sys.setprofile(None)
    assert heard


def test_default_dtype_and_grad_mode_are_left_as_they_were() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    with torch.no_grad():
        net(normal(2, 1, 3).float())
        assert not torch.is_grad_enabled()
    net(normal(2, 1, 3).float())
    assert torch.is_grad_enabled()
    assert sys.getprofile() is None
