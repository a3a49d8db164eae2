"""The factors of random truncation on the gradient's arrows."""

from __future__ import annotations

import torch
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.picture_layout import layout_picture
from tests.draw.geometry import faults


def test_each_arrow_has_its_factor_and_is_cut_where_it_is_zero() -> None:
    strip = lp.fold(lp.Elman(3, 4, 2), torch.zeros(1, 3), loss=mse_loss).unfold(6)
    method = lp.RandomTruncated(keep=0.5)
    torch.manual_seed(1)
    weights = method.weights(6, 1, torch.device("cpu"), torch.float64)[:, 0].tolist()
    torch.manual_seed(1)
    picture = strip.picture(gradient=method)
    back = [line for line in picture.lines if line.kind != "forward" and line.target.startswith("state.h")]
    between = {line.source: line for line in back if line.source.startswith("state.h")}
    assert {0.0, 2.0} == set(weights)
    for step, weight in enumerate(weights, start=1):
        line = between[f"state.h@{step}"]
        assert (line.kind, line.label) == (("gradient", "ξ=2") if weight else ("cut", ""))
    assert faults(layout_picture(picture)) == []
