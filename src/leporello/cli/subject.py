"""What a command looks at: a network, and what one step of it reads.

Knows how cells, networks and inputs are written; knows nothing of pictures or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError, MissingState
from leporello.loop.state import leaves_of
from leporello.loop.step import place_of
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.layers import Layers
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Stack
from leporello.nets.summary import Summary
from leporello.nets.torch_nn import from_torch
from leporello.written.blame import INPUT
from leporello.written.built_in import built_in
from leporello.written.own import own
from leporello.written.spelling import Spelling, spellings

NETWORKS = (Recurrent, Summary, Bidirectional, Layers)


@dataclass(frozen=True)
class Subject:
    """A network with the form of its inputs.

    given   the cell or network as the user wrote it
    net     a network, which is the given one or goes round it
    shape   of one row of the input at one step; None for a network without input
    dtype   of the input
    """

    given: nn.Module
    net: Any
    shape: tuple[int, ...] | None
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """What it is: a cell of one's own with its file and line."""
        if isinstance(self.given, Stack):
            return " on ".join(type(cell).__name__ for cell in reversed(self.given.cells))
        ours = type(self.given).__module__.startswith("leporello.")
        return type(self.given).__name__ if ours else place_of(self.given)

    def inputs(self, length: int, batch: int) -> Tensor | None:
        """Zeros for so many steps and rows."""
        if self.shape is None:
            return None
        first = (batch, length) if getattr(self.net, "batch_first", False) else (length, batch)
        return torch.zeros(*first, *self.shape, dtype=self.dtype)

    def random_inputs(self, length: int, batch: int) -> Tensor | None:
        """Random ones: normal numbers; class indices that every embedding of the cell has, all 0 where it has none."""
        zeros = self.inputs(length, batch)
        if zeros is None or zeros.is_floating_point():
            return None if zeros is None else torch.randn_like(zeros)
        tables = [part for part in self.given.modules() if isinstance(part, nn.Embedding)]
        return torch.randint_like(zeros, min((table.num_embeddings for table in tables), default=1))

    def targets(self, length: int, batch: int) -> Tensor:
        """Zeros in the place of what is fed back."""
        leaf = self.net.feedback_leaf() if isinstance(self.net, Recurrent) else None
        if leaf is None:
            raise ArgumentError(
                "--forced needs a cell that feeds its output back.",
                came=self.name,
                tries='jordan or elman-jordan; feedback = "o" in a class of your own; lp.Feedback round any cell',
            )
        state = dict(zip(self.net.cell.state_names(), leaves_of(self.net.initial_state(batch)), strict=True))
        return torch.zeros(length, *state[leaf].shape, dtype=state[leaf].dtype)


def subject_of(text: str, input: str | None = None, engine: str | None = None) -> Subject:
    """The network that a text names.

    input    what a row of the input is: sizes, "class" or "none"; by default what the cell says it reads
    engine   what shall run it; by default the network's own choice
    """
    written = spellings(text)
    given = _given(written)
    if isinstance(given, NETWORKS):
        if engine is not None:
            raise ArgumentError(f"'{text}' is a network with an engine of its own.", tries="without --engine")
        net: nn.Module = given
    else:
        net = Recurrent(given, engine=engine or "auto")
        if not hasattr(given, "initial_state"):
            raise MissingState(
                f"{type(given).__name__} declares no state, so a command cannot call it.",
                cell=place_of(given),
                tries="derive it from lp.Cell; or draw it in Python: lp.fold(cell, x, state)",
            )
    shape, dtype = _row(given, written, input)
    return Subject(given, net, shape, dtype)


def _given(written: Sequence[Spelling]) -> nn.Module:
    cells: list[nn.Module] = []
    for one in written:
        below = getattr(cells[-1], "outputs", None) if cells else None
        cell = built_in(one, below) if one.module is None else own(one)
        cells.append(from_torch(cell) if isinstance(cell, (nn.RNNBase, nn.RNNCellBase)) else cell)
    return cells[0] if len(cells) == 1 else Stack(*cells)


def _row(
    given: nn.Module, written: Sequence[Spelling], input: str | None
) -> tuple[tuple[int, ...] | None, torch.dtype]:
    """Shape and dtype of one row of the input: as told, as the cell says, or by its first size."""
    if input is not None:
        return _told(input)
    reads = getattr(_first_cell(given), "inputs", None)
    first = next(iter(written[0].sizes), None)
    size = reads if isinstance(reads, int) else first
    if not isinstance(size, int) or size < 1:
        raise ArgumentError(
            f"what {type(given).__name__} reads is not known.",
            cell=place_of(given),
            expected="a size after its name, or --input",
            tries=INPUT,
        )
    return (size,), torch.float32


def _told(input: str) -> tuple[tuple[int, ...] | None, torch.dtype]:
    words = {"none": (None, torch.float32), "class": ((), torch.int64)}
    if input.lower() in words:
        return words[input.lower()]
    try:
        shape = tuple(int(size) for size in input.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ArgumentError(
            "--input is no size.",
            came=repr(input),
            expected="3 for 3 features, 3,5 for an array, class for a class index, none for no input",
        )
    return shape, torch.float32


def _first_cell(given: nn.Module) -> nn.Module:
    """The cell that reads the input of a network."""
    while isinstance(given, NETWORKS):
        given = next(given.children() if not isinstance(given, Layers) else iter(given.nets))
    return given
