"""`cost`: what each gradient method costs in time and memory, estimated from the Loop alone.

Counts operations of the step and of its gradient, and numbers that are kept; measures nothing. Time is told in forward
passes, so that it holds on any machine where operations cost alike; `lp.analysis.bias_and_variance` measures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from torch import Tensor, fx

from leporello.errors import ArgumentError
from leporello.loop.fake_tensors import has_rows
from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.loop.split import part
from leporello.loop.value_classes import is_matrix_product
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.prune import prune
from leporello.rewrite.save import SAVED, save

if TYPE_CHECKING:
    from leporello.gradient.method import Method


@dataclass(frozen=True)
class Work:
    """Of one step of one row.

    forward, backward   operations
    saved               bytes that the forward sweep keeps for the backward one, beyond inputs and outputs
    state               numbers
    parameters          numbers, of the whole cell
    size                bytes of a number
    """

    forward: float
    backward: float
    saved: int
    state: int
    parameters: int
    size: int


@dataclass(frozen=True)
class Cost:
    """Of one method.

    time     in forward passes, the one that gives the outputs included
    memory   bytes, beyond inputs, outputs and the parameters' gradients
    gives    what the result is
    """

    method: Method
    time: float
    memory: float
    gives: str


@dataclass(frozen=True)
class Costs:
    """A table of costs."""

    length: int
    batch: int
    loop: str
    rows: tuple[Cost, ...]

    def __str__(self) -> str:
        told = [("method", "time", "memory", "gives"), *map(_told, self.rows)]
        wide = [max(len(row[column]) for row in told) for column in range(4)]
        lines = [f"{self.loop}: {self.length:,} steps, batch {self.batch}; time in forward passes"]
        for method, time, memory, gives in told:
            lines.append(f"  {method:<{wide[0]}}  {time:>{wide[1]}}  {memory:>{wide[2]}}  {gives}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in _told(row)) + "</tr>" for row in self.rows
        )
        head = "".join(f"<th>{title}</th>" for title in ("method", "time (forward passes)", "memory", "gives"))
        return f"<table><tr>{head}</tr>{cells}</table>"


def cost(length: int, batch: int, loop: Loop, methods: Sequence[Method] | None = None) -> Costs:
    """What each method costs for so many steps and rows of a loop.

    methods   one of each kind by default

    >>> print(lp.gradient.cost(1000, 16, lp.fold(lp.LSTM(8, 64), torch.zeros(2, 8))))    # doctest: +SKIP
    """
    if not isinstance(loop, Loop):
        raise ArgumentError(
            "the argument 'loop' is no loop.", came=type(loop).__name__, expected="an lp.Loop", tries="lp.fold(cell, x)"
        )
    for name, number in (("length", length), ("batch", batch)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ArgumentError(f"the argument '{name}' is no size.", came=repr(number), expected="a positive integer")
    if methods is None:
        from leporello.gradient.kinds import kinds  # the methods know their cost by this file

        methods = kinds(length)
    work = work_of(loop)
    rows = tuple(Cost(method, *method.cost(work, length, batch)) for method in methods)
    return Costs(length, batch, loop.name, rows)


def work_of(loop: Loop) -> Work:
    """Counted in the graphs of the step and of its gradient, as they are run."""
    whole = part(loop)
    learned = {name for name, value in loop.parameters.items() if value is None or value.requires_grad}
    pair = save(whole, differentiate(whole, [port.name in learned and _floats(port) for port in whole.inputs]))
    made = zip(pair.forward.outputs, pair.forward.results, strict=True)
    kept = [port for port, node in made if port.name.startswith(SAVED) and node.op != "placeholder"]
    floating = [port for port in whole.inputs if _floats(port)]
    return Work(
        forward=_operations(whole),
        backward=_operations(prune(pair.backward)),
        saved=sum(math.prod(port.shape) * port.dtype.itemsize for port in kept),
        state=sum(math.prod(port.shape) for port in floating if port.kind == "state"),
        parameters=sum(math.prod(port.shape) for port in floating if port.name in learned),
        size=max((port.dtype.itemsize for port in floating), default=4),
    )


def _floats(port: Port) -> bool:
    return port.dtype.is_floating_point or port.dtype.is_complex


def _operations(loop: Loop) -> float:
    """Of one step of one row: two for each number that a product multiplies, one for each value otherwise."""
    return sum(_of_node(node) for node in loop.nodes)


def _of_node(node: fx.Node) -> float:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0.0
    sources = [source.meta["val"] for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    if not has_rows(value):  # a weight's gradient is a sum over rows: of each row a product of two numbers
        return 2.0 * value.numel() if is_matrix_product(node) and any(map(has_rows, sources)) else 0.0
    own = math.prod(int(size) for size in value.shape if isinstance(size, int))
    return 2.0 * own * int(sources[-2].shape[-1]) if is_matrix_product(node) else float(own)


def _told(row: Cost) -> tuple[str, str, str, str]:
    return repr(row.method), f"{row.time:.2f}", _bytes(row.memory), row.gives


def _bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
