"""What an error says: its exact type, the form all errors have, and the words a test asks for."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from leporello.errors import LeporelloError


def said(error: type[LeporelloError], call: Callable[[], object], *words: str) -> str:
    """The message of the very error that a call raises; each of the words stands in it."""
    with pytest.raises(error) as found:
        call()
    assert type(found.value) is error
    text = str(found.value)
    what, *details = text.split("\n")
    assert what.endswith("."), what
    columns = {re.match(r"  \w[\w ]*?  +", line)[0] for line in details if not line.startswith("    ")}
    assert len({len(column) for column in columns}) <= 1, text
    for word in words:
        assert word in text, f"{word!r} is not said in\n{text}"
    return text
