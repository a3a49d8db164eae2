"""The book as notebooks: `python docs/site/notebooks.py FOLDER [--short] [--run]` writes FOLDER/{en,zh}/*.ipynb.

A page's text becomes Markdown cells, its code becomes code cells, and what is printed below code becomes their output.
Pictures are copied beside the languages, where pages look for them. Needs nbformat; running them needs nbclient and
ipykernel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import v4

from tests.book.running import BOOK, FENCE, LANGUAGES, SHORT, pages

HINT = re.compile(r"[ \t]*# short: [^\n]+$", re.MULTILINE)
LINK = re.compile(r"(?P<before>!?\[[^\]]*\]\()(?P<path>[^)#:\s]*(?:\.\w+|/))(?P<anchor>#[^)\s]*)?\)")
SUMMARY = re.compile(r"<details>\s*<summary>(?P<title>[^<]*)</summary>")
SECONDS_A_CELL = 1800


def write_all(folder: Path, *, short: bool = False) -> list[Path]:
    """Write the notebooks of all pages, and copy the pictures they show; returns the files."""
    if (BOOK / "pictures").exists():
        shutil.copytree(BOOK / "pictures", folder / "pictures", dirs_exist_ok=True)
    return [write(page, folder / language, short=short) for language in LANGUAGES for page in pages(language)]


def write(page: Path, folder: Path, *, short: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{page.stem}.ipynb"
    nbformat.write(notebook(page, folder, short=short), file)
    return file


def notebook(page: Path, folder: Path, *, short: bool = False) -> Any:
    """The notebook of a page, for a place in `folder`.

    short   leave out what a short run leaves out, and make its computations small
    """
    cells = []
    text = page.read_text(encoding="utf-8")
    at, hidden = 0, False
    for found in FENCE.finditer(text):
        between = text[at : found.start()]
        cells += _texts(between, page, folder)
        hidden = _inside_details(between, hidden)
        if not (short and found["long"]):
            cells.append(_code(found["code"], found["printed"], short=short, hidden=hidden))
        at = found.end()
    cells += _texts(text[at:], page, folder)
    for index, cell in enumerate(cells):
        cell["id"] = f"{page.stem}-{index}"  # the same file for the same page
    return v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def _texts(text: str, page: Path, folder: Path) -> Iterator[Any]:
    """Text as a Markdown cell. `<details>` cannot go over several cells: their titles are left, and code hides."""
    text = SUMMARY.sub(lambda found: f"**{found['title']}**", text).replace("</details>", "")
    text = LINK.sub(lambda found: _link(found, page, folder), text).strip()
    if text:
        yield v4.new_markdown_cell(text)


def _link(found: re.Match[str], page: Path, folder: Path) -> str:
    """Links to pages of the book lead to notebooks, those to other files to the repository."""
    path = (page.parent / found["path"]).resolve()
    if path.is_relative_to(BOOK):
        place = re.sub(r"\.md$", ".ipynb", found["path"])
    else:
        place = Path(os.path.relpath(path, folder.resolve())).as_posix()
    return f"{found['before']}{place}{found['anchor'] or ''})"


def _inside_details(text: str, before: bool) -> bool:
    opened, closed = text.rfind("<details>"), text.rfind("</details>")
    return before if opened == closed else opened > closed


def _code(code: str, printed: str | None, *, short: bool, hidden: bool) -> Any:
    code = SHORT.sub(r"\g<indent>\g<name> = \g<value>", code) if short else HINT.sub("", code)
    outputs = [] if printed is None else [v4.new_output("stream", name="stdout", text=printed)]
    metadata = {"jupyter": {"source_hidden": True}} if hidden else {}
    return v4.new_code_cell(code.rstrip("\n"), outputs=outputs, metadata=metadata)


def run(file: Path) -> None:
    """Execute a notebook in its folder and keep what it printed; raises nbclient's CellExecutionError."""
    from nbclient import NotebookClient

    book = nbformat.read(file, as_version=4)
    NotebookClient(book, timeout=SECONDS_A_CELL, resources={"metadata": {"path": str(file.parent)}}).execute()
    nbformat.write(book, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="The pages of the book as notebooks.")
    parser.add_argument("folder", type=Path, help="where they go: FOLDER/en, FOLDER/zh, FOLDER/pictures")
    parser.add_argument("--short", action="store_true", help="with small computations")
    parser.add_argument("--run", action="store_true", help="execute them as well")
    options = parser.parse_args()
    for file in write_all(options.folder, short=options.short):
        if options.run:
            run(file)
        print(file)


if __name__ == "__main__":
    main()
