"""Tables as aligned text, Markdown and HTML, and numbers as a person writes them.

Cells are strings. A table is a sequence of rows of cells, all of the same length.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Collection, Sequence

# ---- tables


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two, accents that join their letter none.

    >>> display_width("abc"), display_width("中文"), display_width("e\\u0301")
    (3, 4, 1)
    """
    return sum(0 if unicodedata.combining(letter) else 2 if is_wide(letter) else 1 for letter in text)


def is_wide(letter: str) -> bool:
    """Whether a letter takes two columns of a terminal."""
    return unicodedata.east_asian_width(letter) in ("W", "F")


def plain_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,), indent: int = 0) -> str:
    """Aligned columns with two blanks between them; no blanks at the end of a line.

    left     the columns that are aligned to the left; the others are aligned to the right
    indent   blanks in front of each line

    >>> print(plain_table([["run", "perplexity"], ["a", "14.4"]]))
    run  perplexity
    a          14.4
    """
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            _padded(cell, width, column in left) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _padded(cell: str, width: int, to_the_left: bool) -> str:
    blanks = " " * (width - display_width(cell))
    return cell + blanks if to_the_left else blanks + cell


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A Markdown table. Cells may hold Markdown; bars and line breaks in them are escaped.

    heads   of the columns
    left    the columns that are aligned to the left; the others are aligned to the right

    >>> print(markdown_table(["model", "perplexity"], [["**a|b**", "65.0"]]))
    | model | perplexity |
    |:---|---:|
    | **a\\|b** | 65.0 |
    """
    rule = "|" + "".join(":---|" if column in left else "---:|" for column in range(len(heads)))
    return "\n".join([_markdown_row(heads), rule, *map(_markdown_row, rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|").replace("\n", " ") for cell in cells]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in escaped)


def html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table, escaped: the first column is a head of each row and aligned to the left, the others to the right.

    >>> print(html_table(["", "bias"], [["<a>", "3%"]]))
    <table>
    <tr><th style="text-align: left"></th><th style="text-align: right">bias</th></tr>
    <tr><th style="text-align: left">&lt;a&gt;</th><td style="text-align: right">3%</td></tr>
    </table>
    """
    return "\n".join(["<table>", _html_row(heads, "th"), *(_html_row(row, "td") for row in rows), "</table>"])


def html_text(text: str) -> str:
    """A text as HTML, escaped, with its line breaks and columns.

    >>> html_text("a < b")
    '<pre>a &lt; b</pre>'
    """
    return f"<pre>{html.escape(text)}</pre>"


def _html_row(cells: Sequence[str], tag: str) -> str:
    first, *others = map(html.escape, cells)
    right = "".join(f'<{tag} style="text-align: right">{cell}</{tag}>' for cell in others)
    return f'<tr><th style="text-align: left">{first}</th>{right}</tr>'


# ---- numbers


def format_rate(rate: float) -> str:
    """A factor with as many digits as tell it from 1.

    >>> format_rate(0.93), format_rate(0.99871), format_rate(1.4), format_rate(0.000123)
    ('0.93', '0.9987', '1.4', '0.00012')
    """
    if not 0.01 <= rate < 10 or rate == 1:
        return f"{rate:.2g}"
    digits = math.ceil(-math.log10(abs(rate - 1))) + 1
    return f"{rate:.{min(max(digits, 2), 4)}f}".rstrip("0").rstrip(".")


def format_share(share: float) -> str:
    """A share of a whole in per cent, one of more than 1.1 as a factor.

    >>> [format_share(share) for share in (0.93, 0.0042, 3e-7, 0.0, 1.5, 3324.7, 4e6)]
    ['93%', '0.4%', '3e-07', '0', '1.5x', '3,325x', '4e+06x']
    """
    if share == 0 or not math.isfinite(share):
        return "0" if share == 0 else "-" if math.isnan(share) else "inf"
    if share < 0.001:
        return f"{share:.0e}"
    if share < 0.01:
        return f"{share:.1%}"
    if share < 1.095:
        return f"{share:.0%}"
    return f"{share:.1f}x" if share < 10 else f"{share:,.0f}x" if share < 1e4 else f"{share:.0e}x"


def format_count(count: int, noun: str) -> str:
    """A number of things, in the singular or the plural.

    >>> format_count(1, "loss"), format_count(2, "loss"), format_count(2000, "step")
    ('1 loss', '2 losses', '2,000 steps')
    """
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def format_short_time(seconds: float) -> str:
    """A time of a few seconds at most, with its unit; a dash for NaN.

    >>> [format_short_time(seconds) for seconds in (0.000042, 0.0034, 0.25, 3.14159, math.nan)]
    ['42 µs', '3.4 ms', '250 ms', '3.1 s', '-']
    """
    if math.isnan(seconds):
        return "-"
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.{1 if seconds < 10 * unit else 0}f} {name}"
    return f"{seconds * 1e6:.0f} µs"


def format_long_time(seconds: float) -> str:
    """A time in whole seconds, minutes or hours.

    >>> [format_long_time(seconds) for seconds in (7.2, 75, 3720)]
    ['7 s', '1 min 15 s', '1 h 02 min']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def format_bytes(count: float) -> str:
    """A number of bytes, with its unit.

    >>> [format_bytes(count) for count in (0, 812, 4_096, 1_250_000, 3e9)]
    ['0 B', '812 B', '4.1 kB', '1.2 MB', '3.0 GB']
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 10 * unit else 0}f} {name}"
    return f"{count:.0f} B"


def format_optional(value: float | None, spec: str) -> str:
    """A number in a format, a dash where there is none.

    >>> format_optional(1234.5, ",.1f"), format_optional(None, ",.1f")
    ('1,234.5', '-')
    """
    return "-" if value is None else format(value, spec)


def enumeration(words: Sequence[str]) -> str:
    """Words as a list within a sentence.

    >>> enumeration(["one"]), enumeration(["one", "two"]), enumeration(["one", "two", "three"])
    ('one', 'one and two', 'one, two and three')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def round_numbers(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to the largest: heads of a table's columns.

    >>> round_numbers(30)
    [1, 2, 5, 10, 20]
    """
    return [lead * 10**power for power in range(6) for lead in (1, 2, 5) if lead * 10**power <= largest]
