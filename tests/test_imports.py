"""The import graph of the whole package, read from the sources: no cycles, and imports at the top of each file.

Every import counts: those under TYPE_CHECKING and those inside functions too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from leporello.loop.value_classes import components

SOURCES = Path(__file__).parent.parent / "src"

# Packages whose modules import each other, and those of the other packages in this list, without cycles.
WITHOUT_CYCLES = (
    "analysis",
    "call",
    "cells",
    "cli",
    "draw",
    "engine",
    "gradient",
    "kernel",
    "language",
    "loop",
    "nets",
    "plotting",
    "rewrite",
    "specs",
    "view",
)

# What may be imported inside a function, and why it is not imported at the top.
IMPORTED_LATE = {
    "matplotlib": "an optional package",
    "onnx": "an optional package",
    "onnxruntime": "an optional package",
    "platformdirs": "an optional package",
    "pydoc_data.topics": "a large text that one command reads",
    "resvg_py": "an optional package",
    "rich": "an optional package",
    "safetensors": "an optional package",
    "tokenizers": "an optional package",
    "tomli_w": "an optional package",
    "torch._dynamo": "takes most of a second to load",
    "torch.fx.experimental.symbolic_shapes": "loads sympy, which takes most of a second",
    "torch.utils.tensorboard": "needs the optional package tensorboard",
    "typer": "an optional package",
}

OURS_IMPORTED_LATE = {
    "leporello_command.outline": "needs typer; without it the command says how to install it",
    "leporello.cli.app": "imports torch, which `leporello --help` does without",
    "leporello.call.compiled": "loads a part of torch that only compilers need",
    "leporello.loop.symbolic_shapes": "loads sympy and dynamo, which the first trace needs",
}


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module, by the module's name."""
    names = {path: path.relative_to(SOURCES).with_suffix("").parts for path in SOURCES.rglob("*.py")}
    return {
        ".".join(parts[:-1] if parts[-1] == "__init__" else parts): ast.parse(path.read_text())
        for path, parts in names.items()
    }


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported anywhere in a tree, with its module: `a.b.c` for `from a.b import c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import is relative"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str | None:
    """The module of ours that an imported name is, or lies in; None for other packages."""
    while name and name not in trees():
        name = name.rpartition(".")[0]
    return name or None


@cache
def dependencies() -> dict[str, set[str]]:
    """For each module those it imports."""
    found = {module: {module_of(name) for name in imported(tree)} for module, tree in trees().items()}
    return {module: {name for name in names if name not in (None, module)} for module, names in found.items()}  # type: ignore[misc]


def cycles(packages: tuple[str, ...]) -> list[list[str]]:
    """Groups of modules of these packages in which each imports every other, perhaps through others."""
    roots = tuple(f"leporello.{package}." for package in packages)
    modules = [name for name in dependencies() if f"{name}.".startswith(roots)]
    edges = {name: dependencies()[name] & set(modules) for name in modules}
    return [sorted(group) for group in components(modules, edges) if len(group) > 1]


def test_there_is_something_to_read() -> None:
    assert "leporello.loop.loop" in dependencies()["leporello.loop.split"]
    assert cycles(WITHOUT_CYCLES[:1]) == []


@pytest.mark.parametrize("package", WITHOUT_CYCLES)
def test_a_package_is_in_the_table_once_and_exists(package: str) -> None:
    assert WITHOUT_CYCLES.count(package) == 1
    assert f"leporello.{package}" in trees()


def test_no_modules_import_each_other() -> None:
    assert cycles(WITHOUT_CYCLES) == []


def test_imports_inside_functions_are_of_late_packages_only() -> None:
    found = {
        (module, name)
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for name in imported(function)
        if not any(f"{name}.".startswith(f"{late}.") for late in (*IMPORTED_LATE, *OURS_IMPORTED_LATE))
    }
    assert found == set()


def test_the_library_patches_nothing_with_mock() -> None:
    assert [m for m, tree in trees().items() if any(name.startswith("unittest") for name in imported(tree))] == []
