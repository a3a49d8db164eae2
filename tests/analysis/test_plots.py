"""Plots: figures that belong to nobody, drawn without a display, with every glyph (a missing one is a warning)."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import matplotlib
import pytest
import torch
from matplotlib import _pylab_helpers
from matplotlib.figure import Figure

import leporello as lp
from leporello.analysis import fixed_points, gradient_flow, jacobians, lyapunov, reach, terms
from leporello.errors import ArgumentError, MissingPackage
from leporello.plotting import figures
from tests.analysis.nets import RADII, elman, example, linear, normal, orthogonal
from tests.errors.said import said


def square(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum(-1)


def results(net: lp.Recurrent, length: int) -> dict[str, Any]:
    inputs = normal(length, 2, 3)
    return {
        "flow": gradient_flow(net, inputs, square),
        "reach": reach(net, inputs),
        "jacobians": jacobians(net, inputs),
        "lyapunov": lyapunov(net, inputs),
        "fixed points": fixed_points(net, normal(1, 3), starts=5),
        "terms": terms(net, inputs, length),
    }


def drawn(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    return buffer.getvalue()


NETS = {
    "linear 0.5": lambda: linear(0.5 * orthogonal(4)),
    "linear 1.0": lambda: linear(orthogonal(4)),
    "linear 1.5": lambda: linear(1.5 * orthogonal(4)),
    "one unit": lambda: elman(torch.tensor([[1.5]], dtype=torch.float64)),
    "two units": lambda: elman(1.5 * orthogonal(2)),
    "LSTM": lambda: example("LSTM"),
    "TimeDelay": lambda: example("TimeDelay"),
}


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("LSTM", 13),
        ("two units", 2),
        ("linear 1.0", 1),
        *(pytest.param(name, 13, marks=pytest.mark.slow) for name in NETS if name != "LSTM"),
        *(pytest.param("LSTM", length, marks=pytest.mark.slow) for length in (1, 2)),
    ],
)
def test_every_result_of_every_length_is_drawn(name: str, length: int) -> None:
    for what, result in results(NETS[name](), length).items():
        figure = result.plot()
        assert isinstance(figure, Figure), what
        assert drawn(figure).startswith(b"\x89PNG"), what
        text = figure._suptitle.get_text().replace("\n", " ")
        assert text == result.verdict[0].upper() + result.verdict[1:] + "."
        for axes in figure.axes:
            assert axes.get_xlabel() or axes.get_ylabel()  # colour bars have one of them


def test_a_notebook_gets_a_picture() -> None:
    assert results(linear(orthogonal(3)), 5)["terms"]._repr_png_().startswith(b"\x89PNG")


def test_nothing_is_left_open() -> None:
    for result in results(linear(orthogonal(3)), 5).values():
        result.plot()
    assert _pylab_helpers.Gcf.get_all_fig_managers() == []


def test_ways_that_lead_beyond_all_numbers_are_left_where_they_leave() -> None:
    result = fixed_points(linear(1e20 * orthogonal(3)), torch.zeros(1, 3), starts=4)
    assert not result.paths.isfinite().all()
    figure = result.plot()
    assert drawn(figure)
    assert max(map(abs, figure.axes[0].get_xlim())) < 20


@pytest.mark.parametrize("name", ["flow", "fixed points"])
def test_axes_may_be_given(name: str) -> None:
    result = results(linear(0.5 * orthogonal(3)), 5)[name]
    figure = Figure()
    ax = figure.subplots(1, 2)
    assert result.plot(ax=ax if name == "flow" else ax[0]) is figure
    assert ax[0].get_xlabel()
    assert figure._suptitle is None
    assert drawn(figure)
    expected = "2 matplotlib axes" if name == "flow" else "one matplotlib axes"
    said(ArgumentError, lambda: result.plot(ax=3), "'ax' is not what this plot is drawn on", expected)


def test_the_fitted_rate_is_in_the_key() -> None:
    for radius in RADII:
        flow = gradient_flow(linear(radius * orthogonal(3)), normal(9, 2, 3), square)
        labels = flow.plot().axes[1].get_legend_handles_labels()[1]
        assert labels == ["single losses", "all of them", f"{radius:g} a step"]


def test_sizes_are_drawn_relative_to_their_own_step() -> None:
    flow = gradient_flow(linear(1.5 * orthogonal(3)), normal(9, 2, 3), square)
    shades = torch.as_tensor(flow.plot().axes[0].get_images()[0].get_array().filled(torch.nan))
    torch.testing.assert_close(shades[8], 1.5 ** torch.arange(8, -1, -1, dtype=torch.float64))
    assert shades[0, 1:].isnan().all()


def test_without_matplotlib_there_is_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = gradient_flow(linear(0.5 * orthogonal(3)), normal(5, 2, 3), square)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    assert flow._repr_png_() is None
    said(MissingPackage, flow.plot, "needs the package matplotlib", "leporello[plots]")
    assert "keeps 0.5 of the gradient" in str(flow)


def test_matplotlib_is_imported_only_to_draw_and_pyplot_never() -> None:
    code = (
        "import sys, torch, leporello as lp\n"
        "net = lp.Recurrent(lp.Elman(2, 3, 1), engine='stepwise')\n"
        "flow = lp.analysis.gradient_flow(net, torch.randn(4, 1, 2), lambda o: o.sum(-1))\n"
        "str(flow)\n"
        "assert 'matplotlib' not in sys.modules\n"
        "flow._repr_png_()\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_settings_of_matplotlib_stay_as_they_are() -> None:
    before = dict(matplotlib.rcParams)
    drawn(results(linear(orthogonal(3)), 4)["flow"].plot())
    assert dict(matplotlib.rcParams) == before
