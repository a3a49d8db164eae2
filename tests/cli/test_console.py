"""What is printed: as it is, as wide as the terminal, in letters it has."""

from __future__ import annotations

import io
import os
import shutil
import sys

import pytest

from leporello.cli.console import ASCII_SUBSTITUTES, say, show
from tests.cli.invoke import drawn, refused

WIDE = "\n".join(["┌" + "─" * 38 + "┐", "│ h" + " " * 36 + "│", "short"])


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(drawing: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of 20 columns shows."""
    made = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", made)
        patch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((20, 24)))
        show(drawing)
    return made.getvalue()


def test_a_narrow_terminal_shows_the_left_part_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(WIDE, monkeypatch).splitlines()
    assert lines == ["┌" + "─" * 18 + "…", "│ h" + " " * 16 + "…", "short"]
    assert "cut at 20 columns of 40" in capsys.readouterr().err


def test_a_drawing_that_fits_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown("─" * 20, monkeypatch) == "─" * 20 + "\n"
    assert capsys.readouterr().err == ""


def test_wide_letters_count_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("漢" * 15, monkeypatch) == "漢" * 9 + " …\n"


def test_a_pipe_gets_all_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((20, 24)))
    show(WIDE)
    assert capsys.readouterr() == (WIDE + "\n", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_output_without_box_letters_gets_likenesses(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, newline="\n"))
    say("┌─┐\n│h│▶ 漢\n└─┘")
    sys.stdout.flush()
    assert raw.getvalue() == b"+-+\n|h|> ?\n+-+\n"


def test_every_likeness_is_ascii() -> None:
    assert "".join(map(str, ASCII_SUBSTITUTES.values())).isascii()


def test_brackets_are_no_markup() -> None:
    assert "state h [4]" in drawn("explain", "rnn")
    assert "'[red]x[/red]'" in refused("draw", "[red]x[/red]")


def test_nothing_is_coloured_when_piped() -> None:
    said = drawn("draw", "lstm", "--unfold", 2) + drawn("explain", "lstm") + refused("draw", "lsmt")
    assert "\x1b" not in said
