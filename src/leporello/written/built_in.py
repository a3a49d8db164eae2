"""Built-in cells by name, with sizes to draw them by where none are given."""

from __future__ import annotations

import difflib
import inspect

from leporello import cells
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.written.build import build, required
from leporello.written.spelling import Spelling

SIZES = {"inputs": 3, "hidden": 4, "outputs": 2, "window": 3}  # by the argument's name
OPTIONS = {"alpha": 0.2}


def built_in(spelling: Spelling, inputs: int | None = None) -> Cell:
    """The built-in cell that is meant.

    inputs   what it reads where no sizes are given: the outputs of the cell below
    """
    kind = built_in_kind(spelling)
    sizes: tuple[float, ...] = spelling.sizes
    if not sizes:
        usual = {**SIZES, "inputs": inputs or SIZES["inputs"]}
        sizes = tuple(usual[name] for name in required(kind) if name not in spelling.options)
    needed = {
        name: OPTIONS[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }
    example = f"{spelling.name}:{','.join(str(SIZES[name]) for name in required(kind))}"
    made = build(kind, kind.__name__, sizes, {**needed, **spelling.options}, example)
    assert isinstance(made, Cell)
    return made


def built_in_kind(spelling: Spelling) -> type[Cell]:
    """The class of a built-in cell."""
    known = {name.lower(): name for name in cells.__all__}
    plain = spelling.name.lower().replace("-", "").replace("_", "")
    if plain in known:
        return getattr(cells, known[plain])
    near = [known[name] for name in difflib.get_close_matches(plain, known, n=3)]
    raise ArgumentError(
        f"no built-in cell is called '{spelling.name}'.",
        nearest=", ".join(near) or None,
        expected=", ".join(cells.__all__),
        tries="a cell of your own is written with its module: my_model:Leaky",
    )
