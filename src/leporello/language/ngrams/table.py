"""Models side by side: a table for people, in plain text or Markdown, and the same numbers for programs.

Knows rows and letters; knows nothing of where the numbers come from.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from leporello.language.ngrams.row import Row, best_order

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
