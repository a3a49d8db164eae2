"""`baseline`: the uniform model and n-grams of several orders, scored as a network is; and tables of such scores."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from leporello.atomic_write import write_atomically
from leporello.errors import ArgumentError, FileMismatch
from leporello.language.model.perplexity import Scores, Uniform, perplexity_of
from leporello.language.ngrams.kneser_ney import KneserNey, refuse_order
from leporello.language.run.metrics import without_infinities
from leporello.language.tokens.corpus import Corpus
from leporello.text_table import markdown_table, plain_table

MAX_TRAINING_TOKENS = 50_000_000  # of a corpus; counting the n-grams of more would take minutes
BEST_ORDER_MARK = "best order"
MISSING = "-"


@dataclass(frozen=True)
class Row:
    """The scores of one model on one text, as a line of a table. None: the model has no such number, or it is unknown.

    name                 of the model, for people
    perplexity           on the validation text
    bits_per_character   on the same
    order                of an n-gram model
    stored               counts that an n-gram model keeps
    parameters           of a network
    seconds              to fit the training text and to score the validation text
    """

    name: str
    perplexity: float
    bits_per_character: float | None = None
    order: int | None = None
    stored: int | None = None
    parameters: int | None = None
    seconds: float | None = None

    @staticmethod
    def of(
        name: str,
        scores: Scores,
        characters: int | None = None,
        *,
        order: int | None = None,
        stored: int | None = None,
        parameters: int | None = None,
        seconds: float | None = None,
    ) -> Row:
        """A `Row` from scores.

        characters   of the text of the predicted tokens; None if unknown
        """
        bits = None if characters is None else scores.bits(characters)
        return Row(name, scores.perplexity, bits, order, stored, parameters, seconds)


def baseline(
    train: Tensor,
    validation: Tensor,
    size: int,
    orders: Sequence[int],
    characters: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """A `Row` of the uniform model and of an n-gram model of each order, fitted to one text and scored on another.

    train, validation   (length,) integers from 0 to size - 1
    orders              counted once, up to the highest; the seconds of a model are those of its own orders and scoring
    characters          of the validation text without its first token; None: no bits per character
    progress            called with the number of finished pieces of work and their total

    >>> text = torch.tensor([0, 1, 2] * 7)
    >>> [row.name for row in baseline(text, text, size=3, orders=[1, 2])]
    ['uniform', '1-gram', '2-gram']
    """
    if not orders:
        raise ArgumentError("there is no order to measure.", came="none", expected="one or more", tries="orders=[3]")
    for order in orders:
        refuse_order(order)
    highest = max(orders)
    done, total = 0, 1 + highest + len(orders)

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    start = time.perf_counter()
    scores = perplexity_of(Uniform(size), validation)
    rows = [Row.of("uniform", scores, characters, seconds=time.perf_counter() - start)]
    advance()

    counting_seconds: list[float] = []  # until orders 1, 2, ... were counted
    start = time.perf_counter()

    def order_counted(order: int) -> None:
        counting_seconds.append(time.perf_counter() - start)
        advance()

    models = KneserNey.fit(train, size, highest, order_counted).orders()
    for order in orders:
        model = models[order - 1]
        scoring_start = time.perf_counter()
        scores = perplexity_of(model, validation)
        seconds = counting_seconds[order - 1] + time.perf_counter() - scoring_start
        rows.append(Row.of(f"{order}-gram", scores, characters, order=order, stored=model.stored, seconds=seconds))
        advance()
    return rows


def corpus_baseline(
    corpus: Corpus, highest: int, file: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """The baseline of a corpus, with n-grams up to the order `highest`.

    Empty for a corpus that is very long or has no validation part, and for the order 0.

    file   if it exists, the baseline is read from it, whatever `highest` is; else it is written. None: neither
    """
    if file is not None and file.is_file():
        return read_baseline(file)
    if corpus.validation is None or not highest or len(corpus.train.tokens) > MAX_TRAINING_TOKENS:
        return []
    part = corpus.validation
    rows = baseline(
        corpus.train.tokens.long(),
        part.tokens.long(),
        corpus.tokenizer.size,
        range(1, highest + 1),
        part.characters - part.first_characters,
        progress,
    )
    if file is not None:
        write_atomically(file, json.dumps(as_dicts(rows), indent=1))
    return rows


def read_baseline(file: Path) -> list[Row]:
    """The models of a file that `corpus_baseline` wrote, without those whose perplexity was infinite."""
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
        rows = [Row(**{name: value for name, value in record.items() if name != "best_order"}) for record in records]
    except (ValueError, TypeError, AttributeError) as error:
        raise FileMismatch("the n-grams are damaged.", file=file, says=error) from error
    return [row for row in rows if row.perplexity is not None]


def best_order(rows: Sequence[Row]) -> Row | None:
    """The n-gram model with the lowest perplexity, the lowest order of equal ones; None if there is none."""
    ngrams = [row for row in rows if row.order is not None and not math.isnan(row.perplexity)]
    return min(ngrams, key=lambda row: (row.perplexity, row.order), default=None)


def as_text(rows: Sequence[Row]) -> str:
    """A table as aligned text, without columns that no model fills; the best order is marked.

    >>> print(as_text([Row("uniform", 65.0), Row("2-gram", 11.52, order=2, stored=1300), Row("GRU", 4.1)]))
    model    perplexity  counts
    uniform      65.000       -
    2-gram       11.520   1,300  best order
    GRU           4.100       -
    """
    heads, lines = _cells(rows)
    best = best_order(rows)
    marked = [[*line, BEST_ORDER_MARK if row is best else ""] for row, line in zip(rows, lines, strict=True)]
    return plain_table([[*heads, ""], *marked], left=(0, len(heads)))


def as_markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown; of several models the one of the lowest perplexity is bold.

    >>> print(as_markdown([Row("uniform", 65.0), Row("2-gram", 11.52, order=2)]))
    | model | perplexity |
    |:---|---:|
    | uniform | 65.000 |
    | **2-gram** | **11.520** |
    """
    heads, lines = _cells(rows)
    best = min(rows, key=lambda row: row.perplexity) if len(rows) > 1 else None
    bold = [[f"**{cell}**" if row is best else cell for cell in line] for row, line in zip(rows, lines, strict=True)]
    return markdown_table(heads, bold)


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The models for JSON: None for what is missing or not finite; "best_order" marks the best n-gram model.

    >>> as_dicts([Row("1-gram", math.inf, order=1)])[0]["perplexity"] is None
    True
    """
    best = best_order(rows)
    return [{**without_infinities(asdict(row)), "best_order": row is best} for row in rows]


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns that some model fills, and the texts of each model in them."""
    decimals = 3 if all(row.perplexity < 1000 or not math.isfinite(row.perplexity) for row in rows) else 1
    columns: dict[str, Callable[[Row], str | None]] = {
        "model": lambda row: row.name,
        "perplexity": lambda row: f"{row.perplexity:,.{decimals}f}",
        "bits per character": lambda row: _formatted(row.bits_per_character, ".3f"),
        "counts": lambda row: _formatted(row.stored, ","),
        "parameters": lambda row: _formatted(row.parameters, ","),
        "seconds": lambda row: _formatted(row.seconds, ",.2f"),
    }
    cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    filled = {head: column for head, column in cells.items() if any(cell is not None for cell in column)}
    lines = zip(*filled.values(), strict=True)
    return list(filled), [[MISSING if cell is None else cell for cell in line] for line in lines]


def _formatted(number: float | None, form: str) -> str | None:
    return None if number is None else format(number, form)
