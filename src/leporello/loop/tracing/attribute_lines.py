"""The user's line that sets an attribute, found in the source of the modules of a cell.

When a step is refused because it has set an attribute, the line has run already: no traceback holds it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from torch import nn

_ASSIGNMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)


def line_that_sets(cell: nn.Module, name: str) -> str | None:
    """`my_model.py, line 41: self.mem = ...`: the first one that may set it outside of a constructor, or None.

    cell   the module that is traced
    name   the attribute, with the path of its module: "lif.mem"
    """
    path, _, attribute = name.rpartition(".")
    modules = [cell.get_submodule(path), *cell.modules()]  # a module's own methods before those of others
    classes = dict.fromkeys(kind for module in modules for kind in type(module).__mro__)
    found = (
        line
        for kind in classes
        if not kind.__module__.startswith(("torch.", "builtins"))
        for line in _lines(kind, attribute)
    )
    return next(found, None)


def _lines(kind: type, attribute: str) -> Iterator[str]:
    """The lines of a class that set an attribute of this name."""
    try:
        lines, first = inspect.getsourcelines(kind)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # made at run time: there is no file
        return
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    for method in methods:
        for node in ast.walk(method):
            if isinstance(node, ast.stmt) and _sets(node, attribute):
                text = lines[node.lineno - 1].strip()
                yield f"{Path(inspect.getsourcefile(kind) or '').name}, line {first + node.lineno - 1}: {text}"


def _sets(node: ast.AST, attribute: str) -> bool:
    """Whether a statement assigns to the attribute or to an item of it, or calls a method of what it holds alone."""
    if isinstance(node, _ASSIGNMENTS):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
        return any(_is(part, attribute) for target in targets for part in ast.walk(target))
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is(call.func.value, attribute)


def _is(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute
