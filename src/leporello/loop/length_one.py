"""`holds_at_one`: whether a Loop that was traced with free lengths of 2 and more is right for a length of 1, too.

torch takes symbolic sizes to be 2 and more. The graph of most steps is the same at a length of 1: an axis of a free
length never broadcasts in it, because a trace in which it meets another size is fixed to the example. Three kinds of
steps differ, and get a trace of their own for a length of 1:

- Python code asks whether the length is 1, and does something else then. Such questions are noted as they are asked.
- An operator gives another shape: `memory.squeeze(1)`, `memory[:, :2]`, `memory[:, -2:]`. It is found by computing all
  shapes once more, with 1 for the length.
- The step writes in place to what is a copy at other lengths only, or to what it copied (`note_copies`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from leporello.loop.fake_tensors import FakeTensorFamily, has_row_symbol, writes_in_place
from leporello.loop.graph import FASTER_CALLS
from leporello.loop.loop import Loop
from leporello.loop.sizes import Size

_ROWS, _OTHER_LENGTHS = 101, range(103, 1 << 31, 2)  # unlike the sizes of most steps


def holds_at_one(loop: Loop, ones: Collection[int]) -> bool:
    """Whether a Loop computes what its step does where these free lengths are 1, and the others are more."""
    family = loop.family
    if not ones or not set(ones).isdisjoint(family.differ_at_one()):
        return not ones
    others = iter(_OTHER_LENGTHS)
    lengths = tuple(1 if index in ones else next(others) for index in range(len(family.lengths)))
    for graph in (loop.graph, *family.traces):
        if (graph, lengths) not in family.checked:
            family.checked[graph, lengths] = _has_its_shapes(graph, family, lengths)
    return all(family.checked[graph, lengths] for graph in (loop.graph, *family.traces))


def _has_its_shapes(graph: fx.Graph, family: FakeTensorFamily, lengths: Sequence[int]) -> bool:
    """Whether every value of a graph has the shape that the graph says, for these free lengths."""
    values: dict[fx.Node, Any] = {}

    def number(argument: Any) -> Any:
        if isinstance(argument, Size):
            return argument.value(lengths)
        return values[argument] if isinstance(argument, fx.Node) else argument

    def agrees(said: Any, value: Any) -> bool:
        if isinstance(said, (tuple, list)):
            return all(map(agrees, said, value))
        return not isinstance(said, Tensor) or family.sizes_for(said, _ROWS, lengths) == list(value.shape)

    with FakeTensorFamily(rows=_ROWS).active(), torch.no_grad():
        for node in graph.nodes:
            if node.op == "output":
                continue
            said = node.meta.get("val")
            if node.op != "call_function":
                values[node] = _given(said, family, lengths)
                continue
            target = FASTER_CALLS.get(node.target, node.target)
            try:
                values[node] = target(*map_aggregate(node.args, number), **map_aggregate(node.kwargs, number))
            except Exception:  # torch raises many types for a size that does not fit
                return False
            if not agrees(said, values[node]):
                return False
    return True


def _given(value: Any, family: FakeTensorFamily, lengths: Sequence[int]) -> Any:
    """An input or a constant of a graph."""
    if not isinstance(value, Tensor):
        return family.number_for(value, _ROWS, lengths)
    return torch.empty(family.sizes_for(value, _ROWS, lengths), dtype=value.dtype, device=value.device)


def note_copies(graph: fx.Graph, family: FakeTensorFamily) -> None:
    """Note the free lengths of values that a step copies and then writes to in place, or to whose copy.

    `reshape` and `contiguous` copy a value that does not lie in memory in order, and give the value itself where it
    does, as at a length of 1: then both are written.

    graph   as it was traced, with the operators that write in place
    """
    written: set[int] = set()  # memory that is written later on
    for node in reversed(graph.nodes):
        if writes_in_place(node):
            written |= {
                _memory(source) for source in node.all_input_nodes if isinstance(source.meta.get("val"), Tensor)
            }
        elif node.target is torch.ops.aten.clone.default and written & {_memory(node), _memory(node.args[0])}:
            for size in node.meta["val"].shape:
                if not isinstance(size, int) and not has_row_symbol(size):
                    family.note_ones(size)


def _memory(node: Any) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)
