"""The manual inside Python: a text of half a million characters that every machine with Python has.

Knows `pydoc_data.topics`, what `help("while")` shows; knows nothing of files.
"""

from __future__ import annotations

from leporello.errors import ArgumentError


def manual() -> str:
    """The topics of the manual, sorted by name, with blank lines between them."""
    try:
        from pydoc_data.topics import topics  # here: large, and seldom needed
    except ImportError as error:
        raise ArgumentError(
            "this Python comes without its manual.", came="no text", says=error, tries="the name of a text file"
        ) from error
    return "\n\n".join(topics[name].strip("\n") for name in sorted(topics)) + "\n"
