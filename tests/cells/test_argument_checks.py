"""Constructor arguments that are refused, each by name."""

from __future__ import annotations

import math

import pytest
import torch

from leporello import cells
from leporello.errors import ArgumentError

SIZES = {
    "Elman": ("inputs", "hidden", "outputs"),
    "Jordan": ("inputs", "hidden", "outputs"),
    "ElmanJordan": ("inputs", "hidden", "outputs"),
    "RNN": ("inputs", "hidden"),
    "GRU": ("inputs", "hidden"),
    "LSTM": ("inputs", "hidden"),
    "LayerNormLSTM": ("inputs", "hidden"),
    "PeepholeLSTM": ("inputs", "hidden"),
    "ZoneoutLSTM": ("inputs", "hidden"),
    "IndRNN": ("inputs", "hidden"),
    "MinGRU": ("inputs", "hidden"),
    "Leaky": ("inputs", "hidden", "outputs"),
    "LIF": ("inputs", "hidden"),
    "Perceptron": ("inputs", "hidden", "outputs"),
    "TimeDelay": ("inputs", "outputs", "window"),
}
NEEDED = {"Leaky": {"alpha": 0.5}}


def test_every_exported_cell_is_in_the_table() -> None:
    assert set(SIZES) == set(cells.__all__)


@pytest.mark.parametrize("bad", [0, -1, 2.0, "3", None, True], ids=repr)
@pytest.mark.parametrize(("name", "argument"), [(name, size) for name, sizes in SIZES.items() for size in sizes])
def test_a_size_that_is_no_positive_integer_is_refused_by_name(name: str, argument: str, bad: object) -> None:
    sizes = [bad if size == argument else 3 for size in SIZES[name]]
    with pytest.raises(ArgumentError, match=f"'{argument}' is no size") as refusal:
        getattr(cells, name)(*sizes, **NEEDED.get(name, {}))
    assert repr(bad) in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "argument", "hint"),
    [
        (lambda: cells.RNN(3, 5, nonlinearity="gelu"), "nonlinearity", "'tanh', 'relu', 'identity'"),
        (lambda: cells.RNN(3, 5, nonlinearity="softplus"), "nonlinearity", "came .*'softplus'"),
        (lambda: cells.Leaky(3, 5, 2, alpha=0.5, nonlinearity="identity"), "nonlinearity", "'softplus'"),
        (lambda: cells.Leaky(3, 5, 2, alpha=0.5, nonlinearity=None), "nonlinearity", "came +None"),
        (lambda: cells.Leaky(3, 5, 2, alpha=0.5, form="voltage"), "form", "'rate', 'current'"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(make, argument: str, hint: str) -> None:
    with pytest.raises(ArgumentError, match=rf"(?s)'{argument}' is not known.*{hint}"):
        make()


@pytest.mark.parametrize("bad", [5, 6, -1, 2.0, True, None], ids=repr)
def test_a_projection_must_be_smaller_than_the_hidden_size(bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'projection' is no size.*smaller than hidden=5"):
        cells.LSTM(3, 5, projection=bad)


@pytest.mark.parametrize("argument", ["zoneout_h", "zoneout_c"])
@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, "0.5", None], ids=repr)
def test_a_probability_outside_zero_to_one_is_refused(argument: str, bad: object) -> None:
    with pytest.raises(ArgumentError, match=f"'{argument}' is no probability"):
        cells.ZoneoutLSTM(3, 5, **{argument: bad})


@pytest.mark.parametrize(
    "bad",
    [0, -0.1, 1.1, math.nan, "fast", None, [0.5] * 4, [[0.5] * 5], [0.5, 0.5, 0.5, 0.5, 0], torch.ones(6)],
    ids=repr,
)
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_an_alpha_outside_zero_to_one_is_refused(bad: object, learn: bool) -> None:
    with pytest.raises(ArgumentError, match="'alpha' is no leak"):
        cells.Leaky(3, 5, 2, alpha=bad, learn_alpha=learn)


def test_an_alpha_of_one_can_stand_but_not_be_learned() -> None:
    assert cells.Leaky(3, 5, 2, alpha=1).alpha == 1.0
    with pytest.raises(ArgumentError, match=r"(?s)'alpha'.*below 1, to be learned"):
        cells.Leaky(3, 5, 2, alpha=1, learn_alpha=True)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "loud", None, True], ids=repr)
def test_a_noise_that_is_no_deviation_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match="'noise' is no standard deviation"):
        cells.Leaky(3, 5, 2, alpha=0.5, noise=bad)


@pytest.mark.parametrize("bad", [[1] * 4, [[1] * 5], [1, 1, 1, 1, 2], [1, 1, 1, 1, 0.5], "EEEII", 1, []], ids=repr)
def test_signs_that_do_not_fit_are_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'signs' does not fit 5 hidden units.*expected +shape \[5\]"):
        cells.Leaky(3, 5, 2, alpha=0.5, signs=bad)


@pytest.mark.parametrize("bad", [torch.ones(5), torch.ones(5, 4), 2 * torch.eye(5), -torch.eye(5), "all"], ids=repr)
def test_a_mask_that_does_not_fit_is_refused(bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)'mask' does not fit 5 hidden units.*expected +shape \[5, 5\]"):
        cells.Leaky(3, 5, 2, alpha=0.5, mask=bad)
