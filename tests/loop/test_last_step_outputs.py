"""Outputs of the last step alone: what a summary's Loop has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.view.folded_loop import loop_from
from tests.close import assert_close

INPUTS = torch.randn(5, 2, 3)


def summary() -> lp.Summary:
    return lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2))


def test_the_strip_of_a_summary_computes_its_output_once() -> None:
    strip = lp.fold(summary(), INPUTS).unfold(5)
    products = [node for node in strip.nodes if "mm" in str(node.target)]
    assert len(products) == 5 * 2 + 1


def test_the_strip_of_a_summary_gives_what_the_summary_gives() -> None:
    net = summary()
    outputs, state = net(INPUTS)
    found, final = lp.fold(net, INPUTS).unfold(5).run(INPUTS)
    assert_close({"o": found, "h": final}, {"o": outputs, "h": state}, "the strip")


def test_a_loss_on_it_compares_one_target() -> None:
    net, target = summary(), torch.randn(2, 2)
    loop = lp.fold(net, INPUTS, loss=nn.functional.mse_loss)
    assert loop.last_step_outputs == ("o", "L")
    (outputs, loss), _ = loop.unfold(5).run(INPUTS, given={"y": target})
    assert_close({"L": loss}, {"L": (outputs - target).square().mean(1)}, "the strip")


def test_a_loss_of_every_step_is_not_ended() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), INPUTS[0], loss=nn.functional.mse_loss)
    assert loop.last_step_outputs == ()


@pytest.mark.parametrize("loss", [None, nn.functional.mse_loss])
def test_text_says_so_and_is_read_back(loss: object) -> None:
    loop = lp.fold(summary(), INPUTS, loss=loss)  # type: ignore[arg-type]
    assert "output final 'o'" in loop.text()
    again = loop_from(loop.text())
    assert again.text() == loop.text()
    assert again.last_step_outputs == loop.last_step_outputs
