"""A table as a notebook shows it. Knows letters; knows nothing of what they say."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence


def table(
    heading: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]], note: str, picture: bytes | None = None
) -> str:
    """A heading, a table with a name in front of each row, a note, and a PNG below it."""
    parts = [f"<p>{html.escape(heading[:1].upper() + heading[1:])}</p>", "<table>", _row("th", "", columns)]
    parts += [_row("td", name, cells) for name, cells in rows.items()]
    parts += ["</table>", f"<p><small>{html.escape(note)}</small></p>"]
    if picture is not None:
        parts.append(f'<img alt="" src="data:image/png;base64,{base64.b64encode(picture).decode()}">')
    return "\n".join(parts)


def _row(kind: str, name: str, cells: Sequence[str]) -> str:
    inside = "".join(f'<{kind} style="text-align: right">{html.escape(cell)}</{kind}>' for cell in cells)
    return f'<tr><th style="text-align: left">{html.escape(name)}</th>{inside}</tr>'
