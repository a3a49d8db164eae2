"""A progress bar comes only when work is long, a terminal is there, and rich is installed."""

from __future__ import annotations

import io
import sys

import pytest

from leporello.analysis import progress_bar
from leporello.analysis.progress_bar import with_progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def worked(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, patience: float) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress_bar, "PATIENCE_SECONDS", patience)
    assert list(with_progress_bar([3, 1, 2], "gradients go back")) == [3, 1, 2]
    return stderr.getvalue()


def test_long_work_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gradients go back" in worked(monkeypatch, Terminal(), -1)


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worked(monkeypatch, Terminal(), 60) == ""


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worked(monkeypatch, io.StringIO(), -1) == ""


def test_without_rich_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert worked(monkeypatch, Terminal(), -1) == ""
