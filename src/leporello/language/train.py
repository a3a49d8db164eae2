"""`train`: from a text to a language model, in one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leporello.errors import ArgumentError
from leporello.language.config import config_of
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.markdown_report import write_report
from leporello.language.text.sources import Source, source_of
from leporello.language.training.display import Display, NoDisplay, ProgressBar
from leporello.language.training.start import start_training


def train(
    text: str | Path | Sequence[Path] | None = None, *, out: str | Path | None = None, show: bool = True, **options: Any
) -> LanguageModel:
    """Train a language model on a text, and return it.

    text      the text itself as a string; a Path, or several, for files and folders; None: the manual inside Python
    out       a new folder for checkpoints, metrics and a report; None: nothing is written
    show      a progress bar, in terminals and notebooks
    options   the keys of a configuration: hidden=256, cell="gru", minutes=2, ... (`leporello train --help` lists them)

    >>> model = train(minutes=2, hidden=256)   # doctest: +SKIP
    >>> print(model.generate("The ", length=300))   # doctest: +SKIP
    """
    source, names = _source(text, options.get("encoding", "auto"))
    config = config_of({**options, "text": names})
    training = start_training(config, source, None if out is None else Path(out))
    display: Display = ProgressBar(config) if show else NoDisplay()
    with display:
        for event in training.events():
            display.show(event)
    if training.run is not None:
        write_report(training.run)
    training.model.forced = training.forced
    training.net.eval()
    return training.model


def _source(text: Any, encoding: str) -> tuple[Source, tuple[str, ...]]:
    """The source of the argument `text`, and its value in the configuration."""
    if text is None:
        return source_of((), encoding), ()
    if isinstance(text, str):
        if len(text) < 256 and "\n" not in text and os.path.exists(text):
            raise ArgumentError(
                "'text' is the name of a file.", came=repr(text), tries=f"text=Path({text!r}) to train on what is in it"
            )
        return Source.of_text(text), ("-",)
    paths = [Path(path) for path in ([text] if isinstance(text, os.PathLike) else text)]
    return source_of(paths, encoding), tuple(str(path.absolute()) for path in paths)
