"""The network that a command works on: built from its specification, with the shape of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
import typer
from torch import Tensor, nn

from leporello.errors import ArgumentError, MissingState
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.loop.step import place_of, state_names
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers, Stack
from leporello.nets.summary import Summary
from leporello.nets.torch_nn import from_torch
from leporello.nets.typing import EngineName
from leporello.specs.cell_spec import CellSpec, built_in_cell, parse_cells, user_cell
from leporello.specs.user_code import INPUT_HINT

NETWORKS = (Recurrent, Summary, Bidirectional, Layers)

# Arguments and options that several commands have.
CellArgument = Annotated[
    str,
    typer.Argument(
        metavar="CELL", help="The cell: lstm, lstm:28,256, lstm:28,256+gru, or your own: my_model:Leaky:3,64."
    ),
]
InputOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What one row of the input is: 3, or 3,5, or class, or none.")
]
EngineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What runs the cell: auto, cpu, gpu, stepwise or reference; auto by default."),
]
LengthOption = Annotated[int, typer.Option(metavar="N", help="Number of steps of the sequence.")]
BatchOption = Annotated[int, typer.Option(metavar="B", help="Number of rows of the batch.")]


@dataclass(frozen=True)
class BuiltNetwork:
    """A network with the form of its inputs.

    module   the cell or network that the specification names
    net      the network to call: the module itself, or a Recurrent around it
    shape    of one row of the input at one step; None for a network without input
    dtype    of the input
    """

    module: nn.Module
    net: Any
    shape: tuple[int, ...] | None
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """The class of the cell; a cell of the user with its file and line."""
        if isinstance(self.module, Stack):
            return " on ".join(type(cell).__name__ for cell in reversed(self.module.cells))
        is_built_in = type(self.module).__module__.startswith("leporello.")
        return type(self.module).__name__ if is_built_in else place_of(self.module)

    @property
    def description(self) -> str:
        """One line: the name, the number of parameters, and the shape of the state."""
        count = sum(parameter.numel() for parameter in self.module.parameters())
        text = f"{self.name}: {count:,} parameters"
        if isinstance(self.module, NETWORKS):
            return text
        state = self.module.initial_state(1)  # type: ignore[operator]
        leaves = zip(state_names(self.module, state), leaves_of(state), strict=True)
        states = ", ".join(f"{name} {list(leaf.shape[1:])}" for name, leaf in leaves)
        return f"{text}, {'state ' + states if states else 'no state'}"

    def zero_inputs(self, length: int, batch: int) -> Tensor | None:
        """Zeros for so many steps and rows; None for a network without input."""
        if self.shape is None:
            return None
        leading = (batch, length) if getattr(self.net, "batch_first", False) else (length, batch)
        return torch.zeros(*leading, *self.shape, dtype=self.dtype)

    def random_inputs(self, length: int, batch: int) -> Tensor | None:
        """Normally distributed values, or class indices; None for a network without input.

        Class indices are below the size of every embedding of the cell; without embeddings all are 0.
        """
        zeros = self.zero_inputs(length, batch)
        if zeros is None or zeros.is_floating_point():
            return None if zeros is None else torch.randn_like(zeros)
        embeddings = [part for part in self.module.modules() if isinstance(part, nn.Embedding)]
        return torch.randint_like(zeros, min((table.num_embeddings for table in embeddings), default=1))

    def zero_targets(self, length: int, batch: int) -> Tensor:
        """Zeros in the shape of what the cell feeds back, for teacher forcing; a cell without feedback is refused."""
        leaf = self.net.feedback_leaf() if isinstance(self.net, Recurrent) else None
        if leaf is None:
            raise ArgumentError(
                "--forced needs a cell that feeds its output back.",
                came=self.name,
                tries='jordan or elman-jordan; feedback = "o" in a class of your own; lp.Feedback round any cell',
            )
        state = dict(zip(self.net.cell.state_names(), leaves_of(self.net.initial_state(batch)), strict=True))
        return torch.zeros(length, *state[leaf].shape, dtype=state[leaf].dtype)


def build_network(text: str, input: str | None = None, engine: str | None = None) -> BuiltNetwork:
    """Build the network that a specification names.

    text     the specification: lstm:28,256 or my_model:Leaky:3,64
    input    one row of the input: sizes, "class" or "none"; by default the size that the cell declares
    engine   the engine that runs it; by default the network's own choice
    """
    specs = parse_cells(text)
    module = _build_module(specs)
    if isinstance(module, NETWORKS):
        if engine is not None:
            raise ArgumentError(f"'{text}' is a network with an engine of its own.", tries="without --engine")
        net: nn.Module = module
    else:
        net = Recurrent(module, engine=cast(EngineName, engine or "auto"))
        if not hasattr(module, "initial_state"):
            raise MissingState(
                f"{type(module).__name__} declares no state, so a command cannot call it.",
                cell=place_of(module),
                tries="derive it from lp.Cell; or draw it in Python: lp.fold(cell, x, state)",
            )
    shape, dtype = _input_form(module, specs, input)
    return BuiltNetwork(module, net, shape, dtype)


def build_random_call(
    cell: str, input: str | None, engine: str | None, *, length: int, batch: int, seed: int
) -> tuple[BuiltNetwork, dict[str, Any]]:
    """A network with random parameters, and the keyword arguments of a call with random inputs.

    Both are the same for the same seed: torch's global generator is seeded. A network without inputs gets a
    random state before the first step instead.
    """
    check_counts(length=length, batch=batch)
    if not 0 <= seed < 2**63:
        raise ArgumentError("--seed is no seed.", came=seed, expected="0 or more")
    torch.manual_seed(seed)
    network = build_network(cell, input, engine)
    if not isinstance(network.net, Recurrent):
        raise ArgumentError(
            f"{network.name} is not one net that goes over a sequence once.",
            came=f"lp.{type(network.net).__name__}",
            expected="a cell, or an lp.Recurrent",
            tries="its parts, one by one",
        )
    inputs = network.random_inputs(length, batch)
    if inputs is not None:
        return network, {"inputs": inputs}
    state = map_leaves(
        lambda leaf: leaf if _is_integer(leaf) else torch.randn_like(leaf), network.net.initial_state(batch)
    )
    return network, {"inputs": None, "state": state, "steps": length}


def check_counts(**counts: int) -> None:
    """Raise unless each count, named as its option, is at least 1."""
    for option, count in counts.items():
        if count < 1:
            raise ArgumentError(f"--{option} is no count.", came=count, expected="1 or more")


def mean_square(output: Tree) -> Tensor:
    """The loss of commands that measure, (batch,): per row, the mean square of all outputs but those of integers."""
    leaves = [leaf for leaf in leaves_of(output) if leaf is not None and not _is_integer(leaf)]
    return torch.cat([leaf.abs().square().flatten(1) for leaf in leaves], 1).mean(1)


def _is_integer(leaf: Tensor) -> bool:
    return not leaf.is_floating_point() and not leaf.is_complex()


def _build_module(specs: Sequence[CellSpec]) -> nn.Module:
    cells: list[nn.Module] = []
    for spec in specs:
        outputs_below = getattr(cells[-1], "outputs", None) if cells else None
        cell = built_in_cell(spec, outputs_below) if spec.module is None else user_cell(spec)
        cells.append(from_torch(cell) if isinstance(cell, (nn.RNNBase, nn.RNNCellBase)) else cell)
    return cells[0] if len(cells) == 1 else Stack(*cells)


def _input_form(
    module: nn.Module, specs: Sequence[CellSpec], input: str | None
) -> tuple[tuple[int, ...] | None, torch.dtype]:
    """Shape and dtype of one row of the input: from --input, from the cell's attribute, or its first size."""
    if input is not None:
        return _parse_input(input)
    declared = getattr(_first_cell(module), "inputs", None)
    first_size = next(iter(specs[0].sizes), None)
    size = declared if isinstance(declared, int) else first_size
    if not isinstance(size, int) or size < 1:
        raise ArgumentError(
            f"what {type(module).__name__} reads is not known.",
            cell=place_of(module),
            expected="a size after its name, or --input",
            tries=INPUT_HINT,
        )
    return (size,), torch.float32


def _parse_input(input: str) -> tuple[tuple[int, ...] | None, torch.dtype]:
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


def _first_cell(module: nn.Module) -> nn.Module:
    """The cell that reads the input of a network."""
    while isinstance(module, NETWORKS):
        module = next(module.children() if not isinstance(module, Layers) else iter(module.nets))
    return module
