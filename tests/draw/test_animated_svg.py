"""The animation: one file without scripts, in which every moment is drawn."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import leporello as lp

X = torch.zeros(2, 3)
CELLS = {
    "Elman": lambda: lp.fold(lp.Elman(3, 4, 2), X, loss=nn.functional.mse_loss),
    "LSTM": lambda: lp.fold(lp.LSTM(3, 4), X),
    "TimeDelay": lambda: lp.fold(lp.TimeDelay(3, 4, 3), X),
    "Perceptron": lambda: lp.fold(lp.Perceptron(3, 4, 2), X),
    "Summary": lambda: lp.fold(lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)), torch.zeros(5, 2, 3)),
}


@pytest.mark.parametrize("name", CELLS)
def test_it_is_one_file_without_scripts(name: str) -> None:
    drawn = CELLS[name]().unfold(3).animate()
    ElementTree.fromstring(drawn)
    assert not re.search(r"<script|href|url\(|@import|<image|onload", drawn)


def test_every_animation_that_is_used_is_defined() -> None:
    drawn = CELLS["Elman"]().unfold(3).animate()
    used = set(re.findall(r"animation: (\w+) ", drawn)) - {"none"}
    assert used == set(re.findall(r"@keyframes (\w+)", drawn))
    for name in ("closed", "between", "glow", "back"):
        assert any(own.endswith(name) for own in used), name


def test_columns_come_out_of_the_middle_one() -> None:
    drawn = CELLS["Elman"]().unfold(3).animate()
    away = [
        float(x) for x in re.findall(r"@keyframes \w+slide\d+ \{ 0%, [\d.]+% \{ transform: translateX\((.+?)px", drawn)
    ]
    assert away == sorted(away, reverse=True)
    assert away[2] == 0  # begin, t-1, t, t+1, end


def test_values_run_forwards_and_gradients_backwards() -> None:
    drawn = CELLS["Elman"]().unfold(3).animate()
    glow = [float(delay) for delay in re.findall(r'animation-delay: ([\d.]+)s" class="glow', drawn)]
    back = [float(delay) for delay in re.findall(r'class="back" style="animation-delay: ([\d.]+)s', drawn)]
    columns = re.findall(r'<g class="column c(\d)">(.*?)</g>\n', drawn)
    begins = [min(map(float, re.findall(r"animation-delay: ([\d.]+)s", inner)), default=None) for _, inner in columns]
    assert begins == sorted(begins)  # type: ignore[type-var]
    assert max(glow) < min(back)


def test_where_nothing_may_move_the_open_strip_stands_still() -> None:
    drawn = CELLS["Elman"]().unfold(3).animate()
    assert re.search(
        r"@media \(prefers-reduced-motion: reduce\) \{ #\w+ \* \{ animation: none !important; \} \}", drawn
    )
    assert re.search(r"\.loop \{ opacity: 0;", drawn)  # without animation the closed loop is not seen


def test_the_open_strip_is_drawn_as_a_still_one_is() -> None:
    """With the dots where lines part, and with what it leaves out."""
    strip = CELLS["LSTM"]().unfold(9)
    still, moving = strip.svg(backward=True), strip.animate()
    assert "… 3 steps …" in moving
    opened = moving.split('<g class="between">')[1]
    assert opened.count('class="point"') == still.count('class="point"') > 0


def test_the_closed_loop_stands_where_its_step_will() -> None:
    drawn = CELLS["Elman"]().unfold(3).animate()
    dy = float(re.search(r'<g transform="translate\(\S+ (\S+)\)">', drawn)[1])  # type: ignore[index]
    closed, opened = drawn.split('<g class="between">')
    heights = [
        {round(float(y) + by, 1) for y in re.findall(r'class="(?:glow )?spot" x="\S+" y="(\S+)"', part)}
        for part, by in ((closed, dy), (opened, 0.0))
    ]
    assert len(heights[0]) == 5
    assert heights[0] <= heights[1]
