"""Numbers as a person writes them, and small tables of them.

Knows numbers; knows nothing of what they count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def told(number: float) -> str:
    """A rate with as many digits as tell it from 1.

    >>> told(0.93), told(0.99871), told(1.4), told(0.000123)
    ('0.93', '0.9987', '1.4', '0.00012')
    """
    if not 0.01 <= number < 10 or number == 1:
        return f"{number:.2g}"
    digits = math.ceil(-math.log10(abs(number - 1))) + 1
    return f"{number:.{min(max(digits, 2), 4)}f}".rstrip("0").rstrip(".")


def counted(count: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "loss"), counted(2, "loss"), counted(2000, "step")
    ('1 loss', '2 losses', '2,000 steps')
    """
    return f"1 {word}" if count == 1 else f"{count:,} {word}{'es' if word.endswith('s') else 's'}"


def share(value: float) -> str:
    """A share as a person writes it.

    >>> [share(value) for value in (0.93, 0.0042, 3e-7, 0.0, 1.5, 3324.7, 4e6)]
    ['93%', '0.4%', '3e-07', '0', '1.5x', '3,325x', '4e+06x']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-" if math.isnan(value) else "inf"
    if value < 0.001:
        return f"{value:.0e}"
    if value < 0.01:
        return f"{value:.1%}"
    if value < 1.095:
        return f"{value:.0%}"
    return f"{value:.1f}x" if value < 10 else f"{value:,.0f}x" if value < 1e4 else f"{value:.0e}x"


def duration(seconds: float) -> str:
    """A time as a person writes it.

    >>> [duration(value) for value in (0.000042, 0.0034, 0.25, 3.14159, math.nan)]
    ['42 µs', '3.4 ms', '250 ms', '3.1 s', '-']
    """
    if math.isnan(seconds):
        return "-"
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.{1 if seconds < 10 * unit else 0}f} {name}"
    return f"{seconds * 1e6:.0f} µs"


def size(count: float) -> str:
    """Bytes as a person writes them.

    >>> [size(value) for value in (0, 812, 4_096, 1_250_000, 3e9)]
    ['0 B', '812 B', '4.1 kB', '1.2 MB', '3.0 GB']
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 10 * unit else 0}f} {name}"
    return f"{count:.0f} B"


def listed(words: Sequence[str]) -> str:
    """Words in a row.

    >>> listed(["one"]), listed(["one", "two"]), listed(["one", "two", "three"])
    ('one', 'one and two', 'one, two and three')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def some(most: int) -> list[int]:
    """Some numbers from 1 to the most, each about twice the one before.

    >>> some(30)
    [1, 2, 5, 10, 20]
    """
    return [lead * 10**power for power in range(6) for lead in (1, 2, 5) if lead * 10**power <= most]


def aligned(rows: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of a table: names to the left, cells to the right of their columns.

    >>> aligned({"steps back": ["1", "20"], "left": ["50%", "0"]})
    ['  steps back    1  20', '  left        50%   0']
    """
    first = max(map(len, rows))
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    lines = []
    for name, cells in rows.items():
        told = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {name:<{first}}  {told}")
    return lines
