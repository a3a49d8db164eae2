"""A file is written atomically: the old one stays until the new one is complete."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from leporello.atomic_write import (
    open_atomically,
    remove_temporary_files,
    write_atomically,
)
from leporello.errors import LeporelloError


def test_a_file_is_replaced_with_its_rights_kept(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"old")
    file.chmod(0o640)
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LeporelloError, match="could not be written") as refusal:
        write_atomically(file, b"new")
    assert "No space left on device" in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with open_atomically(tmp_path / "a") as handle:
            handle.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeporelloError, match="could not be written"):
        write_atomically(tmp_path / "nowhere" / "a", b"new")


def test_text_is_written_as_utf8(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "折页\n")
    assert (tmp_path / "a").read_bytes() == "折页\n".encode()


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".0123456789ab.tmp").touch()
    (tmp_path / ".not-ours.tmp").touch()
    remove_temporary_files(tmp_path)
    assert os.listdir(tmp_path) == [".not-ours.tmp"]
