"""Rows of words and numbers as aligned columns. Knows how wide letters are; knows nothing of what they say."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Columns with two blanks between them: to the right, but for those to the left.

    >>> print(aligned([["run", "perplexity"], ["a", "14.4"]]))
    run  perplexity
    a          14.4
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(_filled(row, widths, left)).rstrip() for row in rows)


def _filled(row: Sequence[str], widths: Sequence[int], left: Collection[int]) -> list[str]:
    found = []
    for index, (word, width) in enumerate(zip(row, widths, strict=True)):
        blank = " " * (width - cell_len(word))
        found.append(word + blank if index in left else blank + word)
    return found


def duration(seconds: float) -> str:
    """A time as a person writes it.

    >>> [duration(seconds) for seconds in (7.2, 75, 3720)]
    ['7 s', '1 min 15 s', '1 h 02 min']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def number(value: float | None, form: str) -> str:
    """A number in a form, a dash where there is none."""
    return "-" if value is None else format(value, form)
