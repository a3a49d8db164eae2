"""What a command says: text to standard output as it is, errors to standard error in the user's words.

Knows terminals: how wide they are, and which letters they can show. Knows nothing of what is said.
"""

from __future__ import annotations

import errno
import functools
import shutil
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer
from rich.cells import cell_len, set_cell_size

from leporello.errors import LeporelloError

# Where only ASCII can be shown, lines and arrows become the nearest sign on a typewriter.
TYPEWRITER = str.maketrans(
    {
        **dict.fromkeys("─━═╌╍┄┅┈┉╴╶╸╺", "-"),
        **dict.fromkeys("│┃║╎╏┆┇┊┋╵╷╹╻", "|"),
        **dict.fromkeys("┌┍┎┏┐┑┒┓└┕┖┗┘┙┚┛├┝┠┣┤┥┨┫┬┯┰┳┴┷┸┻┼┿╂╋╔╗╚╝╠╣╦╩╬╭╮╯╰", "+"),
        **dict.fromkeys("▶►→▷", ">"),
        **dict.fromkeys("◀◄←◁", "<"),
        **dict.fromkeys("▲↑△", "^"),
        **dict.fromkeys("▼↓▽", "v"),
        **dict.fromkeys("■▪█◼▉", "#"),
        **dict.fromkeys("○●◯", "o"),
        **dict.fromkeys("·•∙", "."),
        "′": "'",
        "×": "x",
        "σ": "s",
        "−": "-",
        "…": "~",
    }
)

Arguments = ParamSpec("Arguments")


def say(text: str) -> None:
    """Print text whole: no markup, no colour, no wrapping, and no letter that the output cannot take."""
    print(showable(text, sys.stdout.encoding))


def show(drawing: str) -> None:
    """Print a drawing; of one that is wider than the terminal the left part, and a word about it: none is wrapped."""
    lines = drawing.rstrip("\n").splitlines()
    width = max(map(cell_len, lines), default=0)
    columns = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or width <= columns:
        say("\n".join(lines))
        return
    say("\n".join(line if cell_len(line) <= columns else set_cell_size(line, columns - 1) + "…" for line in lines))
    warn(f"cut at {columns} columns of {width}: widen the terminal, add --out FILE.svg, or pipe it into less -S")


def warn(text: str) -> None:
    print(text, file=sys.stderr)


def in_words(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A command whose errors, and those of the machine, are said without a traceback; its exit code is then 2."""

    @functools.wraps(command)
    def said(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            command(*arguments, **options)
        except LeporelloError as error:
            warn(f"error: {error}")
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read along has gone: nobody is left to talk to
                raise
            told = LeporelloError("the machine refused.", file=error.filename, says=error.strerror or error)
            warn(f"error: {told}")
            raise typer.Exit(2) from error

    return said


def showable(text: str, encoding: str | None) -> str:
    """The text in letters that an encoding has; a question mark for those without a likeness."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(TYPEWRITER).encode(encoding, "replace").decode(encoding)
    return text
