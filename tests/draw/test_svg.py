"""SVG: a file that every parser reads, whatever the names; with words for those who cannot see it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.draw.picture import Line, Name, Picture, Spot
from leporello.draw.sizes import names_width, text_width
from leporello.draw.svg import svg
from leporello.draw.svg_style import FONT, STYLE
from tests.draw.hostile import HOSTILE

X = torch.zeros(2, 3)
SPACE = "{http://www.w3.org/2000/svg}"


def of_names(name: str) -> Picture:
    """A picture in which everything is called the same."""
    spots = (
        Spot("1", Name(name, name), "a", tooltip=name),
        Spot("2", Name(name, time=name), "b", tooltip=name),
    )
    lines = (Line("1", "2", (Name(name),), tooltip=name), Line("2", "2", (Name(name, name),), delay=1))
    return Picture(name, name, spots, lines, captions={0: name}, legend={"stepwise": name})


def texts(drawn: str) -> list[str]:
    root = ElementTree.fromstring(drawn)
    return ["".join(element.itertext()) for element in root.iter(f"{SPACE}text")]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_come_out_as_they_are(name: str) -> None:
    if any(ord(letter) < 32 and letter not in "\t\n" for letter in name) or "\r" in name:
        pytest.skip("no XML can hold this name")
    drawn = svg(of_names(name))
    found = texts(drawn)
    assert found.count(name + name) == (2 if name else 6)  # a spot and a label, each with its index
    assert not name or f"{name}({name})" in found
    titles = [element.text for element in ElementTree.fromstring(drawn).iter(f"{SPACE}title")]
    assert {title or "" for title in titles} == {name}


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    found = texts(svg(of_names("a\x00b\x1bc\ud800d")))
    assert "a\ufffdb\ufffdc\ufffdd" in "".join(found)


class Leaf(lp.Cell):
    """A state with a name of the user's own."""

    def __init__(self, name: str) -> None:
        super().__init__(**{name: 3})

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + h)
        return h, h


@pytest.mark.parametrize("name", ["状态", "<b>", '"', "a&b", "h'"])
def test_names_of_states_are_drawn(name: str) -> None:
    loop = lp.fold(Leaf(name), X)
    assert name in texts(loop.svg())
    assert f"{name}(t)" in texts(loop.unfold(3).svg())
    assert name in str(loop)


def test_a_screen_reader_finds_a_title_and_a_description() -> None:
    root = ElementTree.fromstring(lp.fold(lp.Elman(3, 4, 2), X).svg())
    assert root.attrib["role"] == "img"
    named = {element.attrib.get("id"): element.text for element in root if element.attrib.get("id")}
    assert root.attrib["aria-labelledby"].split() == list(named)
    title, description = named.values()
    assert title == "Elman, folded"
    assert "h goes to h through W, one step later" in str(description)


def test_pictures_on_one_page_leave_each_other_alone() -> None:
    """A notebook puts them into its own page: names and rules must be a picture's own."""
    loop = lp.fold(lp.Elman(3, 4, 2), X)
    drawn = [loop.svg(), loop.unfold(3).svg(), loop.unfold(3).animate()]
    names = [set(re.findall(r' id="([^"]+)"', one)) for one in drawn]
    assert len(set.union(*names)) == sum(map(len, names)) == 9
    assert loop.svg() == drawn[0]
    for one, ids in zip(drawn, names, strict=True):
        own = min(ids)
        style = one.split("<style>")[1].split("</style>")[0]
        rules = re.sub(r"@keyframes (\w+) \{.*\}|@media [^{]*\{", "", style)
        selectors = [selector.strip() for rule in re.findall(r"([^{}]+)\{", rules) for selector in rule.split(",")]
        assert len(selectors) > 20
        assert all(selector.startswith(f"#{own} ") for selector in selectors), selectors
        assert all(name.startswith(own) for name in re.findall(r"@keyframes (\w+)", style))


def test_a_label_holds_to_its_line_in_any_font() -> None:
    """Left of a line that goes up it ends there, however wide its letters are."""
    picture = Picture(
        "", "", (Spot("1", Name("x"), "a"), Spot("2", Name("h"), "b")), (Line("1", "2", (Name("long"),)),)
    )
    drawn = ElementTree.fromstring(svg(picture))
    label = next(element for element in drawn.iter(f"{SPACE}text") if element.text == "long")
    (circle,) = {element.attrib["x"] for element in drawn.iter(f"{SPACE}text") if element.text in ("x", "h")}
    assert label.attrib["style"] == "text-anchor: end"
    assert 2 <= float(circle) - float(label.attrib["x"]) <= 6


def test_nothing_is_told_by_colour_alone() -> None:
    """What is tinted is thicker too; gradients are dashed, cut ones dotted and barred."""
    rules = dict(re.findall(r"\.([\w.]+)(?:, \.[\w.]+)* \{([^}]*)\}", STYLE.split("@media")[0]))
    assert "stroke-width: 2.4" in rules["stepwise"]
    assert "stroke-width: 2.4" in rules["line.inside"]
    assert "stroke-dasharray" in rules["line.gradient"]
    assert "stroke-dasharray" in rules["line.cut"]


