"""Measurements for TensorBoard: every number of every line as a scalar, in the folder `tensorboard` of a run.

Knows lines of metrics and the package tensorboard, which is imported only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leporello.errors import ArgumentError, LeporelloError
from leporello.language.config import Config
from leporello.language.run.folder import Run

PLACES = ("kind", "update", "best")  # what tells where a line belongs; all other numbers are measurements
FOLDER = "tensorboard"


class Board:
    """The events of a run.

    folder   to write into
    update   where the run goes on; what was written of later updates counts no longer
    """

    def __init__(self, folder: Path, update: int = 0) -> None:
        self.writer = _summary_writer()(str(folder), purge_step=update + 1 if update else None)

    def write(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of a line, and the text of a sample."""
        kind, update = event["kind"], event["update"]
        for name, value in event.items():
            if name not in PLACES and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{kind}/{name}", value, update)
        if "text" in event:
            self.writer.add_text(kind, event["text"], update)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def refuse_board(config: Config, folder: Path | None) -> None:
    """Say before anything runs that no events can be written."""
    if not config.tensorboard:
        return
    if folder is None:
        raise ArgumentError(
            "'tensorboard' needs a folder to write into.", came="out=None", tries="out='runs/mine', a new folder"
        )
    _summary_writer()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise LeporelloError(
            "'tensorboard' needs the package tensorboard.",
            says=error,
            tries="pip install tensorboard; or without --tensorboard",
        ) from error
    return SummaryWriter


def board_of(config: Config, run: Run | None, update: int = 0) -> Board | None:
    """The events that a configuration asks for."""
    refuse_board(config, None if run is None else run.path)
    if not config.tensorboard or run is None:
        return None
    return Board(run.path / FOLDER, update)
