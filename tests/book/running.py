"""The pages of the book as programs: their code, what it printed, and a comparison that forgives rounding.

A page is Markdown. Its ```python blocks run in order, in one namespace. A ```text block behind one is what it printed:
numbers may differ by rounding, `...` stands for any lines. Two marks keep long computations out of short runs:

    updates = 2000  # short: 20          in a short run the line reads `updates = 20`
    <!-- long -->                        the block behind this line is left out of short runs

Behind the first of them a short run compares no printed numbers.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "docs" / "book"
LANGUAGES = ("zh", "en")
FENCE = re.compile(
    r"(?P<long><!-- long -->\n)?^```python[^\n]*\n(?P<code>.*?)^```[ \t]*$"
    r"(?:\s*^```text\n(?P<printed>.*?)^```[ \t]*$)?",
    re.MULTILINE | re.DOTALL,
)
SHORT = re.compile(r"^(?P<indent>\s*)(?P<name>[\w, ]+) = [^#\n]*# short: (?P<value>[^\n]+)$", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?|(?<!\w)(?:nan|inf)(?!\w)")
RELATIVE, ABSOLUTE = 0.05, 1.5  # of a printed number, and of its last printed digit


@dataclass(frozen=True)
class Block:
    """A piece of code; `line` is that of its first line in the page, `printed` what stands behind it."""

    code: str
    line: int
    long: bool
    printed: str | None

    @property
    def is_shortened(self) -> bool:
        return self.long or SHORT.search(self.code) is not None


def pages(language: str) -> list[Path]:
    return sorted((BOOK / language).glob("*.md"))


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        yield Block(found["code"], line, found["long"] is not None, found["printed"])


def run(page: Path, *, short: bool) -> None:
    """Run a page's code in the present folder, and compare what it prints; raises AssertionError where that differs."""
    module = types.ModuleType(f"book_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # so that its classes can be found by name, as a script's can
    comparing = True
    try:
        for block in blocks(page):
            comparing = comparing and not (short and block.is_shortened)
            if short and block.long:
                continue
            code = SHORT.sub(r"\g<indent>\g<name> = \g<value>", block.code) if short else block.code
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * (block.line - 1) + code, str(page), "exec", dont_inherit=True), module.__dict__)
            if block.printed is not None and comparing:
                difference = differing(block.printed, printed.getvalue())
                assert difference is None, f"{page.name}, line {block.line}: {difference}\n{printed.getvalue()}"
    finally:
        del sys.modules[module.__name__]


def differing(expected: str, printed: str) -> str | None:
    """Where two texts differ by more than rounding, in words; None where they do not."""
    wanted, came = _lines(expected), _lines(printed)
    at = 0
    for index, line in enumerate(wanted):
        if line.strip() == "...":
            rest = wanted[index + 1 :]
            if not rest:
                return None
            at = next((place for place in range(at, len(came)) if _same(rest[0], came[place])), len(came))
            continue
        if at >= len(came):
            return f"'{line}' is missing"
        if not _same(line, came[at]):
            return f"'{came[at]}' instead of '{line}'"
        at += 1
    return None if at == len(came) else f"'{came[at]}' is too much"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _same(one: str, other: str) -> bool:
    texts = [" ".join(NUMBER.sub("#", line).split()) for line in (one, other)]
    numbers = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
    return texts[0] == texts[1] and all(_close(a, b) for a, b in numbers)


def _close(one: str, other: str) -> bool:
    a, b = (float(text.replace(",", "").replace("−", "-")) for text in (one, other))
    if a != a or b != b or abs(a) == float("inf"):
        return one == other
    mantissa, _, exponent = one.partition("e")
    digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    is_count = digit == 1 and abs(a) < 20  # small integers are exact
    return a == b or (not is_count and abs(a - b) <= max(RELATIVE * abs(a), ABSOLUTE * digit))


def without_words(code: str) -> str:
    """Code without comments, and with every text replaced: equal for two languages of one program."""

    class Words(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            return ast.Constant("") if isinstance(node.value, str) and not _is_code(node.value) else node

        def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
            return ast.Tuple([self.visit(part.value) for part in node.values if isinstance(part, ast.FormattedValue)])

    return ast.dump(Words().visit(ast.parse(code)))


def _is_code(text: str) -> bool:
    """Whether a text is a name, a path or an option rather than words."""
    return text.isascii() and " " not in text


def main() -> None:
    """`python -m tests.book.running [PAGE ...]`: run pages in their long form; it writes the pictures of the book.

    PAGE is a part of a name: `06` in both languages, `zh/06` in one. Without it, all English pages run.
    """
    for page in [page for language in LANGUAGES for page in pages(language)]:
        name = f"{page.parent.name}/{page.name}"
        if any(wanted in name for wanted in sys.argv[1:] or ["en/"]):
            with contextlib.chdir(page.parent):
                run(page, short=False)
            print(name, "ran")


if __name__ == "__main__":
    main()
