"""The tables of options in docs/language.md say what the configuration says.

`python -m tests.language.test_options_page` writes the tables anew.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from leporello.language.config import Config

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
GROUPS = list(dict.fromkeys(field.metadata["group"] for field in dataclasses.fields(Config)))


def table_of(group: str) -> str:
    """The table of one group of options, in Markdown."""
    rows = [row_of(field) for field in dataclasses.fields(Config) if field.metadata["group"] == group]
    return "\n".join([f"| {group} | | default |", "|---|---|---|", *rows]) + "\n"


def row_of(field: dataclasses.Field[Any]) -> str:
    """Name, help and default of an option; the text is no option, but what stands behind the command."""
    name = "TEXT..." if field.name == "text" else f"--{field.name.replace('_', '-')}"
    choices = f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
    return f"| `{name}` | {field.metadata['help']}{choices} | {told(field.default)} |"


def told(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def tables_in(page: str) -> dict[str, str]:
    """The tables of the page with defaults in them, by their first word."""
    found = re.findall(r"^(\| (\w+) \| \| default \|\n(?:\|[^\n]*\n)+)", page, re.MULTILINE)
    return {group: table for table, group in found}


def test_the_tables_of_the_page_are_those_of_the_configuration() -> None:
    assert tables_in(PAGE.read_text(encoding="utf-8")) == {group: table_of(group) for group in GROUPS}


def test_no_cell_of_a_table_breaks_it() -> None:
    assert [field.name for field in dataclasses.fields(Config) if row_of(field).count("|") != 4] == []


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for group, table in tables_in(page).items():
        page = page.replace(table, table_of(group))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