def test_dark_pages_turn_ink_and_paper_round() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    assert _contrast(light, "text", "spot") > 12
    assert _contrast(dark, "text", "spot") > 10
    assert _contrast(light, "text", "parameter") > 7
    assert _contrast(dark, "text", "parameter") > 5
    assert _contrast(light, "text", "stepwise") > 7
    assert _contrast(dark, "text", "stepwise") > 5


def test_ink_stands_on_paper_of_its_own() -> None:
    """What a reader prefers need not be what the page around the picture is."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    assert _contrast(light, "text", "paper") > 12
    assert _contrast(dark, "text", "paper") > 10
    root = ElementTree.fromstring(lp.fold(lp.Elman(3, 4, 2), X).unfold(3).svg())
    paper = next(element for element in root.iter(f"{SPACE}rect"))
    assert paper.attrib["class"] == "paper"
    assert [paper.attrib[side] for side in ("x", "y", "width", "height")] == root.attrib["viewBox"].split()


def _contrast(style: str, ink: str, paper: str) -> float:
    """The ratio of luminances, as the accessibility guidelines define it."""
    colours = []
    for rule in (ink, paper):
        found = re.search(rf"(?:^|[\s.]){rule} {{[^}}]*?fill: #(\w{{6}})", style)
        assert found is not None, rule
        parts = [int(found[1][place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        colours.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(colours) + 0.05) / (min(colours) + 0.05)


def test_fonts_end_with_one_that_exists_everywhere() -> None:
    assert FONT.split(", ")[-1] == "serif"


def test_a_file_needs_nothing_from_elsewhere() -> None:
    drawn = lp.fold(lp.LSTM(3, 4), X).unfold(3).svg(backward=True)
    assert not re.search(r"<script|href|url\(|@import|<image|onload", drawn)
    assert drawn.count("http") == 1  # the name of the language


def test_saving_gives_the_path(tmp_path: Path) -> None:
    drawn = lp.fold(lp.GRU(3, 4), X).svg()
    path = drawn.save(tmp_path / "gru.svg")
    assert path.read_text(encoding="utf-8") == drawn == drawn._repr_svg_()


def test_a_file_of_another_kind_is_refused_and_not_written(tmp_path: Path) -> None:
    strip = lp.fold(lp.GRU(3, 4), X).unfold(2)
    for picture, name in ((strip.svg(), "net.PNG"), (strip.png(), "net.svg")):
        with pytest.raises(lp.errors.ArgumentError, match="names a"):
            picture.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_notebooks_show_loops_strips_and_splits() -> None:
    loop = lp.fold(lp.GRU(3, 4), X)
    for shown in (loop, loop.unfold(3), loop.split()):
        assert ElementTree.fromstring(shown._repr_svg_()).tag == f"{SPACE}svg"


def test_a_split_is_tinted_and_explained() -> None:
    drawn = lp.fold(lp.Elman(3, 4, 2), X).split().svg()
    assert {"step by step", "all steps at once"} <= set(texts(drawn))
    tinted = re.findall(r'<rect class="spot stepwise".*?<text[^>]*>(\w+)', drawn)
    assert tinted[0] == "h"
    assert "stepwise" not in lp.fold(lp.Elman(3, 4, 2), X).svg().split("</style>")[1]


def test_cut_gradients_are_barred_at_the_border_of_a_window() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X, loss=nn.functional.mse_loss)
    drawn = loop.unfold(6).svg(gradient=lp.Truncated(3)).split("</style>")[1]
    assert drawn.count('class="bars"') == 2  # the call's beginning, and between steps 3 and 4
    assert drawn.count('class="line border"') == 2
    assert loop.unfold(6).svg(backward=True).split("</style>")[1].count('class="bars"') == 0


@pytest.mark.parametrize(
    ("written", "base", "index"),
    [("W_xh", "W", "xh"), ("b_h", "b", "h"), ("h_t'", "h'", "t"), ("rnn_ih", "rnn", "ih"), ("∂L/∂h_t", "∂L/∂h", "t")],
)
def test_letters_after_an_underscore_are_an_index(written: str, base: str, index: str) -> None:
    spots = (Spot("1", Name("x"), "a"), Spot("2", Name("h"), "b"))
    drawn = svg(Picture("", "", spots, (Line("1", "2", (Name(written), Name("V", "0"))),)))
    assert f'>{base}<tspan class="small" dy="3">{index}</tspan><tspan dy="-3">, </tspan>V' in drawn
    assert names_width((Name(written),)) < text_width(written, 16)


@pytest.mark.parametrize("written", ["new_state", "from_x", "_x", "x_", "a_b_c", "W_hidden"])
def test_longer_words_with_underscores_stay_as_they_are(written: str) -> None:
    assert Name(written).set == Name(written)
    assert written in texts(svg(Picture("", "", (Spot("1", Name(written), "a"),), ())))


def test_an_index_of_a_name_comes_before_that_of_its_layer() -> None:
    assert Name("W_xh", "0").set == Name("W", "xh,0")
    assert str(Name("W_xh", "0")) == "W_xh0"
