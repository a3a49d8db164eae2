"""The map of the five texts is complete in both languages, and the chapters and functions that it names exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.book.running import BOOK, LANGUAGES
from tests.book.texts import TEXTS, identifiers

CHAPTERS = {
    "01-systems.md",
    "02-designs.md",
    "03-equations.md",
    "04-bptt.md",
    "05-gradients.md",
    "06-teacher-forcing.md",
    "07-language.md",
    "08-turing.md",
}
OTHER_PAGES = {"corrections.md", "notation.md"}
ROW = re.compile(
    r"^\| `(?P<entry>\d{3} [^`]+)` \| (?P<says>.+) \| (?P<where>.+) \| (?P<functions>.+) \|$", re.MULTILINE
)

QUOTED = {  # what a reader wrote into text 002, and words of it
    "002 question Jordan优于Elam": "Jordan Network的效果优于Elam Network",
    "002 question 如何训练": "RNN训练方法",
    "002 question 图灵机这一段没看懂": "图灵机这一段没看懂",
    "002 question o_i = log p_i": "如果第i个词的概率是",
    "002 question 非标准化的对数概率怎么是这么算的": "非标准化的对数概率怎么是这么算的",
    "002 question τ个输入产生τ个输出": "个输入产生",
    "002 question 这个公式是怎么推出来的": "这个公式是怎么推出来的",
    "002 question 我们是否有其他选择呢": "我们是否有其他选择呢",
}


@dataclass(frozen=True)
class Row:
    """A line of the map: an entry of a text, the pages that treat it, and the functions that compute it."""

    entry: str
    pages: tuple[str, ...]
    functions: tuple[str, ...]


def rows(language: str) -> list[Row]:
    text = (BOOK / language / "map.md").read_text(encoding="utf-8")
    return [
        Row(
            found["entry"],
            tuple(re.findall(r"\]\(([^)]+)\)", found["where"])),
            tuple(re.findall(r"`([^`]+)`", found["functions"])),
        )
        for found in ROW.finditer(text)
    ]


def functions() -> list[str]:
    return sorted({function for row in rows("en") for function in row.functions})


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_map_has_every_entry_of_the_texts_once_and_in_order(language: str) -> None:
    assert [row.entry for row in rows(language)] == identifiers()


def test_both_languages_name_the_same_pages_and_functions() -> None:
    assert rows("zh") == rows("en")


def test_every_row_names_a_chapter_of_the_book_and_a_function() -> None:
    for row in rows("en"):
        assert set(row.pages) & CHAPTERS, row
        assert set(row.pages) <= CHAPTERS | OTHER_PAGES, row
        assert len(set(row.pages)) == len(row.pages), row
        assert row.functions, row


def test_every_chapter_is_on_the_map() -> None:
    assert {page for row in rows("en") for page in row.pages} == CHAPTERS | OTHER_PAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_question_is_answered_under_its_own_words(language: str) -> None:
    questions = {row.entry: row.pages for row in rows(language) if " question " in row.entry}
    assert questions.keys() == QUOTED.keys()
    for entry, named in questions.items():
        lines = [line for name in named for line in (BOOK / language / name).read_text(encoding="utf-8").splitlines()]
        assert any(line.startswith("> ") and QUOTED[entry] in line for line in lines), entry


@pytest.mark.parametrize("name", functions())
def test_a_function_that_the_map_names_exists(name: str) -> None:
    assert callable(found(name)) or isinstance(found(name), property)


def found(name: str) -> object:
    """What a dotted name stands for: modules are imported, the rest are attributes."""
    first, *rest = name.split(".")
    path = {"lp": "leporello", "leporello": "leporello"}[first]
    value: object = importlib.import_module(path)
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(value, part) and importlib.util.find_spec(path) is not None:
            importlib.import_module(path)
        value = getattr(value, part)
    return value


def test_the_list_of_entries_has_what_the_texts_have_lost() -> None:
    kinds = Counter((entry.split()[0], entry.split()[1]) for entry in identifiers())
    assert kinds["000", "image"] == 31
    assert kinds["004", "program"] == 4
    assert sum(entry.endswith(("\\fig?", "\\eqn?", "\\sec?", "{cite?}")) for entry in identifiers()) == 14
    assert len(set(identifiers())) == len(identifiers())


def test_entries_are_in_the_order_of_the_texts_within_their_kind() -> None:
    for entries in TEXTS.values():
        lines = [line.split(" ", 2) for line in entries.strip().splitlines()]
        kinds = {kind for _, kind, _ in lines}
        for kind in kinds:
            places = [int(place) for place, its, _ in lines if its == kind]
            assert places == sorted(places)
