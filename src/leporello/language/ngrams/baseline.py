"""`baseline`: what a text gives away without a network: the uniform model, and n-grams of several orders.

Knows models and rows; knows nothing of how rows are shown.
"""

from __future__ import annotations

import json
import math
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from leporello.atomic_write import write_atomically
from leporello.errors import ArgumentError
from leporello.language.model.perplexity import Scores, Uniform, perplexity_of
from leporello.language.ngrams.kneser_ney import KneserNey, refuse_order
from leporello.language.run.folder import Run
from leporello.language.tokens.corpus import Corpus


def baseline(
    train: Tensor,
    validation: Tensor,
    size: int,
    orders: Sequence[int],
    characters: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Rows of the uniform model and of an n-gram model of each order, learnt on one text and scored on another.

    train, validation   (length,) integers from 0 to size - 1
    orders              counted once, up to the highest; the seconds of a row are those of its own orders and scoring
    characters          of the validation text but its first token, for bits per character
    progress            called with the pieces of work that are done and how many there are

    >>> text = torch.tensor([0, 1, 2] * 7)
    >>> [row.name for row in baseline(text, text, size=3, orders=[1, 2])]
    ['uniform', '1-gram', '2-gram']
    """
    if not orders:
        raise ArgumentError("there is no order to measure.", came="none", expected="one or more", tries="orders=[3]")
    for order in orders:
        refuse_order(order)
    highest = max(orders)
    done, work = 0, 1 + highest + len(orders)

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, work)

    began = time.perf_counter()
    scores = perplexity_of(Uniform(size), validation)
    rows = [Row.of("uniform", scores, characters, seconds=time.perf_counter() - began)]
    advance()

    counting_seconds: list[float] = []  # until orders 1, 2, ... were counted
    began = time.perf_counter()

    def counted(order: int) -> None:
        counting_seconds.append(time.perf_counter() - began)
        advance()

    models = KneserNey.fit(train, size, highest, counted).orders()
    for order in orders:
        model = models[order - 1]
        began_scoring = time.perf_counter()
        scores = perplexity_of(model, validation)
        seconds = counting_seconds[order - 1] + time.perf_counter() - began_scoring
        rows.append(Row.of(f"{order}-gram", scores, characters, order=order, stored=model.stored, seconds=seconds))
        advance()
    return rows


# ---- (language.beside) The models that a network is shown beside: the uniform one and n-grams, on the same split, by the same code.
#
# Knows rows and the file they are kept in; the models are told by `ngrams`.

MOST = 50_000_000  # tokens from which counting would take longer than a cup of tea


def models_beside(
    corpus: Corpus, highest: int, run: Run | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Rows of the uniform model and of n-grams up to an order; read from the run's folder if they lie there."""
    if run is not None and run.ngrams_file.is_file():
        return [_row(one) for one in json.loads(run.ngrams_file.read_text(encoding="utf-8"))]
    if corpus.validation is None or not highest or len(corpus.train.tokens) > MOST:
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
    if run is not None:
        write_atomically(run.ngrams_file, json.dumps(as_dicts(rows), indent=1).encode())
    return rows


def _row(one: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in one.items() if name != "best_order"})


# ---- (language.ngrams.row) `Row`: one model beside others, as a table shows it. Knows numbers; knows nothing of models.


@dataclass(frozen=True)
class Row:
    """One model on one text. None is what a model does not have, or nobody knows.

    name                 as people call it
    perplexity           on the validation text
    bits_per_character   on the same
    order                of an n-gram model
    stored               counts that an n-gram model keeps
    parameters           of a network
    seconds              to learn the training text and to score the other
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
        """From scores; characters counts those of the predicted tokens' text, None where nobody counted."""
        bits = None if characters is None else scores.bits(characters)
        return Row(name, scores.perplexity, bits, order, stored, parameters, seconds)


def best_order(rows: Sequence[Row]) -> Row | None:
    """The n-gram model with the lowest perplexity, the lowest order of equal ones; None where there is none."""
    grams = [row for row in rows if row.order is not None and not math.isnan(row.perplexity)]
    return min(grams, key=lambda row: (row.perplexity, row.order), default=None)


# ---- (language.ngrams.table) Models side by side: a table for people, in plain text or Markdown, and the same numbers for programs.
#
# Knows rows and letters; knows nothing of where the numbers come from.

MARK = "best order"
MISSING = "-"


def as_text(rows: Sequence[Row]) -> str:
    """Aligned columns, of which those that no row fills are left out; the best order is marked.

    >>> print(as_text([Row("uniform", 65.0), Row("2-gram", 11.52, order=2, stored=1300), Row("GRU", 4.1)]))
    model    perplexity  counts
    uniform      65.000       -
    2-gram       11.520   1,300  best order
    GRU           4.100       -
    """
    heads, cells = _cells(rows)
    lines = [heads, *cells]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    best = best_order(rows)
    marks = ["", *(MARK if row is best else "" for row in rows)]
    return "\n".join(_line(line, widths, mark) for line, mark in zip(lines, marks, strict=True))


def as_markdown(rows: Sequence[Row]) -> str:
    """The same table in Markdown; the best order is bold.

    >>> print(as_markdown([Row("uniform", 65.0), Row("2-gram", 11.52, order=2)]))
    | model | perplexity |
    |:---|---:|
    | uniform | 65.000 |
    | **2-gram** | **11.520** |
    """
    heads, cells = _cells(rows)
    best = best_order(rows)
    lines = [f"| {' | '.join(heads)} |", f"|:---|{'---:|' * (len(heads) - 1)}"]
    for row, line in zip(rows, cells, strict=True):
        bold = "**" if row is best else ""
        lines.append("| " + " | ".join(bold + cell.replace("|", r"\|") + bold for cell in line) + " |")
    return "\n".join(lines)


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The same as JSON has it: null for what is missing and for what is no finite number; the best order is true.

    >>> as_dicts([Row("1-gram", math.inf, order=1)])[0]["perplexity"] is None
    True
    """
    best = best_order(rows)
    return [{**{name: _plain(one) for name, one in asdict(row).items()}, "best_order": row is best} for row in rows]


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the columns, and the cells of each row."""
    decimals = 3 if all(row.perplexity < 1000 or not math.isfinite(row.perplexity) for row in rows) else 1
    columns: dict[str, Callable[[Row], str | None]] = {
        "model": lambda row: row.name,
        "perplexity": lambda row: f"{row.perplexity:,.{decimals}f}",
        "bits per character": lambda row: _told(row.bits_per_character, ".3f"),
        "counts": lambda row: _told(row.stored, ","),
        "parameters": lambda row: _told(row.parameters, ","),
        "seconds": lambda row: _told(row.seconds, ",.2f"),
    }
    told = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    shown = {head: cells for head, cells in told.items() if any(cell is not None for cell in cells)}
    return list(shown), [
        [MISSING if one is None else one for one in line] for line in zip(*shown.values(), strict=True)
    ]


def _told(number: float | None, form: str) -> str | None:
    return None if number is None else format(number, form)


def _line(cells: Sequence[str], widths: Sequence[int], mark: str) -> str:
    """The name to the left of its column, numbers to the right of theirs."""
    gaps = [" " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)]
    numbers = [gap + cell for gap, cell in zip(gaps[1:], cells[1:], strict=True)]
    return "  ".join([cells[0] + gaps[0], *numbers, mark]).rstrip()


def _width(text: str) -> int:
    """Columns of a terminal: Chinese letters take two, accents that join their letter none."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
