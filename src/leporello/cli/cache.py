"""`leporello cache`: the libraries that were built for kernels, where they lie and how large they are.

Knows the options; what lies there is the business of `engine/cpu/build`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leporello.cli.saying import say
from leporello.engine.cpu.build import clear, contents, folder


def cache(
    clear_all: Annotated[bool, typer.Option("--clear", help="Remove everything that was built.")] = False,
) -> None:
    """Show what was built for the engine cpu, or clear it."""
    found = contents()
    size = sum(path.stat().st_size for path in found)
    libraries = sum(path.suffix == ".so" for path in found)
    say(f"{folder()}: {libraries} {'library' if libraries == 1 else 'libraries'}, {size / 1e6:.1f} MB")
    if clear_all:
        clear()
        say("cleared")
