"""A Loop as text, one line a value. `loop/read.py` reads it back.

Knows how values are spelt; knows nothing of layout or pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


def text_of(loop: Loop) -> str:
    """The loop's inputs, operators and results in an order in which they can run."""
    lines = [f"loop {loop.name}" + (", time reversed" if loop.reverse else "")]
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        kind = port.kind if port.distribution is None else f"{port.kind} {port.distribution}"
        device = "" if port.device.type == "cpu" else f" on {port.device}"
        if port.name in loop.constants:
            kind, device = "constant", f"{device} = {loop.constants[port.name].tolist()!r}"
        lines.append(f"  {kind:<10} {node.name} = {port.name!r} {port}{device}")
    for node in loop.nodes:
        lines.append(f"  {node.name} = {_spelt(node.target)}({_arguments(node)})  # {value_text(node.meta['val'])}")
    for port, node in zip(loop.outputs, loop.results, strict=True):
        kind = "next state" if port.kind == "state" else f"output {port.kind}"
        kind = "output final" if port.name in loop.ended and port.kind == "sequence" else kind
        rows = " per row" if port.kind == "total" and port.rows else ""
        lines.append(f"  {kind} {port.name!r}{rows} = {node.name}")
    return "\n".join(lines) + "\n"


def _spelt(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target.__name__}"
    return f"python.{target.__name__}"


def _arguments(node: fx.Node) -> str:
    positional = [_literal(argument) for argument in node.args]
    return ", ".join([*positional, *(f"{name}={_literal(value)}" for name, value in node.kwargs.items())])


def _literal(argument: Any) -> str:
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(map(_literal, argument)) + "]"
    if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)):
        return str(argument)
    if isinstance(argument, torch.device):
        return f"torch.device({str(argument)!r})"
    return argument.name if isinstance(argument, fx.Node) else repr(argument)


def value_text(value: Any) -> str:
    """Dtype and shape of a value, `rows` for the symbol."""
    if isinstance(value, Tensor):
        sizes = [str(n) if isinstance(n, int) else _rows_text(n) for n in value.shape]
        return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(sizes)}]"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(value_text, value)) + ")"
    return _rows_text(value)


def _rows_text(size: Any) -> str:
    if not hasattr(size, "node"):
        return str(size)
    text = str(size.node.expr)
    for symbol in size.node.expr.free_symbols:
        text = text.replace(str(symbol), "rows")
    return text
