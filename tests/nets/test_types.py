"""What type checkers say of code as users write it: `typed_user_code.py`, and the cell of the README."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from leporello.language.config import Config, Options
from leporello.nets.recurrent import Recurrent
from leporello.nets.typing import CallArguments, NetworkOptions

ROOT = Path(__file__).parents[2]
CODE = Path(__file__).with_name("typed_user_code.py")


def refused_lines(rules: str) -> dict[int, set[str]]:
    """The numbers of the lines that are marked as wrong, with the rules of one checker.

    rules   what the names of its rules look like
    """
    lines = enumerate(CODE.read_text(encoding="utf-8").splitlines(), start=1)
    marked = {number: line.split("# refused: ")[1] for number, line in lines if "  # refused: " in line}
    return {number: set(re.findall(rf"\b{rules}\b", names)) for number, names in marked.items()}


def keywords_of(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def test_mypy_finds_each_mistake_and_nothing_else_nor_in_the_cell_of_the_readme(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    assert "class Leaky(lp.Cell)" in code
    readme = tmp_path / "from_readme.py"
    readme.write_text(f"# mypy: allow-untyped-defs, allow-incomplete-defs\n{code}")  # options of a file keep the cache
    said, errors, _ = api.run(
        ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(CODE), str(readme)]
    )
    assert errors == ""
    found: dict[int, set[str]] = {}
    for file, number, rule in re.findall(r"(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", said, re.MULTILINE):
        assert file == CODE.stem
        found.setdefault(int(number), set()).add(rule)
    assert found == refused_lines(r"[a-z]+-?[a-z]+") != {}


@pytest.mark.slow
def test_pyright_finds_each_mistake_and_nothing_else() -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(CODE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found: dict[int, set[str]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        found.setdefault(one["range"]["start"]["line"] + 1, set()).add(one["rule"])
    assert found == refused_lines(r"report\w+") != {}


def test_the_types_of_keywords_name_those_there_are() -> None:
    assert NetworkOptions.__annotations__.keys() == keywords_of(Recurrent.__init__)
    assert CallArguments.__annotations__.keys() == keywords_of(Recurrent.forward)
    assert ["text", *Options.__annotations__] == list(Config.__dataclass_fields__)
