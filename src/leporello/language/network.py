"""`network_of`: the network that a configuration asks for.

Knows how cells are written and which sizes each of them takes; knows nothing of text or training.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from leporello.cells import ElmanJordan, Jordan
from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.language.fed import TokenElmanJordan, TokenJordan
from leporello.language.predictor import Predictor
from leporello.loop.cell import Cell
from leporello.modules.recurrent import Recurrent
from leporello.modules.stack import Stack
from leporello.specs.cell_lookup import DEFAULT_OPTIONS, built_in_class, imported_object
from leporello.specs.cell_spec import CellSpec, parse_cells
from leporello.specs.method_spec import parse_methods
from leporello.specs.user_code import build, required_arguments

FED = {Jordan: TokenJordan, ElmanJordan: TokenElmanJordan}
WINDOW = 8  # steps that a TimeDelay cell looks back on
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # bfloat16: by autocast


def network_of(config: Config, size: int) -> Recurrent:
    """A network with fresh parameters, the same for the same seed.

    size   the number of tokens
    """
    torch.manual_seed(config.seed)
    written = parse_cells(config.cell)
    if len(written) != 1:
        raise ArgumentError(
            "'cell' names several cells.", came=config.cell, expected="one", tries="layers=2 for two of them"
        )
    kind = _kind(written[0])
    widths = [config.embedding or size, *[config.hidden] * (config.layers - 1)]
    cells = []
    for layer, inputs in enumerate(widths):
        top = layer == config.layers - 1
        sizes = {"inputs": inputs, "hidden": config.hidden, "outputs": size if top else config.hidden, "window": WINDOW}
        cells.append(_cell(kind, written[0], sizes))
    inside = cells[0] if len(cells) == 1 else Stack(*cells, dropout=config.dropout)
    predictor = Predictor(
        size,
        inside,
        embedding=config.embedding,
        tied=config.tied,
        dropout=config.dropout,
        scores="outputs" in required_arguments(kind),
    )
    methods = list(parse_methods(config.gradient).values())
    if len(methods) != 1:
        raise ArgumentError("'gradient' names several methods.", came=config.gradient, expected="one")
    return Recurrent(predictor, engine=config.engine, gradient=methods[0]).to(DTYPES[config.precision])


def _kind(spelling: CellSpec) -> Callable[..., object]:
    """The class or function that makes the cell."""
    if spelling.sizes:
        raise ArgumentError(
            "'cell' is written without sizes here.", came=spelling.text, tries=f"{spelling.bare}, and hidden=256"
        )
    if spelling.module is None:
        kind = built_in_class(spelling)
        return FED.get(kind, kind)
    found = imported_object(spelling)
    if not callable(found) or isinstance(found, Cell):
        raise ArgumentError(
            f"'{spelling.bare}' makes no cell.",
            came=type(found).__name__,
            expected="a class derived from lp.Cell with the arguments inputs, hidden and, if it has them, outputs",
        )
    return found


def _cell(kind: Callable[..., object], spelling: CellSpec, sizes: Mapping[str, int]) -> Cell:
    names = [name for name in required_arguments(kind) if name not in spelling.options]
    strange = [name for name in names if name not in sizes]
    if strange:
        raise ArgumentError(
            f"'{spelling.bare}' needs what a language model does not know.",
            came=", ".join(strange),
            expected=f"arguments among {', '.join(sizes)}; the others as options",
            tries=f"{spelling.bare}:{strange[0]}=4",
        )
    usual: dict[str, Any] = {name: value for name, value in DEFAULT_OPTIONS.items() if _lacks(kind, name)}
    given = {**usual, **spelling.options}
    made = build(kind, spelling.name, [sizes[name] for name in names], given, f"{spelling.bare}:option=value")
    if not isinstance(made, Cell):
        raise ArgumentError(f"'{spelling.bare}' gives no cell.", came=type(made).__name__, expected="lp.Cell")
    if not isinstance(getattr(made, "outputs", None), int):
        raise ArgumentError(
            f"what '{spelling.bare}' puts out is not known.",
            came="no attribute 'outputs'",
            expected="the size of its output in the attribute 'outputs'",
            tries="self.outputs = hidden in its __init__",
        )
    return made


def _lacks(kind: Callable[..., object], name: str) -> bool:
    """Whether a keyword has no default."""
    found = inspect.signature(kind).parameters.get(name)
    return found is not None and found.kind is found.KEYWORD_ONLY and found.default is found.empty
