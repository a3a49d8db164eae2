"""`Run`: the folder of a training run, and what lies in it.

Knows names of files; what is in them is told by those who write them.

    config.toml          what was asked for
    metrics.jsonl        what was measured, a line each
    vocabulary.json      the tokens by name
    tokens.bin           the text as tokens, and data.json: what it was, its split and its digest
    last.safetensors     the run as it stood at the last checkpoint
    best.safetensors     the run when its validation was best
    ngrams.json          the models to compare with
    curve.svg, report.md
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leporello.atomic_write import remove_temporary_files, write_atomically
from leporello.errors import ArgumentError, FileMismatch, LeporelloError
from leporello.language.config import Config, read_toml, toml_of

VERSION = 1


@dataclass(frozen=True)
class Run:
    """A folder of a run.

    path   of the folder
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: Config) -> Run:
        """A new folder with its configuration; one that holds anything else is refused."""
        if path.is_dir():
            remove_temporary_files(path)
        if path.is_dir() and any(path.iterdir()):
            resume = (path / "config.toml").is_file()
            raise ArgumentError(
                "the folder is not empty.",
                came=path,
                tries=f"leporello resume {path}, or another --out" if resume else "another --out",
            )
        if path.exists() and not path.is_dir():
            raise ArgumentError("--out is a file.", came=path, expected="a folder, or a new name")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError("the folder cannot be made.", came=path, says=error.strerror or error) from error
        run = cls(path)
        write_atomically(run.config_file, toml_of(config).encode())
        return run

    def abandon(self, *, folder: bool) -> None:
        """Remove a run that never came to be.

        folder   remove the folder too, if it is empty then
        """
        for file in (self.config_file, self.vocabulary_file, self.tokens_file, self.data_file):
            file.unlink(missing_ok=True)
        if folder:
            with suppress(OSError):
                self.path.rmdir()

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """A folder that holds a run."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise ArgumentError(
                "there is no such run.",
                came=path,
                expected="a folder that leporello train wrote",
                tries="leporello runs",
            )
        if not run.config_file.is_file():
            raise ArgumentError(
                "the folder holds no run.",
                came=path,
                expected="a folder with config.toml in it",
                tries="leporello runs",
            )
        return run

    # fmt: off
    config_file = property(lambda self: self.path / "config.toml")
    metrics_file = property(lambda self: self.path / "metrics.jsonl")
    vocabulary_file = property(lambda self: self.path / "vocabulary.json")
    tokens_file = property(lambda self: self.path / "tokens.bin")
    data_file = property(lambda self: self.path / "data.json")
    last_file = property(lambda self: self.path / "last.safetensors")
    best_file = property(lambda self: self.path / "best.safetensors")
    ngrams_file = property(lambda self: self.path / "ngrams.json")
    curve_file = property(lambda self: self.path / "curve.svg")
    report_file = property(lambda self: self.path / "report.md")
    # fmt: on

    def config(self) -> Config:
        return read_toml(self.config_file)

    def write_data(self, facts: Mapping[str, Any]) -> None:
        write_atomically(self.data_file, json.dumps({"version": VERSION, **facts}, ensure_ascii=False, indent=1).encode())

    def data(self) -> dict[str, Any]:
        """What the text was; a folder of another version is refused."""
        try:
            facts = json.loads(self.data_file.read_text(encoding="utf-8"))
            version = facts.pop("version")
        except FileNotFoundError as error:
            raise FileMismatch(
                "the run was stopped before its text was read.",
                folder=self.path,
                tries="train again with another --out",
            ) from error
        except (ValueError, KeyError, AttributeError) as error:
            raise FileMismatch("the file is damaged.", file=self.data_file, says=error) from error
        if version != VERSION:
            raise FileMismatch(
                "the run folder has another version.",
                folder=self.path,
                came=version,
                expected=VERSION,
                tries="the version of leporello that wrote it",
            )
        return facts

    def metrics(self) -> Iterator[dict[str, Any]]:
        """What was measured, line by line; a last line that was cut is left out."""
        if not self.metrics_file.is_file():
            return
        with self.metrics_file.open(encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return
                yield json.loads(line)


def finite(value: Any) -> Any:
    """What JSON has; null for what is no finite number."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Metrics:
    """The file of measurements, written at its end.

    size   bytes of it that count; what lies behind was written after the checkpoint a run goes on from
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path, self.size = path, size
        with self._in_words():
            self.file = path.open("ab")
            self.file.truncate(size)

    def write(self, line: Mapping[str, Any]) -> None:
        with self._in_words():
            written = self.file.write(json.dumps(finite(line), ensure_ascii=False).encode() + b"\n")
            self.file.flush()
        self.size += written

    def synced(self) -> int:
        """Bring it to the disk, before a checkpoint counts on it; how many bytes there are."""
        with self._in_words():
            os.fsync(self.file.fileno())
        return self.size

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LeporelloError(
                "the file could not be written.", file=self.path, says=error.strerror or error
            ) from error

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *failed: object) -> None:
        with suppress(OSError):  # what could not be written was said when it was
            self.file.close()


# ---- (language.keeping) An error while a run is being written tells what is left to go on from. Knows run folders and errors alone.


@contextmanager
def keeping(run: Run | None, update: int | None) -> Iterator[None]:
    """update   after which the last checkpoint was written; None: there is none"""
    try:
        yield
    except LeporelloError as error:
        if run is None or update is None:
            raise
        details = {
            **error.details,
            "kept": f"the last checkpoint, after {update:,} updates",
            "tries": f"make room or mend it, then leporello resume {run.path}",
        }
        raise LeporelloError(error.what, **details) from error
