"""Checkpoints: whole, or refused by name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from leporello.errors import FileMismatch, LeporelloError
from leporello.language.run.checkpoint_file import read_checkpoint, tensors_below, write_checkpoint

TENSORS = {"net.W": torch.randn(3, 4), "net.n": torch.arange(5), "flag": torch.zeros(0)}


def test_what_is_written_is_read_again(tmp_path: Path):
    file = tmp_path / "last.safetensors"
    write_checkpoint(file, TENSORS, {"update": 3, "name": "时"})
    tensors, facts = read_checkpoint(file)
    assert facts == {"update": 3, "name": "时"}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert tensors_below(tensors, "net").keys() == {"W", "n"}
    assert os.listdir(tmp_path) == ["last.safetensors"]


def test_tensors_that_share_memory_are_written_apart(tmp_path: Path):
    shared = torch.randn(4)
    write_checkpoint(tmp_path / "a", {"one": shared, "two": shared, "turned": shared.view(2, 2).T}, {})
    tensors, _ = read_checkpoint(tmp_path / "a")
    assert torch.equal(tensors["one"], tensors["two"])
    assert torch.equal(tensors["turned"], shared.view(2, 2).T)


def test_a_missing_file_is_refused_by_name(tmp_path: Path):
    with pytest.raises(FileMismatch, match=r"no checkpoint to read(.|\n)*last.safetensors"):
        read_checkpoint(tmp_path / "last.safetensors")


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_cut_file_is_refused_as_cut(tmp_path: Path, keep: int):
    file = tmp_path / "last.safetensors"
    write_checkpoint(file, TENSORS, {})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(FileMismatch, match="cut or damaged"):
        read_checkpoint(file)


def test_a_changed_number_is_found(tmp_path: Path):
    file = tmp_path / "last.safetensors"
    write_checkpoint(file, TENSORS, {})
    contents = bytearray(file.read_bytes())
    contents[-3] ^= 1
    file.write_bytes(contents)
    with pytest.raises(FileMismatch, match="not those written"):
        read_checkpoint(file)


def test_another_good_checkpoint_in_the_folder_is_pointed_at(tmp_path: Path):
    write_checkpoint(tmp_path / "best.safetensors", TENSORS, {})
    (tmp_path / "last.safetensors").write_bytes(b"nonsense")
    with pytest.raises(FileMismatch, match=r"copy best\.safetensors"):
        read_checkpoint(tmp_path / "last.safetensors")


def test_a_foreign_file_is_refused_as_foreign(tmp_path: Path):
    safetensors.torch.save_file({"W": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(FileMismatch, match="no checkpoint of a training run"):
        read_checkpoint(tmp_path / "other.safetensors")


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("leporello.language.run.checkpoint_file.VERSION", 99)
    write_checkpoint(tmp_path / "a", TENSORS, {})
    monkeypatch.undo()
    with pytest.raises(FileMismatch, match=r"another version(.|\n)*99"):
        read_checkpoint(tmp_path / "a")


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "last.safetensors"
    write_checkpoint(file, TENSORS, {"update": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LeporelloError, match="No space left"):
        write_checkpoint(file, TENSORS, {"update": 2})
    monkeypatch.undo()
    assert read_checkpoint(file)[1] == {"update": 1}
    assert os.listdir(tmp_path) == ["last.safetensors"]
