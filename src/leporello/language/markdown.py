"""Foreign text inside Markdown, so that it stays what it is: in a fence, in a span, in a cell of a table.

Knows Markdown; knows nothing of what is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def fenced(text: str, language: str = "text") -> str:
    """A block of text between fences longer than any inside.

    >>> print(fenced("a\\n```b"))
    ````text
    a
    ```b
    ````
    """
    fence = "`" * max(3, 1 + _longest(text))
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def spanned(text: str) -> str:
    """Text within a line, letter by letter.

    >>> print(spanned("a_b"), spanned("`"))
    `a_b` `` ` ``
    """
    line = visible(text).replace("\n", "␊").replace("\t", " ")
    ticks = "`" * (1 + _longest(line))
    room = " " if line[:1] in ("`", " ") or line[-1:] in ("`", " ") else ""
    return f"{ticks}{room}{line}{room}{ticks}" if line else ""


def table(rows: Mapping[str, str]) -> str:
    """Two columns without a head that says anything.

    >>> print(table({"cell": "`a|b`"}))
    | | |
    |:---|:---|
    | cell | `a\\|b` |
    """
    return "\n".join(["| | |", "|:---|:---|", *(f"| {name} | {_celled(value)} |" for name, value in rows.items())])


def visible(text: str) -> str:
    """Control characters as their pictures; what no UTF-8 can hold as a question mark."""
    return text.replace("\r\n", "\n").translate(CONTROLS).encode(errors="replace").decode()


def _celled(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _longest(text: str) -> int:
    """The longest row of backticks."""
    return max(map(len, re.findall("`+", text)), default=0)
