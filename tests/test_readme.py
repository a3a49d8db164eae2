"""The code in README.md, README.zh.md and docs/ runs: every python block, in order, one namespace per file.

A block is left out only behind a comment that says why: `<!-- not run: needs a GPU -->` on the line before it.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").glob("*.md"))]
TRAINING = {
    "reinforcement-learning.md",
    "time-series.md",
}  # many steps: building kernels takes less time than they save
FENCE = re.compile(r"^(?P<ticks>```+)python[^\n]*\n(?P<code>.*?)^(?P=ticks)[ \t]*$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>[^\n]*\S) -->\n\Z")


@dataclass(frozen=True)
class Block:
    code: str
    line: int  # of its first line in the page
    not_run: str | None


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        marked = NOT_RUN.search(text, 0, found.start())
        yield Block(
            code=found["code"],
            line=text.count("\n", 0, found.start("code")) + 1,
            not_run=marked["reason"] if marked else None,
        )


LONG = {"time-series.md"}  # make check-all alone runs them


def _param(page: Path) -> Any:
    marks = [pytest.mark.kernels] if page.name in TRAINING else []
    return pytest.param(page, id=page.name, marks=[*marks, *([pytest.mark.slow] if page.name in LONG else [])])


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("page", [_param(page) for page in PAGES])
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(
        sys.modules, module.__name__, module
    )  # so that its classes can be found by name, as a script's can
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.not_run is None:
            padded = "\n" * (block.line - 1) + block.code  # line numbers in errors are those of the page
            exec(compile(padded, str(page), "exec"), module.__dict__)


def test_readme_has_code() -> None:
    assert any(block.not_run is None for block in blocks(PAGES[0].read_text(encoding="utf-8")))


def test_a_block_is_left_out_only_with_a_reason() -> None:
    text = (
        "```python\na = 1\n```\n"
        "<!-- not run: needs a GPU -->\n```python\nb = 2\n```\n"
        "<!-- not run: -->\n```python\nc = 3\n```\n"
        "```\nnot python\n```\n"
    )
    assert [(block.code, block.line, block.not_run) for block in blocks(text)] == [
        ("a = 1\n", 2, None),
        ("b = 2\n", 6, "needs a GPU"),
        ("c = 3\n", 10, None),
    ]


GUIDES = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "src").rglob("README.md"))]
SOURCES = ROOT / "src" / "leporello"
FOLDERS = [ROOT, ROOT / "src", SOURCES, SOURCES / "rewrite"]  # that paths on pages are below
PATH = re.compile(r"`((?:\.\./)?(?:[a-z_]+/)+[a-z_0-9]+\.(?:py|c|md))`")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    missing = {path for path in named if not any((folder / path).exists() for folder in (*FOLDERS, page.parent))}
    assert not missing


def test_a_path_on_a_page_is_seen() -> None:
    assert PATH.findall("`loop/tracing/trace.py` and `engine/cpu/totals.c`, not `lp.fold`") == [
        "loop/tracing/trace.py",
        "engine/cpu/totals.c",
    ]
