"""`leporello cache`: what was built, and away with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leporello.engine.cpu import build
from tests.cli.invoke import drawn


def test_it_shows_and_clears_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEPORELLO_CACHE", str(tmp_path / "cache"))
    assert drawn("cache").startswith(f"{tmp_path / 'cache'}: 0 libraries")
    build.library("int answer(void) { return 42; }\n")
    (tmp_path / "cache" / "mine.txt").write_text("not ours")
    assert ": 1 library, " in drawn("cache")
    assert drawn("cache", "--clear").splitlines()[-1] == "cleared"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["mine.txt"]
