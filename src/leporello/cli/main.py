"""`main`: where the command `leporello` begins.

Knows which packages the commands need beside torch, and what to say where they are missing.
"""

from __future__ import annotations

import io
import sys

NEEDED = ("typer", "rich")


def main() -> None:
    try:
        from leporello.cli.app import app  # here, so that a missing package is said and not thrown
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in NEEDED:
            raise
        print(f"error: the commands need the package {missing.name}.", file=sys.stderr)
        print("  try  pip install 'leporello[cli]'", file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that cannot be shown must not end a training
    app(prog_name="leporello")
