"""The rewrite `join_saved`: the values that the forward sweep saves, concatenated into one sequence per dtype.

It works on the pair of Loops that `save` returns. A step then writes and reads one stretch of memory per row, and a
call handles one tensor instead of one per value. It is meant for engines that read a slice of features at no cost; a
value that other operators read as a contiguous tensor is not joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.port import Port, Role
from leporello.rewrite.save import Saved

aten = torch.ops.aten


def join_saved(saved: Saved, reads_slices: Callable[[fx.Node], bool] = lambda node: True) -> Saved:
    """The pair with saved values [rows, features] of one dtype joined along features in one sequence.

    Values that are a state's sequence (`befores`) stay separate. A pair with nothing to join is returned as it is.

    reads_slices   whether an operator reads a slice of the features as fast as a tensor of its own
    """
    forward, backward = Draft(saved.forward), Draft(saved.backward)
    by_dtype: dict[torch.dtype, list[tuple[Port, fx.Node]]] = {}
    separate = {
        port.name
        for port, node in backward.inputs
        if port.kind == "sequence" and not all(map(reads_slices, node.users))
    } | set(saved.befores.values())
    for port, node in forward.outputs:
        if _is_saved_row(port, node) and port.name not in separate:
            by_dtype.setdefault(port.dtype, []).append((port, node))
    groups = [group for group in by_dtype.values() if len(group) > 1]
    if not groups:
        return saved
    for number, group in enumerate(groups):
        joined = forward.call(aten.cat.default, [node for _, node in group], 1)
        width = sum(port.shape[0] for port, _ in group)
        whole = replace(group[0][0], name=f"call.saved.joined{number}", shape=(width,))
        forward.outputs = [pair for pair in forward.outputs if pair not in group] + [(whole, joined)]
        row, begin = backward.add_input(whole), 0
        for port, _ in group:
            reader = next((node for read, node in backward.inputs if read.name == port.name), None)
            if reader is not None:
                with backward.after_inputs():
                    part = backward.call(aten.slice.Tensor, row, 1, begin, begin + port.shape[0])
                    piece = backward.call(aten.clone.default, part, memory_format=torch.contiguous_format)
                backward.replace(reader, piece)
                backward.inputs = [(read, node) for read, node in backward.inputs if node is not reader]
                backward.graph.erase_node(reader)
            begin += port.shape[0]
    return Saved(forward.close(), backward.close(), saved.befores)


def _is_saved_row(port: Port, node: fx.Node) -> bool:
    """Whether a value is computed, saved for the backward sweep alone, and has shape [rows, features]."""
    rows_first = clean_row_axis(node.meta["val"]) == 0 and node.op != "placeholder"
    return port.role is Role.SAVED and len(port.shape) == 1 and rows_first
