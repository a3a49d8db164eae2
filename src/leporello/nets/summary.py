"""`Summary`: a network that reads a whole sequence and returns one output, at each row's own end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Unpack

from torch import nn

from leporello.call.explain import Explanation
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, features_of
from leporello.loop.construction import Constructed
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import take
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.ends import ends_of
from leporello.nets.recurrent import Recurrent, shown
from leporello.nets.stack import Layers, Stack
from leporello.nets.typing import CallArguments, NetworkOptions
from leporello.view.folded_loop import FoldedLoop


class _Reading(Cell):
    """A cell as a summary runs it: without its output, where only the state matters.

    silent   whether it returns no output, so that none is computed
    """

    cell: Cell

    def __init__(self, cell: Cell, silent: bool) -> None:
        super().__init__()
        self.cell = cell
        self.silent = silent
        self.inputs = features_of(cell)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        output, after = take(self.cell, x, state)
        return (None if self.silent else output), after

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.cell.initial_state(batch, **options)

    def state_names(self) -> list[str]:
        return self.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.cell.feedback_leaf()


class _Concluding(_Reading):
    """A cell whose output is the head's, at each step: what `Summary.fold` traces."""

    def __init__(self, cell: Cell, head: Callable[[Any], Any], reads: str) -> None:
        super().__init__(cell, silent=False)
        self.head = head
        self.reads = reads

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        output, after = take(self.cell, x, state)
        return self.head(output if self.reads == "output" else after), after


class Summary(Constructed, nn.Module):
    """Read the sequence, then `head(output)`: one output per row, at the row's own end. The head runs once.

        outputs, state = Recurrent(cell)(inputs)
        return head(outputs[-1]), state

    cell      an lp.Cell; or a network: lp.Bidirectional, lp.Layers, lp.Recurrent
    head      a module or function of what it reads
    reads     "output": the head reads the output at the end, of `lp.Bidirectional` the last of each direction, side by
              side; "state": the final state, a tensor or the named tuple of its leaves
    options   those of lp.Recurrent, for a cell

    >>> import torch
    >>> from leporello.cells import LSTM
    >>> net = Summary(LSTM(3, 4), nn.Linear(4, 2))
    >>> net(torch.zeros(5, 7, 3))[0].shape
    torch.Size([7, 2])
    >>> net = Summary(LSTM(3, 4), lambda state: state.c, reads="state")
    >>> net(torch.zeros(5, 7, 3))[0].shape
    torch.Size([7, 4])
    """

    def __init__(
        self,
        cell: Any,
        head: Callable[[Any], Any],
        *,
        reads: Literal["output", "state"] = "output",
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__()
        if reads not in ("output", "state"):
            raise ArgumentError(
                "the argument 'reads' is nothing that a head can read.",
                came=repr(reads),
                expected='"output" or "state"',
            )
        self._leaf: int | None = None  # of the state, that is the output
        if isinstance(cell, Cell):
            if options.get("batch_axis") is None:
                self._leaf = _leaf_that_is_the_output(cell)
            self.net: nn.Module = Recurrent(_Reading(cell, reads == "state" or self._leaf is not None), **options)
        elif isinstance(cell, NETWORKS):
            if options:
                raise ArgumentError(
                    f"the argument '{next(iter(options))}' stands beside a network, which has its own.",
                    came=type(cell).__name__,
                    tries=f"lp.{type(cell).__name__}(..., {next(iter(options))}=...)",
                )
            self.net = cell
        else:
            raise ArgumentError(
                "a summary reads with a cell that declares its state.",
                came=type(cell).__name__,
                expected="lp.Cell, or a network: " + ", ".join(f"lp.{kind.__name__}" for kind in NETWORKS),
                tries="derive the cell from lp.Cell",
            )
        self.reads = reads
        self.head = head

    def _repr_html_(self) -> str:
        return shown(self)

    if TYPE_CHECKING:

        def __call__(
            self, inputs: Tree = None, state: Tree = None, **arguments: Unpack[CallArguments]
        ) -> tuple[Any, Any]: ...

    def forward(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """The head's output and the final state; arguments as for `lp.Recurrent`."""
        if self.reads == "state":
            _, final = self.net(inputs, state, **arguments)
            return self.head(final), final
        if self._leaf is not None:
            _, final = self.net(inputs, state, **arguments)
            return self.head(leaves_of(final)[self._leaf]), final
        output, final = _at_end(self.net, inputs, state, **arguments)
        return self.head(output), final

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.net.initial_state(batch, **options)  # type: ignore[operator]

    def explain(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> Explanation:
        read = self.net.explain(inputs, state, **arguments)  # type: ignore[operator]
        return Explanation(read + "then     the head, once\n")

    def at_each_step(self) -> Recurrent:
        """A network whose output at each step is what this one gives for a sequence that ends there."""
        assert isinstance(self.net, Recurrent)
        reader = self.net.cell
        assert isinstance(reader, Cell)
        cell = reader.cell if isinstance(reader, _Reading) else reader
        return Recurrent(_Concluding(cell, self.head, self.reads), batch_first=self.net.batch_first)

    def fold(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> FoldedLoop:
        """The Loop of a call with these arguments; its outputs are computed at the last step only."""
        if not isinstance(self.net, Recurrent) or not isinstance(self.net.cell, Cell):
            raise ArgumentError(
                f"a summary of {type(self.net).__name__} is several loops, and has no drawing of its own.",
                tries="fold what it reads with: net.net",
            )
        loop = self.at_each_step().fold(inputs, state, **arguments)
        return loop.replace(last_step_outputs=tuple(port.name for port in loop.outputs if port.kind == "sequence"))


NETWORKS = (Recurrent, Bidirectional, Layers)


def _at_end(net: nn.Module, inputs: Tree, state: Tree, **arguments: Any) -> tuple[Tree, Tree]:
    """The output of a network at each row's own end, and its final state."""
    if isinstance(net, Bidirectional):
        return net.at_end(inputs, state, **arguments)
    if isinstance(net, Layers):
        return net.through(inputs, state, arguments, last=_at_end)
    outputs, final = net(inputs, state, **arguments)
    batch_first = bool(getattr(net, "batch_first", False))
    return ends_of(outputs, arguments.get("lengths"), batch_first=batch_first), final


def _leaf_that_is_the_output(cell: Cell) -> int | None:
    """The index of the state leaf that the output is, where the cell's class says so; then no outputs are kept."""
    above = 0
    while isinstance(cell, Stack):
        *below, last = cell.cells
        above += sum(len(one.state_names()) for one in below)  # type: ignore[operator,misc]
        cell = last  # type: ignore[assignment]
    base = next(base for base in type(cell).__mro__ if "forward" in vars(base))
    leaf = vars(base).get("output_leaf")
    return None if leaf is None else above + cell.state_names().index(leaf)
