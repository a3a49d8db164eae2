"""`Run`: the folder of a training run.

config.toml          the configuration
metrics.jsonl        the measurements, one line each
vocabulary.json      the tokenizer
tokens.bin           the text as tokens; data.json: its name, counts and digest
last.safetensors     the last checkpoint
best.safetensors     the checkpoint with the best validation
ngrams.json          the baseline to compare with
tensorboard/         events for TensorBoard
curve.svg, report.md
"""

from __future__ import annotations

import json
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
    """The folder of a run.

    path   of the folder
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: Config) -> Run:
        """Make a folder with a configuration. A folder that holds anything but temporary files is refused."""
        if path.is_dir():
            remove_temporary_files(path)
        if path.is_dir() and any(path.iterdir()):
            is_run = (path / "config.toml").is_file()
            raise ArgumentError(
                "the folder is not empty.",
                came=path,
                tries=f"leporello resume {path}, or another --out" if is_run else "another --out",
            )
        if path.exists() and not path.is_dir():
            raise ArgumentError("--out is a file.", came=path, expected="a folder, or a new name")
        config_text = toml_of(config)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError("the folder cannot be made.", came=path, says=error.strerror or error) from error
        run = cls(path)
        write_atomically(run.config_file, config_text)
        return run

    def abandon(self, *, folder: bool) -> None:
        """Remove the files of a run that failed before its training began.

        folder   also remove the folder, if it is empty then
        """
        for file in (self.config_file, self.vocabulary_file, self.tokens_file, self.data_file):
            file.unlink(missing_ok=True)
        if folder:
            with suppress(OSError):
                self.path.rmdir()

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open the folder of a run; one without a run is refused."""
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
        """The configuration of the run."""
        return read_toml(self.config_file)

    def write_data(self, facts: Mapping[str, Any]) -> None:
        """Write the record of the text, data.json.

        facts   a JSON object; the version of the format is added
        """
        write_atomically(self.data_file, json.dumps({"version": VERSION, **facts}, ensure_ascii=False, indent=1))

    def data(self) -> dict[str, Any]:
        """The record of the text; a folder of another version is refused."""
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
        """The measurements, line by line, without an incomplete last line."""
        if not self.metrics_file.is_file():
            return
        with self.metrics_file.open(encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return
                yield json.loads(line)


@contextmanager
def errors_name_checkpoint(run: Run | None, update: int | None) -> Iterator[None]:
    """Add to a `LeporelloError` of the block from which checkpoint the run can be resumed, if there is one.

    update   after which the last checkpoint was written; None: there is none
    """
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
