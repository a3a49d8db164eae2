"""The values of a loop's inputs, gathered for a call by one written-out function.

Knows where a cell keeps its tensors; knows nothing of plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from leporello.loop.loop import Loop
from leporello.loop.port import Port
from leporello.modules.planning import drawn

Gathering = Callable[..., list[Tensor]]


def gathering(loop: Loop, cell: nn.Module, states: Sequence[str]) -> Gathering:
    """A function (inputs, states, length, batch, beside) -> values in the order of the loop's inputs, contiguous.

    states   the names of the state's leaves, in their order
    beside   what goes along with the sequence, by kind and name
    """
    known: dict[str, Any] = {"drawn": drawn}
    values = [_value(port, loop, cell, states, known) + _signed(port) for port in loop.inputs]
    lines = ["def gather(inputs, states, length, batch, beside):"]
    lines.append(f" return [{', '.join(f'{value}.contiguous()' for value in values)}]")
    exec("\n".join(lines), known)
    found: Gathering = known["gather"]
    return found


def _value(port: Port, loop: Loop, cell: nn.Module, states: Sequence[str], known: dict[str, Any]) -> str:
    """How one input is found; `known` gets what the line names."""
    if port.name.startswith("call."):
        return f"beside[{port.kind!r}, {port.name!r}]"
    if port.kind == "sequence":
        return "inputs"
    if port.kind == "state":
        return f"states[{states.index(port.name)}]"
    name = f"k{len(known)}"
    if port.kind == "draw":
        known[name] = port
        return f"drawn({name}, length, batch, inputs.device)"
    if port.name in loop.constants:
        known[name] = loop.constants[port.name]
        return name
    *path, own = port.name.split(".")
    home: Any = cell
    for part in path:
        home = getattr(home, part)
    table = next((table for table in (home._parameters, home._buffers) if own in table), None)
    if table is None:  # a parametrized weight: computed whenever it is read
        known[name] = home
        return f"{name}.{own}" if own.isidentifier() else f"getattr({name}, {own!r})"
    known[name] = table
    return f"{name}[{own!r}]"


def _signed(port: Port) -> str:
    """What writes a minus sign into the numbers that torch has only noted: it notes it on imaginary parts, which lie
    one behind the other, and are not copied then, where there is but one of them."""
    return ".resolve_neg()" if math.prod(port.shape) == 1 and port.dtype.is_floating_point else ""
