"""The rewrite `sums_apart`: a Loop without its sums over rows, and the function that computes them afterwards.

A total such as a parameter's gradient is summed over all rows. Where the rows belong to several samples, each of which
has a sum of its own, the Loop returns what is summed as sequences, and the function is mapped over the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx

from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import copied, function_of, placeholders, results
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.port import Port, Role


@dataclass(frozen=True, eq=False)
class SumsApart:
    """A Loop in two parts.

    loop       returns its other outputs in their order, then the summed values as sequences
    others     indices of those outputs among the original ones
    sums       indices of the sums among the original outputs
    reads      indices of the inputs of the Loop that the function reads; states are not among them
    function   (rows, *inputs that it reads, *summed values) -> the sums, over all rows that it gets; what has rows is
               passed for all of them
    """

    loop: Loop
    others: tuple[int, ...]
    sums: tuple[int, ...]
    reads: tuple[int, ...]
    function: Callable[..., Any]


def is_sum_over_rows(port: Port) -> bool:
    """Whether an output is a sum over steps and rows."""
    return port.kind == "total" and not port.rows


def sums_apart(loop: Loop) -> SumsApart:
    """The Loop with its sums over rows apart."""
    loop = without_own_gradients(loop)
    sums = tuple(index for index, port in enumerate(loop.outputs) if is_sum_over_rows(port))
    others = tuple(index for index in range(len(loop.outputs)) if index not in sums)
    summed = _summed(loop, [loop.results[index] for index in sums])
    graph, copies = copied(loop.graph)
    function, reads = _function_of_sums(graph, [copies[node] for node in summed], [results(graph)[i] for i in sums])
    draft = Draft(loop)
    names = {port.name for port in loop.outputs}
    draft.outputs = [draft.outputs[index] for index in others]
    for node in summed:
        name = _free_name(f"call.summed.{node.name}", names)
        value = node.meta["val"]
        port = Port("sequence", name, tuple(value.shape[1:]), value.dtype, value.device, role=Role.OUTPUT)
        draft.outputs.append((port, draft.copies[node]))
    return SumsApart(draft.close(last_step_outputs=(), signature=None), others, sums, reads, function)


def _summed(loop: Loop, sums: list[fx.Node]) -> list[fx.Node]:
    """The last values with the rows in front that some sums are made of, each once."""
    states = [node for port, node in zip(loop.inputs, loop.placeholders, strict=True) if port.kind == "state"]
    found: list[fx.Node] = []
    seen: set[fx.Node] = set()
    pending = list(sums)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if clean_row_axis(node.meta.get("val")) == 0 and (node.op == "call_function" or node in states):
            found.append(node)
        else:
            pending += node.all_input_nodes
    return [node for node in loop.graph.nodes if node in set(found)]


def _function_of_sums(
    graph: fx.Graph, summed: list[fx.Node], sums: list[fx.Node]
) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """A copy of a Loop's graph, which is changed, as `SumsApart.function`, and the inputs that it reads."""
    last = placeholders(graph)[-1]
    for node in summed:
        with graph.inserting_after(last):
            last = graph.placeholder(f"summed_{node.name}")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
        sums = [last if total is node else total for total in sums]
    graph.erase_node(graph.output_node())
    graph.output(tuple(sums))
    graph.eliminate_dead_code()
    inputs = placeholders(graph)[1 : len(placeholders(graph)) - len(summed)]
    reads = tuple(index for index, node in enumerate(inputs) if node.users or node in sums)
    for index, node in enumerate(inputs):
        if index not in reads:
            graph.erase_node(node)
    return function_of(graph), reads


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name = f"{name}_"
    taken.add(name)
    return name
