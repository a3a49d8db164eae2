"""`network_of`: the network that a configuration describes.

Its cell is a `Predictor`: an embedding, the configured cell, and an output layer with a score (logit) for each token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from leporello.cells import ElmanJordan, Jordan
from leporello.errors import ArgumentError
from leporello.language.config import Config
from leporello.loop.cell import Cell
from leporello.loop.state import Tree
from leporello.loop.step import take
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Stack
from leporello.nets.typing import EngineName
from leporello.specs.cell_spec import DEFAULT_OPTIONS, CellSpec, built_in_class, imported_object, parse_cells
from leporello.specs.method_spec import parse_methods
from leporello.specs.user_code import build, required_arguments


class TokenJordan(Jordan):
    """Jordan's cell for tokens: not its outputs o, which are scores, but the probabilities softmax o are fed back.

    A true token that is fed back instead is a one-hot vector, so that both are probabilities.
    """

    def feed(self, output: Tensor) -> Tensor:
        return torch.softmax(output, -1)


class TokenElmanJordan(ElmanJordan):
    """The Elman-Jordan cell for tokens: the probabilities softmax o are fed back, as in `TokenJordan`."""

    def feed(self, output: Tensor) -> Tensor:
        return torch.softmax(output, -1)


class Predictor(Cell):
    """x = E[token], or the one-hot vector of the token;  y, state' = inside(x, state);  scores = c + V y.

    size        of the vocabulary
    inside      the cell between embedding and output layer
    embedding   the size of x = E[token]; 0: no E, x is one-hot
    tied        V and E are one parameter
    dropout     share of y's values dropped in train()
    scores      the cell's outputs are the scores: there is no output layer V, c

    The input is a class index per row, (batch,). The state is that of the cell inside.

    >>> from leporello.cells import GRU
    >>> scores, state = Predictor(28, GRU(28, 8))(torch.tensor([3, 4]), torch.zeros(2, 8))
    >>> scores.shape
    torch.Size([2, 28])
    """

    def __init__(
        self,
        size: int,
        inside: Cell,
        *,
        embedding: int = 0,
        tied: bool = False,
        dropout: float = 0.0,
        scores: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.dropout = size, dropout
        self.embedding = nn.Embedding(size, embedding) if embedding else None
        self.inside = inside
        outputs = getattr(inside, "outputs", None)
        self.head = None if scores else nn.Linear(outputs, size)  # type: ignore[arg-type]
        if tied:
            if self.embedding is None or self.head is None or outputs != embedding:
                raise ArgumentError(
                    "the embedding cannot be the matrix of the output layer.",
                    came=f"embedding of {embedding}, outputs of {outputs}",
                    expected="the same size, and an output layer",
                    tries=f"embedding={outputs}",
                )
            nn.init.uniform_(self.embedding.weight, -(embedding**-0.5), embedding**-0.5)
            self.head.weight = self.embedding.weight

    def forward(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        x = self.read(token)
        y, state = take(self.inside, x, state)
        if self.head is None:
            return y, state
        return self.head(nn.functional.dropout(y, self.dropout, self.training)), state

    def read(self, token: Tensor) -> Tensor:
        """The input of the cell inside for a token: its embedding or its one-hot vector."""
        if self.embedding is not None:
            return self.embedding(token)
        dtype = next(self.inside.parameters()).dtype
        return (token.unsqueeze(-1) == torch.arange(self.size, device=token.device)).to(dtype)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tree:
        return self.inside.initial_state(batch, device=device, dtype=dtype)

    def state_names(self) -> list[str]:
        return self.inside.state_names()

    def feedback_leaf(self) -> str | None:
        """That of the cell inside, if its outputs are the scores; None with an output layer: no score is fed back."""
        return self.inside.feedback_leaf() if self.head is None else None


TOKEN_CELLS = {Jordan: TokenJordan, ElmanJordan: TokenElmanJordan}
TIME_DELAY_WINDOW = 8  # steps that a TimeDelay cell looks back on
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # bfloat16: autocast


def network_of(config: Config, size: int) -> Recurrent:
    """A network with fresh parameters, the same for the same seed: torch's global generator is seeded.

    size   of the vocabulary
    """
    torch.manual_seed(config.seed)
    names = parse_cells(config.cell)
    if len(names) != 1:
        raise ArgumentError(
            "'cell' names several cells.", came=config.cell, expected="one", tries="layers=2 for two of them"
        )
    kind = _cell_type(names[0])
    widths = [config.embedding or size, *[config.hidden] * (config.layers - 1)]
    cells = []
    for layer, inputs in enumerate(widths):
        top = layer == config.layers - 1
        sizes = {
            "inputs": inputs,
            "hidden": config.hidden,
            "outputs": size if top else config.hidden,
            "window": TIME_DELAY_WINDOW,
        }
        cells.append(_cell(kind, names[0], sizes))
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
    return Recurrent(predictor, engine=cast(EngineName, config.engine), gradient=methods[0]).to(
        DTYPES[config.precision]
    )


def _cell_type(spec: CellSpec) -> Callable[..., object]:
    """The class or function that makes the cell of a name; for Jordan's cells, their variants for tokens."""
    if spec.sizes:
        raise ArgumentError(
            "'cell' is written without sizes here.", came=spec.text, tries=f"{spec.bare}, and hidden=256"
        )
    if spec.module is None:
        cell_class = built_in_class(spec)
        return TOKEN_CELLS.get(cell_class, cell_class)
    kind = imported_object(spec)
    if not callable(kind) or isinstance(kind, Cell):
        raise ArgumentError(
            f"'{spec.bare}' makes no cell.",
            came=type(kind).__name__,
            expected="a class derived from lp.Cell with the arguments inputs, hidden and, if it has them, outputs",
        )
    return kind


def _cell(kind: Callable[..., object], spec: CellSpec, sizes: Mapping[str, int]) -> Cell:
    """One cell of the network, made by `kind` with the sizes that it requires and the options of the specification.

    sizes   by the names of arguments that `kind` may have
    """
    names = [name for name in required_arguments(kind) if name not in spec.options]
    unsupported = [name for name in names if name not in sizes]
    if unsupported:
        raise ArgumentError(
            f"'{spec.bare}' needs what a language model does not know.",
            came=", ".join(unsupported),
            expected=f"arguments among {', '.join(sizes)}; the others as options",
            tries=f"{spec.bare}:{unsupported[0]}=4",
        )
    defaults: dict[str, Any] = {name: value for name, value in DEFAULT_OPTIONS.items() if _requires_keyword(kind, name)}
    options = {**defaults, **spec.options}
    cell = build(kind, spec.name, [sizes[name] for name in names], options, f"{spec.bare}:option=value")
    if not isinstance(cell, Cell):
        raise ArgumentError(f"'{spec.bare}' gives no cell.", came=type(cell).__name__, expected="lp.Cell")
    if not isinstance(getattr(cell, "outputs", None), int):
        raise ArgumentError(
            f"what '{spec.bare}' puts out is not known.",
            came="no attribute 'outputs'",
            expected="the size of its output in the attribute 'outputs'",
            tries="self.outputs = hidden in its __init__",
        )
    return cell


def _requires_keyword(kind: Callable[..., object], name: str) -> bool:
    """Whether a callable has a keyword of this name without a default."""
    parameter = inspect.signature(kind).parameters.get(name)
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
