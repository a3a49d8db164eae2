"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.cli.invoke import drawn, refused


@pytest.mark.parametrize("name", ["net.jpg", "net", ".svg", "net.svg.gz", "net.SVGX", ""])
def test_an_unknown_suffix_is_refused_with_those_there_are(name: str, folder: Path) -> None:
    said = refused("draw", "lstm", "--out", name)
    assert all(suffix in said for suffix in (".svg", ".png", ".dot", ".mmd"))


def test_a_missing_folder_is_refused(folder: Path) -> None:
    assert "there is no such folder" in refused("draw", "lstm", "--out", "not here/net.svg")
    assert not Path("not here").exists()


def test_a_folder_is_no_file(folder: Path) -> None:
    Path("net.svg").mkdir()
    assert "this is a folder" in refused("draw", "lstm", "--out", "net.svg")


def test_a_name_too_long_is_refused(folder: Path) -> None:
    assert "cannot be written" in refused("draw", "lstm", "--out", "n" * 300 + ".svg")


def test_a_file_that_may_not_be_written_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.svg").write_text("mine")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write everything
    assert "may not be written" in refused("draw", "lstm", "--out", "net.svg")
    assert Path("net.svg").read_text() == "mine"


def test_a_drawing_that_fails_leaves_the_file_as_it_was(folder: Path) -> None:
    Path("net.svg").write_text("mine")
    refused("draw", "my_model:Undecided", "--out", "net.svg")
    assert Path("net.svg").read_text() == "mine"


def test_a_full_disk_leaves_the_file_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("net.svg").write_text("mine")
    before = sorted(folder.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused("draw", "lstm", "--out", "net.svg")
    assert Path("net.svg").read_text() == "mine"
    assert sorted(path for path in folder.iterdir() if path.name != "__pycache__") == before


def test_a_file_is_replaced_and_keeps_its_mode(folder: Path) -> None:
    Path("net.svg").write_text("mine")
    Path("net.svg").chmod(0o640)
    drawn("draw", "lstm", "--out", "net.svg")
    assert Path("net.svg").read_text() != "mine"
    assert Path("net.svg").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(folder: Path) -> None:
    Path("link.svg").symlink_to("net.drawing")
    drawn("draw", "lstm", "--out", "link.svg")
    assert Path("link.svg").is_symlink()
    assert "<svg" in Path("net.drawing").read_text()
