"""`leporello baseline`: perplexity of n-grams on a text, split as for the training of a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.cli.console import progress_bar, say, warn
from leporello.errors import ArgumentError
from leporello.language.config import config_of
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.perplexity import perplexity_of
from leporello.language.ngrams.baseline import Row, as_dicts, as_text
from leporello.language.ngrams.baseline import baseline as ngram_rows
from leporello.language.report.markdown_report import row_of
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run
from leporello.language.text.sources import source_of
from leporello.language.tokens.corpus import Corpus
from leporello.language.tokens.vocabulary import read_vocabulary
from leporello.language.training.train import corpus_of_run, encode_source


@dataclass(frozen=True)
class ComparedRun:
    """A run whose network gets a line in the table of n-grams."""

    run: Run
    summary: RunSummary


def baseline(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="Files or folders; -: standard input; none: the text of --run, or Python's manual."
        ),
    ] = None,
    order: Annotated[int, typer.Option(metavar="N", help="Highest order: how many tokens an n-gram has.")] = 5,
    all_orders: Annotated[
        bool, typer.Option("--all-orders/--only", help="Show every order up to that one, or that one alone.")
    ] = True,
    tokens: Annotated[
        str | None, typer.Option(metavar="KIND", help="What a token is: char, byte, word, or bpe:N. \\[char]")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share at the end of the text to score; n-grams are counted in the rest. [0.1]"),
    ] = None,
    first: Annotated[
        int | None, typer.Option(metavar="N", help="Read this many characters from the beginning alone; 0: all. [0]")
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="Change the text first; lower: lower case; letters: a to z and blanks alone. \\[none]"
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encoding of the text: auto finds it; or utf-8, gb18030, big5, latin-1. \\[auto]",
        ),
    ] = None,
    min_count: Annotated[
        int | None,
        typer.Option(metavar="N", help="Characters or words that occur less often become the unknown symbol. [1]"),
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="Show that run's network in the same table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")] = False,
) -> None:
    """Perplexity of n-grams (modified Kneser-Ney) on a text, and of the model that knows nothing."""
    values = {"tokens": tokens, "validation": validation, "first": first, "normalise": normalise}
    values |= {"encoding": encoding, "min_count": min_count}
    options: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if order < 1:
        raise ArgumentError("--order is no order.", came=order, expected="1 or more")
    compared = None if run is None else _open_run(run, options)
    corpus = _corpus(text or [], options, compared)
    if corpus.validation is None:
        raise ArgumentError("there is nothing to score.", came="validation = 0", tries="--validation 0.1")
    rows = _ngram_rows(corpus, range(1, order + 1) if all_orders else [order], show_progress=not as_json)
    if compared is not None:
        rows.append(_network_row(compared, corpus, show_progress=not as_json))
    if as_json:
        counts = {"tokens": len(corpus.train.tokens), "validation": len(corpus.validation.tokens)}
        facts = {"text": corpus.source, "digest": corpus.digest, **counts, "size": corpus.tokenizer.size}
        print(json.dumps({**facts, "models": as_dicts(rows)}))
        return
    say(
        f"{corpus.source}: {len(corpus.train.tokens):,} tokens to count, {len(corpus.validation.tokens):,} to score, "
        f"{corpus.tokenizer.size:,} different\n\n{as_text(rows)}"
    )


def _open_run(path: Path, options: dict[str, Any]) -> ComparedRun:
    """The run of --run; options that would change its vocabulary are refused."""
    refused = [name for name in ("tokens", "min_count") if name in options]
    if refused:
        raise ArgumentError(
            f"--{refused[0].replace('_', '-')} does not go with --run: its network has a vocabulary of its own.",
            came=options[refused[0]],
            tries="one of the two",
        )
    run = Run.open(path)
    return ComparedRun(run, summary_of(run))


def _corpus(text: Sequence[str], options: dict[str, Any], compared: ComparedRun | None) -> Corpus:
    """The tokens of a text, or of the run that is compared; a text is split and encoded as that run's."""
    if compared is None:
        config = config_of({"text": tuple(text), **options})
        return encode_source(config, source_of(config.text, config.encoding), None)
    if not text and options:
        raise ArgumentError(
            f"--{next(iter(options)).replace('_', '-')} is for a text, and that of the run is taken as it is.",
            tries="the name of the text too",
        )
    if not text:
        return corpus_of_run(compared.run)
    config = compared.summary.config.replaced({"text": tuple(text), **options})
    tokenizer = read_vocabulary(compared.run.vocabulary_file)
    return encode_source(config, source_of(config.text, config.encoding), None, tokenizer)


def _ngram_rows(corpus: Corpus, orders: Sequence[int], *, show_progress: bool) -> list[Row]:
    part = corpus.validation
    assert part is not None
    with progress_bar("n-grams", show_progress) as progress:
        return ngram_rows(
            corpus.train.tokens.long(),
            part.tokens.long(),
            corpus.tokenizer.size,
            orders,
            part.characters - part.first_characters,
            progress,
        )


def _network_row(compared: ComparedRun, corpus: Corpus, *, show_progress: bool) -> Row:
    """The `Row` of the network on the same tokens: measured in training if they are the run's own; else scored anew."""
    trained_row, part = row_of(compared.summary), corpus.validation
    assert part is not None
    if trained_row is not None and corpus.digest == compared.summary.corpus.get("digest"):
        return trained_row
    warn("the network was trained on another text or another part: it may know some of what is scored here")
    model = LanguageModel.load(compared.run.path)
    with progress_bar(compared.summary.network, show_progress) as progress:
        count = len(part.tokens) - 1
        on_scored = None if progress is None else (lambda done: progress(done, count))
        scores = perplexity_of(model.scorer(), part.tokens, on_scored)
    characters = part.characters - part.first_characters
    return Row.of(compared.summary.network, scores, characters, parameters=compared.summary.parameters)
