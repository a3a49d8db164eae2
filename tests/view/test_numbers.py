"""Numbers on the spots of a strip: those of the last run, and the gradients that autograd finds."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import leporello as lp
from leporello.draw.picture import Numbers, Picture
from leporello.draw.picture_layout import layout_picture
from leporello.errors import ArgumentError
from leporello.loop.unfold import Unfolding
from tests.draw.geometry import faults
from tests.nets.twins import thoroughly

X = torch.zeros(1, 3)
CLASSES = torch.tensor([[0], [1], [1]])


def strip_of(cell: lp.Cell, batch: int = 1, **options: object) -> Unfolding:
    torch.manual_seed(3)
    strip = lp.fold(cell, X, loss=cross_entropy).unfold(3)  # type: ignore[arg-type]
    strip.run(torch.randn(3, batch, 3), targets=CLASSES.expand(3, batch), **options)  # type: ignore[arg-type]
    return strip


def numbers(picture: Picture, name: str) -> list[list[list[str]]]:
    """The blocks of the spot with a name, as texts with a plain minus."""
    (spot,) = [spot for spot in picture.spots if str(spot.name) == name]
    return [[[text.replace("−", "-") for text in row] for row in block.texts] for block in spot.numbers]


def column(block: list[list[str]]) -> list[float]:
    return [float(text) for (text,) in block]


def by_hand(cell: lp.Elman, inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Values of all steps, and gradients of the sum of losses, from the equations."""
    found: dict[str, Tensor] = {"h(0)": torch.zeros(1, 4, requires_grad=True)}
    total = torch.zeros(())
    for t in (1, 2, 3):
        found[f"a({t})"] = cell.b + inputs[t - 1] @ cell.U.T + found[f"h({t - 1})"] @ cell.W.T
        found[f"h({t})"] = found[f"a({t})"].tanh()
        found[f"o({t})"] = cell.c + found[f"h({t})"] @ cell.V.T
        total = total + cross_entropy(found[f"o({t})"], CLASSES[t - 1], reduction="sum")
    gradients = torch.autograd.grad(total, list(found.values()))
    values = found | {f"ŷ({t})": found[f"o({t})"].softmax(-1) for t in (1, 2, 3)}
    return values, dict(zip(found, gradients, strict=True))


def test_values_and_gradients_are_those_of_the_equations() -> None:
    cell = lp.Elman(3, 4, 2)
    strip = strip_of(cell)
    torch.manual_seed(3)
    values, gradients = by_hand(cell, torch.randn(3, 1, 3))
    picture = strip.picture(values=True, gradients=True, digits=6)
    for name, value in values.items():
        assert column(numbers(picture, name)[0]) == pytest.approx(value[0].tolist(), abs=2e-5), name
    for name, gradient in gradients.items():
        assert column(numbers(picture, name)[1]) == pytest.approx(gradient[0].tolist(), abs=2e-5), name
    for t, right in enumerate(CLASSES.flatten().tolist(), 1):  # L = -log of the right class's probability
        expected = [-1 / p if k == right else 0.0 for k, p in enumerate(values[f"ŷ({t})"][0].tolist())]
        assert column(numbers(picture, f"ŷ({t})")[1]) == pytest.approx(expected, rel=1e-4)


def test_the_numbers_stay_when_parameters_change_afterwards() -> None:
    cell = lp.Elman(3, 4, 2)
    strip = strip_of(cell)
    before = strip.svg(values=True, gradients=True)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(1)
    assert strip.svg(values=True, gradients=True) == before


def test_the_last_run_counts() -> None:
    strip = strip_of(lp.Elman(3, 4, 2))
    strip.run(torch.ones(3, 1, 3), targets=CLASSES)
    assert numbers(strip.picture(values=True), "x(2)") == [[["1"], ["1"], ["1"]]]


def test_a_cut_gradient_is_that_of_its_window() -> None:
    strip = strip_of(lp.Elman(3, 4, 2))
    cut = strip.picture(gradients=("h",), gradient=lp.Truncated(1), digits=6)
    torch.manual_seed(3)
    own = strip.loop.signature.module
    values, _ = by_hand(own, torch.randn(3, 1, 3))
    h = values["h(1)"].detach().requires_grad_()
    cross_entropy(own.c + h @ own.V.T, CLASSES[0], reduction="sum").backward()
    assert column(numbers(cut, "h(1)")[0]) == pytest.approx(h.grad[0].tolist(), abs=1e-5)  # type: ignore[index]
    assert column(numbers(cut, "h(0)")[0]) == [0, 0, 0, 0]


