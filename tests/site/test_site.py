"""The site: its configuration names what is there, docstrings are rendered, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import leporello as lp
from tests.book.running import ROOT

SITE = ROOT / "docs" / "site"
TOCTREE = re.compile(r"^```\{toctree\}\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
API_ENTRY = re.compile(r"^\.\. (?:auto\w+|py:class):: (?P<name>[\w.]+)", re.MULTILINE)


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def docstrings() -> ModuleType:
    return _module("docstrings")


def _entries(contents: str) -> list[str]:
    """The pages of a table of contents, as paths without a suffix."""
    bodies = [found["body"] for found in TOCTREE.finditer((SITE / "contents" / contents).read_text(encoding="utf-8"))]
    lines = [line for body in bodies for line in body.splitlines() if line and not line.startswith(":")]
    return [re.sub(r"^.*<(.*)>$", r"\1", line) for line in lines]


def test_every_guide_is_in_the_table_of_contents() -> None:
    listed = {(ROOT / "docs" / f"{entry}.md").resolve() for entry in _entries("site.md")}
    assert all(page.exists() for page in listed)
    guides = {page for page in (ROOT / "docs").glob("*.md") if page.name != "index.md"}
    assert guides | {*ROOT.glob("*.md")} <= listed


def test_every_guide_is_on_the_page_that_says_which_is_for_whom() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    guides = {page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md"}
    assert {name for name in guides if f"({name})" not in index} == set()


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (SITE / "api").glob("*.md"))
    listed = {found["name"].split(".")[-1] for found in API_ENTRY.finditer(pages)}
    assert set(lp.__all__) - listed == set()


def test_both_readmes_lead_to_each_other() -> None:
    for page, other in (("README.md", "README.zh.md"), ("README.zh.md", "README.md")):
        top = (ROOT / page).read_text(encoding="utf-8")[:200]
        assert f"]({other})" in top


def test_both_readmes_have_the_same_table_of_what_a_call_can_do() -> None:
    """Row by row the same code and the same links."""
    tables = []
    for page in ("README.md", "README.zh.md"):
        rows = re.findall(r"^\| (?!---)(.+) \|$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)[1:]
        tables.append([(re.findall(r"`[^`]+`", row), re.findall(r"\]\(([^)]+)\)", row)) for row in rows])
    assert tables[0]
    assert tables[0] == tables[1]


def test_arguments_become_definitions(docstrings: ModuleType) -> None:
    lines = ["Sum of *args.", "", "a, b   the first", "       of them", "c      `x`"]
    assert docstrings.restructured(lines) == [
        "Sum of \\*args.",
        "",
        *("``a, b``", "   the first", "   of them"),
        *("``c``", "   `x`"),
        "",
    ]


def test_equations_and_indented_lines_become_code(docstrings: ModuleType) -> None:
    lines = ["a = b;  h = tanh a.", "", "Then:", "", "    for x in y:", "", "        f(x)", "The end."]
    assert docstrings.restructured(lines) == [
        *("::", "", "    a = b;  h = tanh a.", ""),
        *("Then:", ""),
        *("::", "", "    for x in y:", "    ", "        f(x)", ""),
        *("The end.", ""),
    ]


def test_public_names_become_links(docstrings: ModuleType) -> None:
    assert ":py:obj:`lp.Full() <leporello.Full>`" in docstrings.restructured(["as `lp.Full()` does"])[0]
    assert ":py:obj:`lp.Cell <leporello.Cell>`" in docstrings.restructured(["an lp.Cell, or"])[0]


def test_doctests_stay(docstrings: ModuleType) -> None:
    assert docstrings.restructured([">>> f(1)", "2"]) == [">>> f(1)", "2", ""]


@pytest.mark.parametrize(
    "formula", [r"\dots", r"\Big(\frac12 x\Big)", r"s = f(s) \tag{10.1}", r"\operatorname{softmax}(x)", r"a \iff b"]
)
def test_formulas_become_mathml(formula: str) -> None:
    nodes = pytest.importorskip("sphinx.util.nodes", reason="formulas need Sphinx: make docs installs it").nodes
    page = _module("mathml")._mathml(nodes.math(formula, formula), as_block=True)
    assert page.startswith("<math")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"the site needs {package}: make docs installs it")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-c", str(SITE), "-d", str(tmp_path / "doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT), str(tmp_path / "site")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "docs" / "book" / "zh" / "index.html").read_text(encoding="utf-8")
    assert '<html class="no-js" lang="zh-CN"' in page
    assert 'href="../en/index.html" lang="en"' in page
    assert "A cell, run over a sequence" in (tmp_path / "site/docs/site/api/networks.html").read_text(encoding="utf-8")
