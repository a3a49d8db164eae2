"""`leporello draw`: every format, every option, and which options go together."""

from __future__ import annotations

import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from leporello import cells
from tests.cli.invoke import drawn, leporello, refused

SHAPES = ("--detail", "textbook"), ("--detail", "operators"), ("--detail", "function")


@pytest.mark.parametrize("name", cells.__all__)
def test_every_built_in_cell_is_drawn_by_its_name_alone(name: str) -> None:
    assert drawn("draw", name.lower()).strip()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_detail_is_drawn_folded_and_unfolded(shape: tuple[str, str], folder: Path) -> None:
    drawn("draw", "elman:3,5,1", *shape, "--out", "folded.svg")
    drawn("draw", "elman:3,5,1", *shape, "--unfold", 3, "--out", "strip.svg")
    assert Path("folded.svg").read_text() != Path("strip.svg").read_text()


def test_details_differ(folder: Path) -> None:
    for shape in SHAPES:
        drawn("draw", "lstm", *shape, "--out", f"{shape[1]}.dot")
    assert len({Path(f"{shape[1]}.dot").read_text() for shape in SHAPES}) == 3


def test_svg_is_whole_xml(folder: Path) -> None:
    assert drawn("draw", "lstm", "--out", "net.svg") == "wrote net.svg\n"
    root = ElementTree.fromstring(Path("net.svg").read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")


def test_png_has_its_signature_and_a_size(folder: Path) -> None:
    drawn("draw", "lstm", "--out", "net.png")
    image = Path("net.png").read_bytes()
    width, height = struct.unpack(">II", image[16:24])
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(width, height) > 50


def test_dot_and_mermaid_are_written_in_their_languages(folder: Path) -> None:
    drawn("draw", "elman", "--out", "net.dot")
    drawn("draw", "elman", "--out", "net.mmd")
    assert Path("net.dot").read_text().lstrip().startswith("digraph")
    assert Path("net.mmd").read_text().lstrip().startswith(("flowchart", "graph", "---", "%%"))


def test_the_suffix_may_be_in_capitals(folder: Path) -> None:
    drawn("draw", "rnn", "--out", "NET.SVG")
    assert "<svg" in Path("NET.SVG").read_text()


def test_the_loss_adds_a_target(folder: Path) -> None:
    drawn("draw", "elman", "--out", "without.mmd")
    drawn("draw", "elman", "--loss", "--out", "with.mmd")
    without, with_loss = Path("without.mmd").read_text(), Path("with.mmd").read_text()
    assert len(with_loss.splitlines()) > len(without.splitlines())


def test_a_forced_jordan_net_is_another_net(folder: Path) -> None:
    drawn("draw", "jordan", "--loss", "--out", "free.dot")
    drawn("draw", "jordan", "--loss", "--forced", "--out", "forced.dot")
    assert Path("free.dot").read_text() != Path("forced.dot").read_text()


def test_backward_adds_arrows(folder: Path) -> None:
    drawn("draw", "elman", "--unfold", 3, "--out", "ahead.svg")
    drawn("draw", "elman", "--unfold", 3, "--backward", "--out", "back.svg")
    ahead, back = Path("ahead.svg").read_text(), Path("back.svg").read_text()
    assert back.count("<path") > ahead.count("<path")


def test_whole_draws_every_step_of_a_long_strip(folder: Path) -> None:
    drawn("draw", "rnn", "--unfold", 11, "--out", "short.svg")
    drawn("draw", "rnn", "--unfold", 11, "--whole", "--out", "whole.svg")
    assert Path("whole.svg").stat().st_size > Path("short.svg").stat().st_size


def test_stages_add_a_legend(folder: Path) -> None:
    drawn("draw", "lstm", "--stages", "--out", "stages.svg")
    assert "step by step" in Path("stages.svg").read_text()


def test_stages_are_told_in_words_where_nothing_is_tinted() -> None:
    last = drawn("draw", "elman", "--stages").splitlines()[-2:]
    assert last == ["step by step       h", "all steps at once  x, o"]
    assert "step by step" not in drawn("draw", "perceptron", "--stages")


def test_an_animation_unfolds_three_steps_unless_told(folder: Path) -> None:
    drawn("draw", "elman", "--animate", "--out", "three.svg")
    drawn("draw", "elman", "--animate", "--unfold", 3, "--out", "also_three.svg")
    drawn("draw", "elman", "--animate", "--unfold", 5, "--out", "five.svg")
    assert Path("three.svg").read_bytes() == Path("also_three.svg").read_bytes()
    ElementTree.fromstring(Path("three.svg").read_text(encoding="utf-8"))
    assert Path("three.svg").read_bytes() != Path("five.svg").read_bytes()


def test_drawn_twice_is_the_same_file(folder: Path) -> None:
    drawn("draw", "lstm:3,5+gru", "--out", "one.svg")
    drawn("draw", "lstm:3,5+gru", "--out", "other.svg")
    assert Path("one.svg").read_bytes() == Path("other.svg").read_bytes()


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_step_is_refused(count: int) -> None:
    assert "--unfold is no number of steps." in refused("draw", "lstm", "--unfold", count)


def test_a_count_that_is_no_number_is_refused() -> None:
    assert "--unfold" in refused("draw", "lstm", "--unfold", "three")


@pytest.mark.parametrize("option", ["--backward", "--whole"])
def test_options_of_a_strip_need_one(option: str) -> None:
    said = refused("draw", "lstm", option)
    assert f"{option} belongs to an unfolded net." in said
    assert f"--unfold 3 {option}" in said


def test_stages_are_those_of_the_folded_net() -> None:
    assert "--stages belongs to the folded net." in refused("draw", "lstm", "--stages", "--unfold", 3)


def test_an_animation_needs_an_svg_file(folder: Path) -> None:
    assert "--animate writes an SVG file" in refused("draw", "lstm", "--animate")
    assert "--animate writes an SVG file" in refused("draw", "lstm", "--animate", "--out", "net.png")


@pytest.mark.parametrize("others", [["--stages"], ["--whole"], ["--detail", "operators"]])
def test_an_animation_is_drawn_in_one_way(others: list[str], folder: Path) -> None:
    assert "do not go together" in refused("draw", "lstm", "--animate", *others, "--out", "net.svg")
    assert not Path("net.svg").exists()


def test_forcing_needs_feedback() -> None:
    said = refused("draw", "elman", "--forced")
    assert "--forced needs a cell that feeds its output back." in said
    assert "jordan" in said


def test_a_loss_needs_an_output(folder: Path) -> None:
    said = refused("draw", "my_model:Silent", "--input", 3, "--loss")
    assert "--loss compares one output" in said
    assert "no output" in said


def test_an_unknown_detail_is_refused_with_those_there_are() -> None:
    said = refused("draw", "lstm", "--detail", "everything")
    assert all(name in said for name in ("textbook", "operators", "function"))


def test_help_names_every_option() -> None:
    said = leporello("draw", "--help").stdout
    options = ["unfold", "detail", "loss", "forced", "backward", "stages", "whole", "animate", "input", "out"]
    assert [name for name in options if f"--{name}" not in said] == []
