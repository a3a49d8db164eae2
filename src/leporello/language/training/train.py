"""`train`: from a text to a language model, in one call; `start_training` and `resume_training`: from a configuration
or a run folder to a `Training` that is ready to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

import torch

from leporello.atomic_write import remove_temporary_files
from leporello.errors import ArgumentError, FileMismatch, MissingPackage
from leporello.language.config import Config, Options, config_of
from leporello.language.model.language_model import LanguageModel
from leporello.language.report.markdown_report import write_report
from leporello.language.run.checkpoint_file import read_checkpoint
from leporello.language.run.folder import Run
from leporello.language.run.metrics import refuse_tensorboard
from leporello.language.text.sources import Source, source_of
from leporello.language.tokens.corpus import Corpus, corpus_of, open_corpus
from leporello.language.tokens.tokenizer import Tokenizer
from leporello.language.tokens.vocabulary import read_vocabulary, write_vocabulary
from leporello.language.training.display import Display, NoDisplay, ProgressBar
from leporello.language.training.distributed import Ranks, device_of, ranks_here
from leporello.language.training.training_loop import Training


def train(
    text: str | Path | Sequence[Path] | None = None,
    *,
    out: str | Path | None = None,
    show: bool = True,
    **options: Unpack[Options],
) -> LanguageModel:
    """Train a language model on a text, and return it.

    text      the text itself as a string (the name of a file is refused); a Path, or several, for files and folders;
              None: the manual inside Python
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
    """The source of the argument `text`, and the key `text` of its configuration: ("-",) for a string."""
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


def start_training(config: Config, source: Source | None = None, out: Path | None = None) -> Training:
    """A training from its beginning.

    source   the text; None: what the configuration names
    out      a new folder for the run; None: nothing is written
    """
    refuse_missing_packages(config, out)
    ranks = ranks_here(device_of(config.device))
    set_threads(config)
    refuse_tensorboard(config, out)
    if out is None:
        return Training(config, _read_text(config, source, None, ranks), None, ranks)
    existed = out.exists()
    run = Run.create(out, config) if ranks.is_main else Run(out)
    try:
        return Training(config, _read_text(config, source, run, ranks), run, ranks)
    except Exception:
        if ranks.is_main:
            run.abandon(folder=not existed)
        raise


def resume_training(path: Path) -> Training:
    """A training that continues from the last checkpoint of a run folder. A changed text is refused.

    A run that was killed before its first checkpoint begins again.
    """
    run = Run.open(path)
    config = run.config()
    refuse_missing_packages(config, path)
    ranks = ranks_here(device_of(config.device))
    set_threads(config)
    if ranks.is_main:
        remove_temporary_files(run.path)
    if not run.data_file.is_file():
        _refuse_no_text(config, run)
        return Training(config, _read_text(config, None, run, ranks), run, ranks)
    corpus = corpus_of_run(run)
    refuse_tensorboard(config, run.path)
    if ranks.is_main:
        refuse_changed_text(config, corpus, run)
    training = Training(config, corpus, run, ranks)
    if run.last_file.is_file():
        training.restore(*read_checkpoint(run.last_file))
    return training


def refuse_missing_packages(config: Config, folder: Path | None) -> None:
    """Refuse a training that would need, later on, a package that is not installed.

    folder   where the run is kept; None: nowhere
    """
    needs = {"tokenizers": config.tokens} if config.tokens.startswith("bpe") else {}
    if folder is not None:
        needs |= {"tomli-w": "the configuration in a run folder", "safetensors": "the checkpoints in a run folder"}
        needs["numpy"] = "safetensors, which writes tensors through it"
    missing = {package: use for package, use in needs.items() if find_spec(package.replace("-", "_")) is None}
    if missing:
        raise MissingPackage(
            f"this training needs the {'packages' if len(missing) > 1 else 'package'} {' and '.join(missing)}.",
            **{package: f"for {use}" for package, use in missing.items()},
            tries="pip install 'leporello[language]'",
        )


def _read_text(config: Config, source: Source | None, run: Run | None, ranks: Ranks) -> Corpus:
    """The text as tokens. The main process reads it; the others open its tokens in the folder."""
    if run is None:
        return encode_source(config, source or source_of(config.text, config.encoding), None)
    if ranks.is_main:
        corpus = encode_source(config, source or source_of(config.text, config.encoding), run)
        write_vocabulary(corpus.tokenizer, run.vocabulary_file)
        run.write_data({"corpus": corpus.record()})
    ranks.wait()
    return corpus if ranks.is_main else corpus_of_run(run)


def encode_source(config: Config, source: Source, run: Run | None, tokenizer: Tokenizer | None = None) -> Corpus:
    """The text as tokens, as a configuration wants them.

    run         in whose folder the tokens are written; None: in a temporary file
    tokenizer   None: it is fitted to the text
    """
    return corpus_of(
        source,
        kind=config.tokens,
        min_count=config.min_count,
        unknown=config.unknown,
        validation=config.validation,
        first=config.first,
        normalise=config.normalise,
        file=None if run is None else run.tokens_file,
        tokenizer=tokenizer,
    )


def corpus_of_run(run: Run) -> Corpus:
    """The corpus in a run folder; a folder of a model without its training is refused."""
    record: dict[str, Any] | None = run.data().get("corpus")
    if record is None:
        raise FileMismatch(
            "the folder holds a model without its training.",
            folder=run.path,
            tries=f"leporello generate {run.path}, or train anew",
        )
    try:
        return open_corpus(run.tokens_file, read_vocabulary(run.vocabulary_file), record)
    except FileMismatch as error:
        error.place(folder=str(run.path))
        raise


def refuse_changed_text(config: Config, corpus: Corpus, run: Run) -> None:
    """Read the text again, if it is in files that exist, and refuse one with other tokens than the run's."""
    if config.text == ("-",) or (config.text and not all(Path(name).exists() for name in config.text)):
        return  # only the tokens were kept
    again = encode_source(config, source_of(config.text, config.encoding), None, corpus.tokenizer)
    if again.digest != corpus.digest:
        raise FileMismatch(
            "the text has changed since the run began.",
            folder=run.path,
            text=", ".join(config.text) or "the manual inside Python",
            came=f"{len(again.train.tokens):,} tokens to train on, digest {again.digest[:12]}",
            expected=f"{len(corpus.train.tokens):,} tokens, digest {corpus.digest[:12]}",
            tries="bring the old text back, or train anew with another --out",
        )


def _refuse_no_text(config: Config, run: Run) -> None:
    """Refuse to begin again with a text that came through standard input and was not kept."""
    if "-" in config.text:
        raise FileMismatch(
            "the run was stopped before its text was read, and the text was in no file.",
            folder=run.path,
            tries="train again with another --out",
        )


def set_threads(config: Config) -> None:
    """Set the number of threads of torch, if a configuration does."""
    if config.threads:
        torch.set_num_threads(config.threads)
