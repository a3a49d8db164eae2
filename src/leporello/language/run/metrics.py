"""Where measurements are written: `MetricsFile` for metrics.jsonl, `TensorBoardWriter` for TensorBoard.

The package tensorboard is optional, and imported only if a configuration wants it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.config import Config

TENSORBOARD_FOLDER = "tensorboard"
NOT_MEASURED = ("kind", "update", "best")  # keys of a line that are no measurements


def without_infinities(value: Any) -> Any:
    """The value for JSON: None for infinities and NaN, also inside dicts."""
    if isinstance(value, dict):
        return {key: without_infinities(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """The file of measurements, to which lines are appended.

    size   bytes to keep; later lines were written after the checkpoint from which a run resumes, and are cut off
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path, self.size = path, size
        with self._errors_name_file():
            self.file = path.open("ab")
            self.file.truncate(size)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line."""
        with self._errors_name_file():
            written = self.file.write(json.dumps(without_infinities(line), ensure_ascii=False).encode() + b"\n")
            self.file.flush()
        self.size += written

    def sync(self) -> int:
        """Bring the file to the disk, and return its size in bytes, which a checkpoint records."""
        with self._errors_name_file():
            os.fsync(self.file.fileno())
        return self.size

    @contextmanager
    def _errors_name_file(self) -> Iterator[None]:
        """Turn an OSError of the block into an error that names the file."""
        try:
            yield
        except OSError as error:
            raise LeporelloError(
                "the file could not be written.", file=self.path, says=error.strerror or error
            ) from error

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *failed: object) -> None:
        with suppress(OSError):  # errors of writing were raised when it was written
            self.file.close()


class TensorBoardWriter:
    """Writes every number of every line of metrics as a scalar.

    folder   to write into
    update   from which the run resumes; TensorBoard drops later events
    """

    def __init__(self, folder: Path, update: int = 0) -> None:
        self.writer = _summary_writer()(str(folder), purge_step=update + 1 if update else None)

    def write(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of a line of metrics, and the text of a sample."""
        kind, update = event["kind"], event["update"]
        for name, value in event.items():
            if name not in NOT_MEASURED and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, update)
        if "text" in event:
            self.writer.add_text(kind, event["text"], update)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def refuse_tensorboard(config: Config, folder: Path | None) -> None:
    """Refuse a configuration with TensorBoard if there is no folder, or the package is missing."""
    if not config.tensorboard:
        return
    if folder is None:
        raise ArgumentError(
            "'tensorboard' needs a folder to write into.", came="out=None", tries="out='runs/mine', a new folder"
        )
    _summary_writer()


def _summary_writer() -> Any:
    """The class SummaryWriter of torch, which needs the package tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise LeporelloError(
            "'tensorboard' needs the package tensorboard.",
            says=error,
            tries="pip install tensorboard; or without --tensorboard",
        ) from error
    return SummaryWriter


def tensorboard_writer(config: Config, folder: Path | None, update: int = 0) -> TensorBoardWriter | None:
    """The writer for a run; None if its configuration wants none.

    folder   of the run
    update   from which the run resumes
    """
    refuse_tensorboard(config, folder)
    if not config.tensorboard or folder is None:
        return None
    return TensorBoardWriter(folder / TENSORBOARD_FOLDER, update)
