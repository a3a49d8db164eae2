"""`leporello runs`: a list that no damaged folder stops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from leporello.cli.runs import HEADINGS
from leporello.language.run.folder import Run
from tests.cli.invoke import drawn, refused
from tests.language.tiny import configured, tiny_run  # noqa: F401


@pytest.fixture
def shelf(tiny: Run) -> Path:
    """Three runs: the tiny one, a better one further down, and one that is damaged."""
    shelf = tiny.path.parent / "shelf"
    for name in ("one", "deep/two", "cut"):
        shutil.copytree(tiny.path, shelf / name)
    better = Run(shelf / "deep" / "two")
    lines = [json.loads(line) for line in better.metrics_file.read_text().splitlines()]
    better.metrics_file.write_text(
        "".join(json.dumps({**line, "loss": 0.5, "perplexity": 1.6}) + "\n" for line in lines)
    )
    configured(better, "hidden", "9")
    Run(shelf / "cut").last_file.write_bytes(b"nothing")
    (shelf / "not-a-run").mkdir()
    return shelf


def test_runs_are_listed_the_best_first_and_damaged_ones_with_what_is_wrong(shelf: Path) -> None:
    head, *rows = drawn("runs", shelf).splitlines()
    assert head.split() == HEADINGS
    assert [row.split()[0] for row in rows] == ["deep/two", "one", "cut"]
    assert rows[0].split()[1:6] == ["shells.txt", "gru", "9", "2", "52"]
    assert " 1.600 " in rows[0]
    assert rows[2].startswith("cut  damaged: the checkpoint is cut or damaged; file ")


def test_the_list_as_json_has_the_same_runs(shelf: Path) -> None:
    found = json.loads(drawn("runs", shelf, "--json"))
    assert [Path(one["run"]).name for one in found] == ["two", "one", "cut"]
    assert [one.get("perplexity") is not None for one in found] == [True, True, False]
    assert found[0]["state"] == "ended"
    assert found[2]["wrong"] == "the checkpoint is cut or damaged."


def test_by_date_the_newest_comes_first(shelf: Path) -> None:
    run = Run(shelf / "one")
    run.metrics_file.touch()
    names = [row.split()[0] for row in drawn("runs", shelf, "--by", "date").splitlines()[1:3]]
    assert names == ["one", "deep/two"]


def test_a_folder_of_one_run_is_that_run(tiny: Run) -> None:
    assert drawn("runs", tiny.path).splitlines()[1].startswith(f"{tiny.path}  ")


def test_a_run_without_its_configuration_is_damaged(shelf: Path) -> None:
    (shelf / "one" / "config.toml").unlink()
    assert "one  damaged: the folder holds no run" in drawn("runs", shelf)


def test_an_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert drawn("runs", tmp_path) == f"there are no runs below {tmp_path}\n"
    assert json.loads(drawn("runs", tmp_path, "--json")) == []


def test_what_is_no_folder_or_order_is_refused(tmp_path: Path) -> None:
    assert "there is no such folder" in refused("runs", tmp_path / "nowhere")
    assert "expected  perplexity, date" in refused("runs", tmp_path, "--by", "luck")
