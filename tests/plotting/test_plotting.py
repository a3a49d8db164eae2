"""The plotting kit: shades, glyphs, files that are the same twice, and the error without matplotlib."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from matplotlib.colors import to_rgb

from leporello.errors import MissingPackage
from leporello.plotting import (
    SHADES,
    axes_side_by_side,
    axes_stacked,
    bar_chart,
    figure_bytes,
    figure_title,
    heatmap,
    legend,
    log_axis_plain_numbers,
    with_font_glyphs,
)
from tests.errors.said import said


def test_shades_grow_darker_all_the_way() -> None:
    light = [sum(share * part for share, part in zip((0.299, 0.587, 0.114), to_rgb(c), strict=True)) for c in SHADES]
    assert light == sorted(light, reverse=True)
    assert min(a - b for a, b in itertools.pairwise(light)) > 0.1


def test_letters_that_the_font_does_not_have_become_dots() -> None:
    assert with_font_glyphs("红楼梦 a\nb") == "… a\nb"


@pytest.mark.parametrize("file_format", ["svg", "png"])
def test_the_same_figure_gives_the_same_bytes(file_format: str) -> None:
    def drawn() -> bytes:
        figure, (above, below) = axes_stacked(4, 3, (2, 1))
        above.plot([1, 2], [3, 4], label="$a")
        log_axis_plain_numbers(above, [3.0, 4.0])
        legend(above)
        heatmap(below, torch.rand(3, 3, generator=torch.Generator().manual_seed(0)), "title", "x", "y", "size")
        figure_title(figure, "a dollar: $x_1$")
        return figure_bytes(figure, file_format)

    assert drawn() == drawn()


def test_a_bar_without_a_value_says_so() -> None:
    _, (ax,) = axes_side_by_side(None, 1, 4, 2)
    bar_chart(ax, ["a", "b"], [2.0, float("nan")], "{:.1f}".format, "title", "x")
    assert [text.get_text() for text in ax.texts] == ["2.0", "not counted"]
    assert [bar.get_width() for bar in ax.patches] == [2.0, 0.0]


def test_without_matplotlib_a_figure_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for new_figure in (lambda: axes_stacked(4, 3, (1,)), lambda: axes_side_by_side(None, 1, 4, 3)):
        said(MissingPackage, new_figure, "needs the package matplotlib", "leporello[plots]")
