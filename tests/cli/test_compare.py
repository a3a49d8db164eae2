"""`leporello compare`: runs side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leporello.language.run.folder import Run
from tests.cli.invoke import drawn, leporello, refused
from tests.language.tiny import configured, tiny_run  # noqa: F401


@pytest.fixture
def pair(tiny: Run) -> tuple[Path, Path]:
    other = tiny.path.parent / "other"
    shutil.copytree(tiny.path, other)
    configured(Run(other), "rate", "0.5")
    configured(Run(other), "tensorboard", "true")
    return tiny.path, other


def test_runs_stand_side_by_side_with_the_options_that_differ(pair: tuple[Path, Path]) -> None:
    rows = {line[:20].strip(): line[20:].split() for line in drawn("compare", *pair).splitlines()}
    assert rows[""] == ["tiny", "other"]
    assert rows["--rate"] == ["0.004", "0.5"]
    assert rows["--tensorboard"] == ["no", "yes"]
    assert "--hidden" not in rows
    assert rows["perplexity"][0] == rows["perplexity"][1]
    assert {"bits per character", "parameters", "tokens per second", "time", "state"} <= rows.keys()


def test_the_comparison_as_json(pair: tuple[Path, Path]) -> None:
    found = json.loads(drawn("compare", *pair, "--json"))
    assert found["different"] == {"rate": [0.004, 0.5], "tensorboard": [False, True]}
    assert [Path(one["run"]) for one in found["runs"]] == list(pair)


def test_curves_are_drawn_into_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    svg, png = tmp_path / "c.svg", tmp_path / "c.png"
    assert f"wrote {svg}" in drawn("compare", *pair, "--plot", svg, "--plot", png)
    assert "<!-- other" in svg.read_text()
    assert png.read_bytes()[1:4] == b"PNG"


def test_other_texts_are_said_to_be_other(pair: tuple[Path, Path]) -> None:
    data = Run(pair[1]).data_file
    data.write_text(data.read_text().replace('"digest": "', '"digest": "0'))
    assert "different texts or tokens" in leporello("compare", *pair).stderr


def test_runs_of_the_same_name_are_told_apart_by_their_paths(pair: tuple[Path, Path], tmp_path: Path) -> None:
    again = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(pair[0], again)
    assert drawn("compare", pair[0], again).splitlines()[0].split() == [str(pair[0]), str(again)]
    assert "(2)" in drawn("compare", pair[0], pair[0]).splitlines()[0]


def test_one_run_alone_a_missing_run_and_a_strange_file_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "nothing to compare with" in refused("compare", pair[0])
    assert "there is no such run" in refused("compare", pair[0], tmp_path / "nowhere")
    assert "tells no format" in refused("compare", *pair, "--plot", tmp_path / "c.bmp")
