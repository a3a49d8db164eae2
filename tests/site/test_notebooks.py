"""The pages of the book become notebooks, which run. In short form where LEPORELLO_BOOK=short."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.book.running import BOOK, LANGUAGES, ROOT, pages

pytest.importorskip("nbformat", reason="notebooks need nbformat: make notebooks installs it")
PAGES = [page for language in LANGUAGES for page in pages(language)]
IS_SHORT = os.environ.get("LEPORELLO_BOOK") == "short"
PAGE = """# A page

$h$ is [the state](../../loop.md#unfold), see [gradients](05-gradients.md) and ![h](../pictures/h.svg).

```python
updates = 2000  # short: 20
print(updates)
```

```text
2000
```

<!-- long -->
```python
print("long")
```

<details>
<summary>Answer</summary>

So:

```python
assert updates
```

</details>

The end.
"""


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("book_notebooks", ROOT / "docs" / "site" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cells(notebooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list:
    return _cells(notebooks, monkeypatch, tmp_path, short=False)


def _cells(notebooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, short: bool) -> list:
    book = tmp_path / "docs" / "book"
    (book / "en").mkdir(parents=True)
    page = book / "en" / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(notebooks, "BOOK", book)
    return notebooks.notebook(page, tmp_path / "build" / "notebooks" / "en", short=short).cells


def test_text_and_code_become_cells_in_order(cells: list) -> None:
    assert [cell.cell_type for cell in cells] == ["markdown", "code", "code", "markdown", "code", "markdown"]
    assert cells[1].source == "updates = 2000\nprint(updates)"
    assert cells[1].outputs[0].text == "2000\n"
    assert "<!--" not in "".join(cell.source for cell in cells)


def test_links_lead_to_notebooks_and_to_files_of_the_repository(cells: list) -> None:
    assert "](../../../docs/loop.md#unfold)" in cells[0].source
    assert "](05-gradients.ipynb)" in cells[0].source
    assert "](../pictures/h.svg)" in cells[0].source


def test_the_code_of_an_answer_is_hidden(cells: list) -> None:
    assert cells[3].source == "**Answer**\n\nSo:"
    assert cells[4].metadata["jupyter"]["source_hidden"]
    assert "jupyter" not in cells[1].metadata
    assert cells[5].source == "The end."


def test_a_short_notebook_computes_less(notebooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cells = _cells(notebooks, monkeypatch, tmp_path, short=True)
    assert [cell.source for cell in cells if cell.cell_type == "code"] == [
        "updates = 20\nprint(updates)",
        "assert updates",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_is_a_valid_notebook(notebooks: ModuleType, page: Path, tmp_path: Path) -> None:
    import nbformat

    file = notebooks.write(page, tmp_path)
    nbformat.validate(nbformat.read(file, as_version=4))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("default")  # of the packages that run notebooks
@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_notebook_runs(notebooks: ModuleType, page: Path, tmp_path: Path) -> None:
    """The Chinese pages have the code of the English ones: their long form would show nothing new."""
    pytest.importorskip("nbclient", reason="running notebooks needs nbclient: make notebooks installs it")
    (tmp_path / "pictures").mkdir()
    short = IS_SHORT or page.parent != BOOK / "en"
    notebooks.run(notebooks.write(page, tmp_path / page.parent.name, short=short))
