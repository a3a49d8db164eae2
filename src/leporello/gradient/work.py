"""`Work`: the operations and memory of one step of a Loop and of its gradient, counted from the graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, fx

from leporello.loop.fake_tensors import has_rows
from leporello.loop.loop import Loop
from leporello.loop.part import part
from leporello.loop.port import Role
from leporello.loop.value_classes import is_matrix_product
from leporello.rewrite.differentiate import differentiate
from leporello.rewrite.prune import prune
from leporello.rewrite.save import save


@dataclass(frozen=True)
class Work:
    """The work of one step of one row.

    forward, backward   operations
    saved               bytes that the forward sweep saves for the backward one, beyond inputs and outputs
    state               elements of the state, floating leaves only
    parameters          elements of all parameters that require a gradient
    size                bytes of an element: the largest of all floating inputs
    """

    forward: float
    backward: float
    saved: int
    state: int
    parameters: int
    size: int


def work_of(loop: Loop) -> Work:
    """Count the operations of a step and of its gradient, as they are run, and the bytes saved between them."""
    forward = part(loop)
    learned = {name for name, value in loop.parameters.items() if value is None or value.requires_grad}
    pair = save(forward, differentiate(forward, [port.name in learned and port.is_floating for port in forward.inputs]))
    outputs = zip(pair.forward.outputs, pair.forward.results, strict=True)
    saved = [port for port, node in outputs if port.role is Role.SAVED and node.op != "placeholder"]
    floating = [port for port in forward.inputs if port.is_floating]
    return Work(
        forward=_operations(forward),
        backward=_operations(prune(pair.backward)),
        saved=sum(math.prod(port.shape) * port.dtype.itemsize for port in saved),
        state=sum(math.prod(port.shape) for port in floating if port.kind == "state"),
        parameters=sum(math.prod(port.shape) for port in floating if port.name in learned),
        size=max((port.dtype.itemsize for port in floating), default=4),
    )


def _operations(loop: Loop) -> float:
    """Operations of one step of one row: two for each multiply-add of a matrix product, else one per element."""
    return sum(operations_of(node) for node in loop.nodes)


def operations_of(node: fx.Node) -> float:
    """Operations of one value of one row, as `_operations` counts them."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0.0
    sources = [source.meta["val"] for source in node.all_input_nodes if isinstance(source.meta["val"], Tensor)]
    if not has_rows(value):  # a weight's gradient is a sum over rows: one multiply-add per row and number
        return 2.0 * value.numel() if is_matrix_product(node) and any(map(has_rows, sources)) else 0.0
    numbers = math.prod(int(size) for size in value.shape if isinstance(size, int))
    return 2.0 * numbers * int(sources[-2].shape[-1]) if is_matrix_product(node) else float(numbers)