def test_several_rows_are_a_matrix_and_large_ones_a_shape() -> None:
    picture = strip_of(lp.Elman(3, 4, 2), batch=2).picture(values=True)
    assert [len(row) for row in numbers(picture, "h(1)")[0]] == [4, 4]
    assert [len(row) for row in numbers(picture, "L(1)")[0]] == [1, 1]
    assert numbers(strip_of(lp.Elman(3, 50, 2)).picture(values=True), "h(1)") == [[["[50]"]]]
    assert numbers(strip_of(lp.Elman(3, 4, 2), batch=30).picture(values=True), "h(1)") == [[["[30 × 4]"]]]


def test_names_choose_what_is_written() -> None:
    picture = strip_of(lp.Elman(3, 4, 2)).picture(values=("o",), gradients=("h",))
    assert {spot.name.base for spot in picture.spots if spot.numbers} == {"o", "h"}
    assert "a" not in {spot.name.base for spot in picture.spots}
    with pytest.raises(ArgumentError, match="'values' names what the picture does not show"):
        strip_of(lp.Elman(3, 4, 2)).picture(values=("z",))


def test_the_largest_number_has_the_strongest_colour() -> None:
    strip = lp.fold(lp.Elman(3, 4, 2), X).unfold(1)
    strip.run(torch.tensor([[[9.0, -4.0, 0.0]]]))
    (spot,) = [spot for spot in strip.picture(values=("x",)).spots if spot.numbers]
    assert spot.numbers == (Numbers((("9",), ("−4",), ("0",)), ((3,), (-2,), (0,))),)
    assert strip.picture(values=("x",)).scales == (("value", "9"),)


@pytest.mark.parametrize("made", ["svg", "text", "dot", "mermaid"])
def test_every_format_has_the_numbers(made: str) -> None:
    strip = strip_of(lp.Elman(3, 4, 2))
    (number,) = numbers(strip.picture(values=True), "L(2)")[0][0]
    drawn = getattr(strip, made)(values=True).replace("#46;", ".")
    assert number in drawn
    assert number not in getattr(strip, made)().replace("#46;", ".")


def test_a_png_is_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("resvg_py")
    image = strip_of(lp.Elman(3, 4, 2)).png(values=True)
    assert image.save(tmp_path / "strip.png").read_bytes() == image._repr_png_()
    assert image[:4] == b"\x89PNG"


@pytest.mark.parametrize("detail", ["textbook", "operators"])
@pytest.mark.parametrize("cell", [lp.LSTM(3, 3), lp.Jordan(3, 4, 3), *thoroughly(lp.Elman(3, 4, 3), lp.GRU(3, 3))])
@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_lies_on_anything_else(cell: lp.Cell, batch: int, detail: str) -> None:
    strip = strip_of(cell, batch)
    layout = layout_picture(strip.picture(detail, values=True, gradients=True, backward=True))  # type: ignore[arg-type]
    assert faults(layout) == []


def test_every_number_is_inside_its_card() -> None:
    drawn = strip_of(lp.Elman(3, 4, 2), 2).svg(values=True, gradients=True)
    for card in re.findall(r'<rect class="spot" x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)".*', drawn):
        left, top, width, height = map(float, card)
        row = drawn.split(f'x="{card[0]}" y="{card[1]}" width="{card[2]}"')[1].split("\n")[0]
        for x, y in re.findall(r'<text class="number" x="(\S+)" y="(\S+)">', row):
            assert left < float(x) < left + width
            assert top < float(y) < top + height


def test_a_strip_that_was_not_run_says_so() -> None:
    strip = lp.fold(lp.Elman(3, 4, 2), X, loss=mse_loss).unfold(3)
    with pytest.raises(ArgumentError, match=r"has not been run") as refusal:
        strip.svg(values=True)
    assert "strip.run(inputs)" in str(refusal.value)


def test_gradients_need_a_loss() -> None:
    strip = lp.fold(lp.Elman(3, 4, 2), X).unfold(3)
    strip.run(torch.zeros(3, 1, 3))
    with pytest.raises(ArgumentError, match="no loss"):
        strip.svg(gradients=True)


def test_class_indices_are_what_their_one_hot_rows_are() -> None:
    inputs = torch.randn(3, 2, 3)
    classes = torch.tensor([[0, 1], [1, 1], [1, 0]])
    strip = lp.fold(lp.Elman(3, 4, 2), X, loss=cross_entropy).unfold(3)
    rows = nn.functional.one_hot(classes, 2).float()
    torch.testing.assert_close(strip.run(inputs, targets=classes), strip.run(inputs, targets=rows))
    torch.testing.assert_close(strip.run(inputs, given={"y": classes}), strip.run(inputs, given={"y": rows}))
    with pytest.raises(ArgumentError, match="index of no class"):
        strip.run(inputs, targets=classes + 1)


def test_targets_without_a_loss_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no loss that could read the argument 'targets'"):
        lp.fold(lp.Elman(3, 4, 2), X).unfold(3).run(torch.zeros(3, 1, 3), targets=CLASSES)
