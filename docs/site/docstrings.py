"""Our docstrings as reStructuredText: plain text, with aligned lists of arguments, indented code and doctests.

    cell      an lp.Cell, or any module       a name, two or more spaces, what it is: an entry of a definition list;
              or function                     lines that go on are indented as far as what they go on with

Lines that are indented otherwise are code, and so are equations: paragraphs with wide spaces. All other text is taken
literally, but for names in `backticks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ENTRY = re.compile(r"(?P<name>[\w.]+(?:, [\w.]+)*) {2,}(?P<text>\S.*)")
ALIGNED = re.compile(r"\S {2,}\S")
SPECIAL = re.compile(r"([\\*|_])")
PUBLIC = re.compile(r"lp\.(?P<name>\w+(?:\.\w+)*)")
MARKED = re.compile(rf"`(?P<quoted>[^`]+)`|\b{PUBLIC.pattern}")


def as_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The hook of autodoc: replaces the lines in place."""
    lines[:] = restructured(lines)


def restructured(lines: list[str]) -> list[str]:
    """
    >>> print("\\n".join(restructured(["Sum *args.", "", "a   one", "b   two", "    lines", "", "    code = 1"])))
    Sum \\*args.
    <BLANKLINE>
    ``a``
       one
    ``b``
       two
       lines
    <BLANKLINE>
    ::
    <BLANKLINE>
        code = 1
    <BLANKLINE>
    """
    result: list[str] = []
    for block in _paragraphs(lines):
        result += [*_written(block), ""]
    return result


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines without a blank one; code with blank lines inside is one run."""
    block: list[str] = []
    for at, line in enumerate(lines):
        following = next((later for later in lines[at:] if later.strip()), "")
        if line.strip():
            if block and _is_code(block) and not line.startswith(" "):
                yield block
                block = []
            block.append(line.rstrip())
        elif block and _is_code(block) and following.startswith(" "):
            block.append("")
        elif block:
            yield block
            block = []
    if block:
        yield block


def _is_code(block: list[str]) -> bool:
    return block[0].startswith(" ")


def _written(block: list[str]) -> list[str]:
    if block[0].startswith(">>> "):
        return block
    if _is_code(block):
        return ["::", "", *("    " + line.removeprefix("    ") for line in block)]
    entries = _entries(block)
    if entries is not None:
        return [line for name, text in entries for line in (f"``{name}``", *("   " + _escaped(part) for part in text))]
    if any(map(ALIGNED.search, block)):
        return ["::", "", *("    " + line for line in block)]
    return _prose(block)


def _entries(block: list[str]) -> list[tuple[str, list[str]]] | None:
    """The names and texts of an aligned list, None for a block that is not one."""
    first = ENTRY.fullmatch(block[0])
    if first is None:
        return None
    column = first.start("text")
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        found = ENTRY.fullmatch(line)
        if line[:column].strip() == "" and entries:
            entries[-1][1].append(line.strip())
        elif found is not None and found.start("text") == column:
            entries.append((found["name"], [found["text"]]))
        else:
            return None
    return entries


def _prose(block: list[str]) -> list[str]:
    """A paragraph; lines that are indented below its first are kept as lines."""
    if any(line.startswith(" ") for line in block):
        return ["| " + "\u00a0" * (len(line) - len(line.lstrip())) + _escaped(line.strip()) for line in block]
    return [_escaped(line) for line in block]


def _escaped(text: str) -> str:
    """Text that means what it says; what is in backticks stays, and public names are links."""
    parts, at = [], 0
    for found in MARKED.finditer(text):
        parts += [SPECIAL.sub(r"\\\1", text[at : found.start()]), _linked(found)]
        at = found.end()
    return "".join([*parts, SPECIAL.sub(r"\\\1", text[at:])])


def _linked(found: re.Match[str]) -> str:
    name = PUBLIC.match(found["quoted"] or found[0])
    if name is None:
        return found[0]
    shown = found["quoted"] or found[0]
    return f"\\ :py:obj:`{shown} <leporello.{name['name']}>`\\ "  # a backslash and a space: nothing, but a border
