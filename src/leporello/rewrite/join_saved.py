"""The rewrite `join`: what passes from the forward to the backward sweep, side by side in one sequence.

Works on the pair that `save` makes. A step then writes one row of memory and reads one, and a call handles one tensor
instead of one per value. For engines in which joining and parting cost nothing; a value that another operator reads as
it lies in memory stays alone.
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


def join(saved: Saved, parted: Callable[[fx.Node], bool] = lambda node: True) -> Saved:
    """The pair with kept rows of one type in one sequence per type.

    parted   operators that read a part of a sequence as they read a whole one
    """
    first, second = Draft(saved.forward), Draft(saved.backward)
    together: dict[torch.dtype, list[tuple[Port, fx.Node]]] = {}
    alone = {
        port.name for port, node in second.inputs if port.kind == "sequence" and not all(map(parted, node.users))
    } | set(saved.befores.values())
    for port, node in first.outputs:
        if _is_row(port, node) and port.name not in alone:
            together.setdefault(port.dtype, []).append((port, node))
    groups = [group for group in together.values() if len(group) > 1]
    if not groups:
        return saved
    for number, group in enumerate(groups):
        joined = first.call(aten.cat.default, [node for _, node in group], 1)
        width = sum(port.shape[0] for port, _ in group)
        whole = replace(group[0][0], name=f"call.saved.joined{number}", shape=(width,))
        first.outputs = [pair for pair in first.outputs if pair not in group] + [(whole, joined)]
        row, begin = second.add_input(whole), 0
        for port, _ in group:
            reader = next((node for own, node in second.inputs if own.name == port.name), None)
            if reader is not None:
                with second.after_inputs():
                    part = second.call(aten.slice.Tensor, row, 1, begin, begin + port.shape[0])
                    piece = second.call(aten.clone.default, part, memory_format=torch.contiguous_format)
                second.replace(reader, piece)
                second.inputs = [(own, node) for own, node in second.inputs if node is not reader]
                second.graph.erase_node(reader)
            begin += port.shape[0]
    return Saved(first.close(), second.close(), saved.befores)


def _is_row(port: Port, node: fx.Node) -> bool:
    """Whether a value was kept for the backward sweep alone and is one row of numbers."""
    rows_first = clean_row_axis(node.meta["val"]) == 0 and node.op != "placeholder"
    return port.role is Role.SAVED and len(port.shape) == 1 and rows_first
