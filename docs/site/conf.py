"""The site: the guides, the book in both languages and an API reference, by Sphinx. `make docs` builds it.

The source folder is the repository itself, so that links between Markdown files are the same here and in a checkout.
Pages stay plain Markdown: their tables of contents are in `contents/` and are appended while Sphinx reads them.
"""

from __future__ import annotations

import posixpath
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT / "src")]

from docstrings import as_restructured_text  # noqa: E402
from mathml import display_math, inline_math  # noqa: E402
from search_words import EnglishAndChinese  # noqa: E402

project = "Leporello"
author = "the authors of Leporello"
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]

root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/book/*/*.md",
    "docs/site/api/*.md",
    "src/leporello/loop/README.md",
    "benchmarks/results/README.md",
]
exclude_patterns = [".*", "build", "dist", "runs", "docs/site/contents", "tests", "examples"]
source_suffix = {".md": "markdown"}
highlight_language = "none"  # of a code block that names no language

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4  # links to headings are checked

autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # what torch.nn.Module says of forward is not about ours
smartquotes = False
default_role = "py:obj"  # `names` in docstrings: links where there is such an object

html_theme = "furo"
html_title = "Leporello"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # index.html, which leads to docs/index.html
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"
html_theme_options = {"source_repository": None}

BOOK = "docs/book/"
LANGUAGES = {"en": "English", "zh": "中文"}
CONTENTS = {  # the page that gets a table of contents, and the file that has it
    "docs/index": "site.md",
    "docs/book/en/index": "book-en.md",
    "docs/book/zh/index": "book-zh.md",
}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    if page in CONTENTS:
        source[0] += "\n" + (SITE / "contents" / CONTENTS[page]).read_text(encoding="utf-8")


def add_language_switch(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Book pages begin with a link to the same page in the other language; Chinese ones say that they are Chinese."""
    spoken = language_of(page)
    if spoken == "zh":
        context["language"] = "zh-CN"
    others = versions(page, app.env.found_docs)
    if len(others) < 2 or "body" not in context:
        return
    entries = []
    for code, other in others.items():
        path = posixpath.relpath(other, posixpath.dirname(page) or ".") + ".html"
        name = LANGUAGES[code]
        entries.append(
            f"<b>{name}</b>" if code == spoken else f'<a href="{path}" lang="{code}" hreflang="{code}">{name}</a>'
        )
    context["body"] = f'<nav class="languages">{" · ".join(entries)}</nav>\n' + context["body"]


def language_of(page: str) -> str:
    return "zh" if page.startswith(BOOK + "zh/") or page.endswith(".zh") else "en"


def versions(page: str, pages: set[str]) -> dict[str, str]:
    """The page in each language it is written in."""
    if page.startswith(BOOK):
        name = page.split("/", 3)[3]
        found = {code: f"{BOOK}{code}/{name}" for code in LANGUAGES}
    else:
        plain = page.removesuffix(".zh")
        found = {"en": plain, "zh": plain + ".zh"}
    return {code: other for code, other in found.items() if other in pages}


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_contents)
    app.connect("html-page-context", add_language_switch)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.add_search_language(EnglishAndChinese)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
