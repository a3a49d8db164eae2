"""`leporello cache`: the folder of compiled kernels, its size, and an option to clear it."""

from __future__ import annotations

from typing import Annotated

import typer

from leporello.cli.console import say
from leporello.engine.cache_folder import clear, contents, folder


def cache(
    clear_all: Annotated[bool, typer.Option("--clear", help="Remove everything that was built.")] = False,
) -> None:
    """Show what was built for the engine cpu, or clear it."""
    files = contents()
    size = sum(path.stat().st_size for path in files)
    libraries = sum(path.suffix == ".so" for path in files)
    say(f"{folder()}: {libraries} {'library' if libraries == 1 else 'libraries'}, {size / 1e6:.1f} MB")
    if clear_all:
        clear()
        say("cleared")
