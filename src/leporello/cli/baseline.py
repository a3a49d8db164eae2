"""`leporello baseline`: what n-grams make of a text, on the split that a network would be trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from leporello.cli.counting import counting
from leporello.cli.saying import say, warn
from leporello.errors import ArgumentError
from leporello.language.config import config_of
from leporello.language.model.language_model import LanguageModel
from leporello.language.model.perplexity import perplexity_of
from leporello.language.ngrams.baseline import Row, as_dicts, as_text
from leporello.language.ngrams.baseline import baseline as measured
from leporello.language.report.markdown_report import row_of
from leporello.language.report.run_summary import RunSummary, summary_of
from leporello.language.run.folder import Run
from leporello.language.text.sources import source_of
from leporello.language.tokens.corpus import Corpus
from leporello.language.tokens.vocabulary import read_vocabulary
from leporello.language.training.start import corpus_of_run, encode_source


@dataclass(frozen=True)
class Beside:
    """A run whose network is shown too, and what is known of it."""

    run: Run
    summary: RunSummary


def baseline(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Files or folders; -: standard input; none: the run's, or the manual."
        ),
    ] = None,
    order: Annotated[int, typer.Option(metavar="N", help="The highest order: tokens of an n-gram.")] = 5,
    all_orders: Annotated[bool, typer.Option("--all-orders/--only", help="Every order up to it, or it alone.")] = True,
    tokens: Annotated[str | None, typer.Option(metavar="KIND", help="char, byte, word, or bpe:N. [char]")] = None,
    validation: Annotated[
        float | None, typer.Option(metavar="X", help="Share at the end that is scored, not counted. [0.1]")
    ] = None,
    first: Annotated[int | None, typer.Option(metavar="N", help="So many characters alone; 0: all. [0]")] = None,
    normalise: Annotated[str | None, typer.Option(metavar="WORD", help="none, lower or letters. [none]")] = None,
    encoding: Annotated[str | None, typer.Option(metavar="NAME", help="auto, utf-8, gb18030, ... [auto]")] = None,
    min_count: Annotated[
        int | None, typer.Option(metavar="N", help="What is seen less often becomes the unknown symbol. [1]")
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="Show that run's network in the same table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as one JSON object.")] = False,
) -> None:
    """Perplexity of n-grams (modified Kneser-Ney) on a text, and of the model that knows nothing."""
    own = {"tokens": tokens, "validation": validation, "first": first, "normalise": normalise}
    own |= {"encoding": encoding, "min_count": min_count}
    given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if order < 1:
        raise ArgumentError("--order is no order.", came=order, expected="1 or more")
    beside = None if run is None else _beside(run, given)
    corpus = _corpus(text or [], given, beside)
    if corpus.validation is None:
        raise ArgumentError("there is nothing to score.", came="validation = 0", tries="--validation 0.1")
    rows = _rows(corpus, range(1, order + 1) if all_orders else [order], shown=not as_json)
    if beside is not None:
        rows.append(_network(beside, corpus, shown=not as_json))
    if as_json:
        counts = {"tokens": len(corpus.train.tokens), "validation": len(corpus.validation.tokens)}
        facts = {"text": corpus.source, "digest": corpus.digest, **counts, "size": corpus.tokenizer.size}
        print(json.dumps({**facts, "models": as_dicts(rows)}))
        return
    say(
        f"{corpus.source}: {len(corpus.train.tokens):,} tokens to count, {len(corpus.validation.tokens):,} to score, "
        f"{corpus.tokenizer.size:,} different\n\n{as_text(rows)}"
    )


def _beside(path: Path, given: dict[str, Any]) -> Beside:
    fixed = [name for name in ("tokens", "min_count") if name in given]
    if fixed:
        raise ArgumentError(
            f"--{fixed[0].replace('_', '-')} does not go with --run: its network has a vocabulary of its own.",
            came=given[fixed[0]],
            tries="one of the two",
        )
    found = Run.open(path)
    return Beside(found, summary_of(found))


def _corpus(text: Sequence[str], given: dict[str, Any], beside: Beside | None) -> Corpus:
    """The tokens of a run, or of a text: cut and read as a run did where one is named."""
    if beside is None:
        config = config_of({"text": tuple(text), **given})
        return encode_source(config, source_of(config.text, config.encoding), None)
    if not text and given:
        raise ArgumentError(
            f"--{next(iter(given)).replace('_', '-')} is for a text, and that of the run is taken as it is.",
            tries="the name of the text too",
        )
    if not text:
        return corpus_of_run(beside.run)
    config = beside.summary.config.replaced({"text": tuple(text), **given})
    tokenizer = read_vocabulary(beside.run.vocabulary_file)
    return encode_source(config, source_of(config.text, config.encoding), None, tokenizer)


def _rows(corpus: Corpus, orders: Sequence[int], shown: bool) -> list[Row]:
    part = corpus.validation
    assert part is not None
    with counting("n-grams", shown) as progress:
        return measured(
            corpus.train.tokens.long(),
            part.tokens.long(),
            corpus.tokenizer.size,
            orders,
            part.characters - part.first_characters,
            progress,
        )


def _network(beside: Beside, corpus: Corpus, shown: bool) -> Row:
    """The network on the same tokens: as it was measured, if they are those of the run; scored anew otherwise."""
    told, part = row_of(beside.summary), corpus.validation
    assert part is not None
    if told is not None and corpus.digest == beside.summary.corpus.get("digest"):
        return told
    warn("the network was trained on another text or another part: it may know some of what is scored here")
    model = LanguageModel.load(beside.run.path)
    with counting(beside.summary.network, shown) as progress:
        count = len(part.tokens) - 1
        each = None if progress is None else (lambda done: progress(done, count))
        scores = perplexity_of(model.scorer(), part.tokens, each)
    characters = part.characters - part.first_characters
    return Row.of(beside.summary.network, scores, characters, parameters=beside.summary.parameters)
