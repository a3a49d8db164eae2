"""A bidirectional net, drawn: two loops on one input, one of them from right to left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.draw.picture_layout import layout_picture
from tests.draw.geometry import faults
from tests.nets.twins import quickly

INPUTS = torch.zeros(5, 2, 3)
NETS = {
    "one cell": lambda: lp.Bidirectional(lp.RNN(3, 4), lp.RNN(3, 4)),
    "two cells": lambda: lp.Bidirectional(lp.LSTM(3, 4), lp.GRU(3, 4)),
}


def edges(picture: object) -> set[tuple[str, str, str]]:
    names = {spot.id: str(spot.name) for spot in picture.spots}  # type: ignore[attr-defined]
    return {(names[line.source], names[line.target], line.label) for line in picture.lines}  # type: ignore[attr-defined]


def test_both_read_one_input_and_give_one_output() -> None:
    picture = NETS["one cell"]().fold(INPUTS).picture()
    assert edges(picture) == {
        ("x", "h→", "U→"),
        ("x", "h←", "U←"),
        ("h→", "h→", "W→"),
        ("h←", "h←", "W←"),
        ("h→", "o", ""),
        ("h←", "o", ""),
    }


def test_one_runs_ahead_and_one_back() -> None:
    found = edges(NETS["one cell"]().fold(INPUTS).unfold(3).picture())
    assert ("h→(t-1)", "h→(t)", "W→") in found
    assert ("h←(t+1)", "h←(t)", "W←") in found
    assert ("h←(t)", "h←(t+1)", "W←") not in found


def test_numbered_strips_begin_at_both_ends() -> None:
    found = edges(NETS["one cell"]().fold(INPUTS).unfold(5).picture())
    assert ("h→(0)", "h→(1)", "W→") in found
    assert ("h←(6)", "h←(5)", "W←") in found
    assert not any("..." in name for edge in found for name in edge)


@pytest.mark.parametrize("steps", [5, 6, 7])
def test_what_reads_back_is_cut_in_windows_from_the_end(steps: int) -> None:
    """As the net itself cuts: an arrow is barred where the gradient of an output does not reach the next input."""
    net = lp.Bidirectional(lp.RNN(1, 1), lp.RNN(1, 1), gradient=lp.Truncated(3))
    for parameter in net.parameters():
        nn.init.constant_(parameter, 0.7)
    inputs = torch.zeros(steps, 1, 1, requires_grad=True)
    outputs, _ = net(inputs)
    picture = net.fold(inputs).unfold(steps).picture(gradient=lp.Truncated(3))
    names = {spot.id: str(spot.name) for spot in picture.spots}
    kinds = {(names[line.source], names[line.target]): line.kind for line in picture.lines if line.kind != "forward"}
    for step in range(1, steps):
        (grad,) = torch.autograd.grad(outputs[step - 1, 0, 1], inputs, retain_graph=True)
        assert (kinds[f"h←({step})", f"h←({step + 1})"] == "gradient") == bool(grad[step])
        (grad,) = torch.autograd.grad(outputs[step, 0, 0], inputs, retain_graph=True)
        assert (kinds[f"h→({step + 1})", f"h→({step})"] == "gradient") == bool(grad[step - 1])


def test_no_border_is_drawn_where_a_gradient_crosses() -> None:
    both = NETS["one cell"]().fold(INPUTS)
    assert both.unfold(6).picture(gradient=lp.Truncated(3)).borders == (1, 4, 7)  # the same from both ends
    assert both.unfold(5).picture(gradient=lp.Truncated(3)).borders == (1, 6)


@pytest.mark.parametrize("name", quickly(NETS, "two cells"))
@pytest.mark.parametrize("detail", quickly(["textbook", "operators", "function"], "textbook", "function"))
def test_nothing_lies_on_anything_else(name: str, detail: str) -> None:
    both = NETS[name]().fold(INPUTS)
    for picture in (both.picture(detail), both.unfold(3).picture(detail), both.unfold(9).picture(detail)):
        assert faults(layout_picture(picture)) == []
    if detail != "operators":
        assert faults(layout_picture(both.unfold(6).picture(detail, gradient=lp.Truncated(3)))) == []


def test_it_shows_itself() -> None:
    both = NETS["two cells"]().fold(INPUTS, lengths=torch.tensor([5, 3]))
    assert both._repr_svg_().startswith("<svg")
    assert "animation" in both.unfold(3).animate()
    assert repr(both).startswith("<BothWays: <Loop of LSTM")
    assert repr(both.unfold(3)) == "<BothStrips of LSTM and GRU: 3 steps>"
    with pytest.raises(lp.errors.ArgumentError, match="steps"):
        both.unfold(0)


def test_folding_it_as_one_loop_says_what_to_do() -> None:
    with pytest.raises(lp.errors.ArgumentError, match=r"net\.fold\(inputs\) draws both"):
        lp.fold(NETS["one cell"](), INPUTS)
