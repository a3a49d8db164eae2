"""The programs 10-1 to 10-4 are short and need torch and leporello alone; three stand on a page as they are."""

from __future__ import annotations

import ast
import re

import pytest

from tests.book.running import BOOK, LANGUAGES, ROOT, blocks, without_words

CHAPTER = {
    "10_1_elman.py": "02-designs.md",
    "10_2_jordan.py": "02-designs.md",
    "10_3_summary.py": "02-designs.md",
}


def code_of(program: str) -> str:
    """A program without the text it opens with."""
    return re.sub(r'\A""".*?"""\n+', "", (ROOT / "examples" / program).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("program", CHAPTER)
def test_a_page_shows_the_program_as_it_is(program: str, language: str) -> None:
    shown = [without_words(block.code) for block in blocks(BOOK / language / CHAPTER[program])]
    assert without_words(code_of(program)) in shown


@pytest.mark.parametrize("program", [*CHAPTER, "10_4_teacher_forcing.py"])
def test_a_program_is_under_40_lines_and_imports_torch_and_leporello_alone(program: str) -> None:
    text = (ROOT / "examples" / program).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 40
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    roots = {
        name.split(".")[0]
        for node in imports
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert roots == {"torch", "leporello"}
