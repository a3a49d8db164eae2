"""`Work`: what one step of a Loop and of its gradient costs, counted in the graphs and not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, fx

from leporello.loop.fake_tensors import has_rows
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.loop.split import part
from leporello.loop.value_classes import is_matrix_product
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.prune import prune
from leporello.rewrite.save import save


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


def work_of(loop: Loop) -> Work:
    """Count the operations of the step and of its gradient, as they are run, and the bytes kept between them."""
    whole = part(loop)
    learned = {name for name, value in loop.parameters.items() if value is None or value.requires_grad}
    pair = save(whole, differentiate(whole, [port.name in learned and port.is_floating for port in whole.inputs]))
    outputs = zip(pair.forward.outputs, pair.forward.results, strict=True)
    kept = [port for port, node in outputs if port.role is Role.SAVED and node.op != "placeholder"]
    floating = [port for port in whole.inputs if port.is_floating]
    return Work(
        forward=_operations(whole),
        backward=_operations(prune(pair.backward)),
        saved=sum(math.prod(port.shape) * port.dtype.itemsize for port in kept),
        state=sum(math.prod(port.shape) for port in floating if port.kind == "state"),
        parameters=sum(math.prod(port.shape) for port in floating if port.name in learned),
        size=max((port.dtype.itemsize for port in floating), default=4),
    )


def _operations(loop: Loop) -> float:
    """Of one step of one row: two for each number that a product is_matrix_product, one for each value otherwise."""
    return sum(_operations_of(node) for node in loop.nodes)


def _operations_of(node: fx.Node) -> float:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0.0
    sources = [source.meta["val"] for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    if not has_rows(value):  # a weight's gradient is a sum over rows: of each row a product of two numbers
        return 2.0 * value.numel() if is_matrix_product(node) and any(map(has_rows, sources)) else 0.0
    numbers = math.prod(int(size) for size in value.shape if isinstance(size, int))
    return 2.0 * numbers * int(sources[-2].shape[-1]) if is_matrix_product(node) else float(numbers)
