"""The book runs: every page of both languages, with what it prints; both have the same code, pictures and exercises."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.book.running import BOOK, LANGUAGES, blocks, differing, pages, run, without_words

CHAPTERS = [page.name for page in pages("en")]
# also in their short form: make check-all alone runs them
LONG = {"01-systems.md", "02-designs.md", "05-gradients.md", "06-teacher-forcing.md", "08-turing.md"}
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")
ANSWER = {"zh": "<summary>答案</summary>", "en": "<summary>Answer</summary>"}


@pytest.fixture(autouse=True)
def _folder_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder as the pages have it: pictures lie beside the languages."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "en").mkdir()
    monkeypatch.chdir(tmp_path / "en")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CHAPTERS])
def test_a_page_runs_in_its_short_form(name: str) -> None:
    run(BOOK / "en" / name, short=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHAPTERS)
def test_a_page_prints_what_it_says(name: str) -> None:
    run(BOOK / "en" / name, short=False)


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_have_the_same_program(name: str) -> None:
    both = [[*blocks(BOOK / language / name)] for language in LANGUAGES]
    for one, other in zip_longest(*both):
        assert one is not None
        assert other is not None
        assert without_words(one.code) == without_words(other.code), f"line {one.line}: {one.code}"
        assert one.long == other.long


def test_both_languages_have_the_same_pages() -> None:
    assert [page.name for page in pages("zh")] == [page.name for page in pages("en")]


@pytest.mark.parametrize("page", [*pages("zh"), *pages("en")], ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_pictures_and_pages_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = [*PICTURE.findall(text), *LINK.findall(text)]
    assert not [path for path in named if not path.startswith("http") and not (page.parent / path).exists()]


@pytest.mark.parametrize("name", [name for name in CHAPTERS if re.match(r"0[1-8]-", name)])
def test_a_chapter_ends_with_three_to_five_exercises_with_answers(name: str) -> None:
    counts = [(BOOK / language / name).read_text(encoding="utf-8").count(ANSWER[language]) for language in LANGUAGES]
    assert counts[0] == counts[1]
    assert 3 <= counts[0] <= 5


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("loss 1.234\n", "loss 1.235\n", True),
        ("loss 1.234\n", "loss 1.334\n", False),
        ("h  3\n", "h 3\n", True),
        ("3 steps\n", "4 steps\n", False),
        ("2,048 rows\n", "2,049 rows\n", True),
        ("a\n...\nb 1\n", "a\nx\ny\nb 1\n", True),
        ("a\n...\n", "b\n", False),
        ("W_1 2\n", "W_2 2\n", False),
        ("1e-7\n", "1.1e-07\n", True),
    ],
)
def test_printed_numbers_are_compared_but_for_rounding(expected: str, printed: str, same: bool) -> None:
    assert (differing(expected, printed) is None) == same


def test_two_languages_of_one_program_are_equal_but_for_words() -> None:
    english, chinese = 'print("the state", x)  # here', 'print("状态", x)  # 这里'
    assert without_words(english) == without_words(chinese)
    assert without_words(english) != without_words('print("状态", y)')
    assert without_words('f("relu")') != without_words('f("tanh")')
