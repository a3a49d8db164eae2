"""What all steps share, drawn once: a box for each parameter, and the sum of the losses."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.picture_layout import layout_picture
from tests.draw.geometry import faults
from tests.nets.twins import thoroughly
from tests.view.test_strip import is_sound

X = torch.zeros(2, 3)


def elman(**options: object) -> lp.Loop:
    return lp.fold(lp.Elman(3, 4, 2), X, **options)  # type: ignore[arg-type]


def test_each_parameter_has_one_box_and_an_arrow_to_every_step() -> None:
    picture = elman().unfold(3).picture("operators", shared=True)
    is_sound(picture)
    boxes = [spot for spot in picture.spots if spot.shape == "parameter"]
    assert sorted(str(spot.name) for spot in boxes) == ["U", "V", "W", "b", "c"]
    assert Counter(line.source for line in picture.lines if line.source in {spot.id for spot in boxes}) == {
        spot.id: 3 for spot in boxes
    }
    each = elman().unfold(3).picture("operators")
    assert sum(spot.shape == "parameter" for spot in each.spots) == 15


@pytest.mark.parametrize("detail", ["textbook", "operators"])
def test_all_losses_lead_to_one_sum(detail: str) -> None:
    picture = elman(loss=mse_loss).unfold(4).picture(detail, shared=True)  # type: ignore[arg-type]
    (total,) = [spot for spot in picture.spots if str(spot.name) == "ΣL"]
    sources = [picture.spot(line.source) for line in picture.lines if line.target == total.id]
    assert [str(spot.name) for spot in sources] == ["L(1)", "L(2)", "L(3)", "L(4)"]


def test_there_is_no_sum_of_one_loss() -> None:
    summary = lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), torch.zeros(5, 2, 3), loss=mse_loss)
    assert "ΣL" not in {str(spot.name) for spot in summary.unfold(3).picture(shared=True).spots}
    assert elman().unfold(3).picture(shared=True) == elman().unfold(3).picture()


def test_without_ends_nothing_is_hinted_at() -> None:
    picture = elman(loss=mse_loss).unfold(3).picture("operators", shared=True, ends=False)
    assert not any(spot.dashed for spot in picture.spots)


def test_truncation_cuts_no_gradient_of_a_parameter() -> None:
    picture = elman(loss=mse_loss).unfold(4).picture("operators", shared=True, gradient=lp.Truncated(2))
    ends = {line.target: line.kind for line in picture.lines if line.kind != "forward"}
    shared = [spot.id for spot in picture.spots if spot.shape == "parameter"]
    assert {ends[id] for id in shared} == {"gradient"}
    assert [spot.place for spot in picture.spots if spot.rail and spot.id not in shared] == ["total.L"]
    assert any(line.kind == "cut" for line in picture.lines)
    assert sum(line.source == "total.L" for line in picture.lines) == 4


def test_the_sum_has_its_number() -> None:
    strip = elman(loss=mse_loss).unfold(3)
    with torch.no_grad():
        (_, losses), _ = strip.run(torch.randn(3, 1, 3), targets=torch.randn(3, 1, 2))
    (total,) = [spot for spot in strip.picture(values=True, shared=True).spots if spot.place == "total.L"]
    assert float(total.numbers[0].texts[0][0]) == pytest.approx(float(losses.sum()), rel=1e-2)


@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize("cell", [lp.Elman(3, 4, 2), lp.LSTM(3, 4), *thoroughly(lp.GRU(3, 4))])
@pytest.mark.parametrize("detail", ["textbook", "operators"])
def test_nothing_lies_on_anything_else(cell: lp.Cell, steps: int, detail: str) -> None:
    strip = lp.fold(cell, X, loss=mse_loss).unfold(steps)
    picture = strip.picture(detail, shared=True)  # type: ignore[arg-type]
    is_sound(picture)
    assert faults(layout_picture(picture)) == []
    rows = layout_picture(strip.picture(detail, shared=True, backward=True)).placed  # type: ignore[arg-type]
    assert min(rows.values(), key=lambda one: one.y).spot.place == "total.L"


@pytest.mark.parametrize("made", ["svg", "text", "dot", "mermaid"])
def test_every_format_writes_it(made: str) -> None:
    drawn = getattr(elman(loss=mse_loss).unfold(3), made)("operators", shared=True)
    assert "ΣL" in drawn
