"""The command `leporello`, as far as it needs no torch: its list of commands, its version, and what is missing.

A package beside `leporello`, because importing any part of that imports torch, which takes more than a second.
"""

from __future__ import annotations

import io
import sys

REQUIRED_PACKAGES = ("typer", "rich")


def main() -> None:
    """Run the command line; exit code 2 where a required package is missing."""
    try:
        from leporello_command.outline import COMMANDS, app  # here, so that a missing package gives no traceback

        if sys.argv[1:] and sys.argv[1] in COMMANDS:
            from leporello.cli.app import app  # here, because it imports torch
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in REQUIRED_PACKAGES:
            raise
        print(f"error: the commands need the package {missing.name}.", file=sys.stderr)
        print("  try  pip install 'leporello[cli]'", file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that cannot be encoded must not end a training
    app(prog_name="leporello")
