"""Terminal output of commands: text, drawings cut at the terminal's width, errors and progress bars."""

from __future__ import annotations

import errno
import functools
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import Progress

from leporello.errors import LeporelloError

# ASCII characters to show in place of lines, arrows and Greek letters where the output cannot encode these.
ASCII_SUBSTITUTES = str.maketrans(
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
    """Print text as it is: no markup, no colour, no wrapping; characters that the output cannot encode are replaced."""
    print(encodable(text, sys.stdout.encoding))


def show(drawing: str) -> None:
    """Print a drawing without wrapping: in a terminal that is too narrow, cut on the right, with a warning."""
    lines = drawing.rstrip("\n").splitlines()
    width = max(map(cell_len, lines), default=0)
    columns = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or width <= columns:
        say("\n".join(lines))
        return
    say("\n".join(line if cell_len(line) <= columns else set_cell_size(line, columns - 1) + "…" for line in lines))
    warn(f"cut at {columns} columns of {width}: widen the terminal, add --out FILE.svg, or pipe it into less -S")


def warn(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr)


def encodable(text: str, encoding: str | None) -> str:
    """The text with characters that an encoding has: substitutes from ASCII, a question mark where there is none."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII_SUBSTITUTES).encode(encoding, "replace").decode(encoding)
    return text


def reporting_errors(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Wrap a command: errors of this library and of the system are printed without a traceback, with exit code 2."""

    @functools.wraps(command)
    def wrapped(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            command(*arguments, **options)
        except LeporelloError as error:
            warn(f"error: {error}")
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has gone: nobody would read the message
                raise
            refusal = LeporelloError("the machine refused.", file=error.filename, says=error.strerror or error)
            warn(f"error: {refusal}")
            raise typer.Exit(2) from error

    return wrapped


@contextmanager
def progress_bar(label: str, enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give the block a function (done, total) that moves a bar on standard error; None if disabled or no terminal."""
    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(label)
        yield lambda done, total: bar.update(task, completed=done, total=total)
