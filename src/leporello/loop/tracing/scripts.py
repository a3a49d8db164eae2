"""TorchScript in a step: scripted functions and modules become operators of the step's own graph.

A scripted function runs as the Python function that it was made of. A scripted module has none any more: its graph is
run here, operator by operator. TorchScript's own interpreter would turn sizes into plain numbers, and the trace would
hold for one batch only.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_KINDS: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
_PLAIN_CALLS = {kind: kind.__call__ for kind in _KINDS}


class _Thread(threading.local):
    traces = False


_thread = _Thread()


@contextmanager
def scripts_inlined() -> Iterator[None]:
    """While the block runs, scripts that this thread calls run operator by operator.

    Blocks of several threads do not overlap: a trace holds the lock of cells.
    """
    before, _thread.traces = _thread.traces, True
    patched = [kind for kind in _KINDS if kind.__call__ is _PLAIN_CALLS[kind]]
    for kind in patched:
        kind.__call__ = _call
    try:
        yield
    finally:
        _thread.traces = before
        for kind in patched:
            kind.__call__ = _PLAIN_CALLS[kind]


def _call(script: Any, *args: Any, **options: Any) -> Any:
    original = getattr(script, "_torchdynamo_inline", None)
    if not _thread.traces:
        return _PLAIN_CALLS[type(script)](script, *args, **options)
    if original is not None:
        return original(*args, **options)
    owner = [script.owner] if isinstance(script, torch._C.ScriptMethod) else []
    return _run_graph(script.inlined_graph, [*owner, *_bound(script.schema, len(owner), args, options)])


def _bound(schema: Any, skipped: int, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """The arguments of a script in their order, with defaults."""
    arguments = schema.arguments[skipped:]
    rest = [options.get(a.name, a.default_value) for a in arguments[len(args) :]]
    return [*args, *rest]


def _run_graph(graph: Any, inputs: list[Any]) -> Any:
    values = dict(zip([place.debugName() for place in graph.inputs()], inputs, strict=True))
    results = _run_block(graph, values)
    return results[0] if len(results) == 1 else tuple(results)


def _run_block(block: Any, values: dict[str, Any]) -> list[Any]:
    """Run the nodes of a graph or block, add their results to the values by name, and return the block's results."""
    for node in block.nodes():
        read = [values[place.debugName()] for place in node.inputs()]
        results = _run_node(node, read, values)
        for place, result in zip(node.outputs(), results, strict=True):
            values[place.debugName()] = result
    return [values[place.debugName()] for place in block.outputs()]


def _run_node(node: Any, read: list[Any], values: dict[str, Any]) -> list[Any]:
    kind = node.kind()
    if kind == "prim::Constant":
        return [_constant(node)]
    if kind == "prim::GetAttr":
        return [read[0].getattr(node.s("name"))]
    if kind == "prim::If":
        blocks = list(node.blocks())
        return _run_block(blocks[0] if read[0] else blocks[1], values)
    if kind == "prim::Loop":
        return _run_loop(node, read, values)
    if kind in ("prim::TupleUnpack", "prim::ListUnpack"):
        return list(read[0])
    if kind in _PYTHON:
        return [_PYTHON[kind](*read)]
    return _run_operator(node, kind, read)


def _run_loop(node: Any, read: list[Any], values: dict[str, Any]) -> list[Any]:
    (block,) = node.blocks()
    names = [place.debugName() for place in block.inputs()]
    trips, goes_on, *carried = read
    trip = 0
    while goes_on and trip < trips:
        values.update(zip(names, [trip, *carried], strict=True))
        goes_on, *carried = _run_block(block, values)
        trip += 1
    return carried


def _run_operator(node: Any, kind: str, read: list[Any]) -> list[Any]:
    """Run an operator of torch, or what TorchScript calls an operator on numbers and lists."""
    space, _, name = kind.partition("::")
    schema = torch._C.parse_schema(node.schema())
    tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    if kind in _ON_NUMBERS and not (tensors and kind not in _ON_ANYTHING):
        return [_ON_NUMBERS[kind](*read)]
    overload = getattr(getattr(getattr(torch.ops, space), name), schema.overload_name or "default")
    by_place = list(zip(schema.arguments, read, strict=True))
    args = [value for argument, value in by_place if not argument.kwarg_only]
    options = {argument.name: value for argument, value in by_place if argument.kwarg_only}
    result = overload(*args, **options)
    return list(result) if node.outputsSize() > 1 else [result][: node.outputsSize()]


def _constant(node: Any) -> Any:
    if not node.hasAttribute("value"):
        return None
    value = getattr(node, node.kindOf("value"))("value")
    kind = str(node.output().type())
    if kind == "bool":
        return bool(value)
    return torch.device(value) if kind == "Device" else value


def _raise(message: Any, *_: Any) -> Any:
    raise RuntimeError(str(message))


# What TorchScript does with Python's own values.
_PYTHON: dict[str, Callable[..., Any]] = {
    "prim::ListConstruct": lambda *items: list(items),
    "prim::TupleConstruct": lambda *items: items,
    "prim::TupleIndex": operator.getitem,
    "prim::unchecked_cast": lambda value: value,
    "prim::dtype": lambda tensor: tensor.dtype,
    "prim::device": lambda tensor: tensor.device,
    "prim::RaiseException": _raise,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__not__": operator.not_,
    "aten::format": lambda text, *items: text.format(*items),
    "aten::warn": lambda *_: None,
    "prim::min": min,
    "prim::max": max,
}
_ON_ANYTHING = {"aten::size", "aten::dim", "aten::len"}
_ON_NUMBERS: dict[str, Callable[..., Any]] = {
    "aten::size": lambda tensor, axis=None: list(tensor.shape) if axis is None else tensor.shape[axis],
    "aten::dim": lambda tensor: tensor.dim(),
    "aten::len": len,
    "aten::__getitem__": operator.getitem,
    "aten::append": lambda items, item: items.append(item) or items,
    "aten::slice": lambda items, start=None, end=None, step=1: items[start:end:step],
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::neg": operator.neg,
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::pow": operator.pow,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
}
