"""The rewrite `rows_for_draws`: random numbers that all rows share get a row axis, which engines expect of a draw.

Operators that read such numbers, or what is made of them, are mapped over rows by torch's vmap; all others stay as they
are. Every row reads the same numbers, so results do not change.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

from leporello.errors import EngineRefusal
from leporello.loop.fake_tensors import count_of, has_rows, row_axes
from leporello.loop.graph import placeholders, results, stop
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import OwnGradient, kept
from leporello.loop.port import Port, Role
from leporello.loop.tracing.graph_cleanup import WithoutAssertions, label_values
from leporello.loop.tracing.rowwise import row_count_as_number
from leporello.loop.tracing.trace_errors import at_line
from leporello.rewrite.trace_every_batch import VMAP_REPLACEMENTS, NotForEveryBatch, trace_every_batch

MAX_NUMBERS = 4096  # of a value that each row then has for itself
_REPLACEMENTS = {target: instead for target, instead in VMAP_REPLACEMENTS.items() if target is not stop}


def has_shared_draws(loop: Loop) -> bool:
    """Whether rows share random numbers of a step."""
    return any(map(_is_shared, loop.inputs))


def _is_shared(port: Port) -> bool:
    return port.kind == "draw" and not port.rows


def rows_for_draws(loop: Loop) -> Loop:
    """The Loop with a row axis on every draw, and the role SHARED_DRAW on those that had none.

    Refused where a value that is made of such draws has more than `MAX_NUMBERS` numbers, which each row would hold, and
    where torch cannot map an operator.
    """
    shared = _shared_values(loop)
    for node in shared:
        largest = max(count_of(value) for value in pytree.tree_leaves(node.meta["val"]) if isinstance(value, Tensor))
        if largest > MAX_NUMBERS:
            raise _refusal(node, f"{largest:,} numbers are more than the {MAX_NUMBERS:,} that are copied for each row")
    ports = [replace(port, rows=True, role=Role.SHARED_DRAW) if _is_shared(port) else port for port in loop.inputs]
    step = _MappedStep(loop, shared)
    try:
        with kept():
            graph, constants = trace_every_batch(step, ports, loop.family)
    except NotForEveryBatch as error:
        raise _refusal(step.at or next(iter(shared)), f"torch cannot map it over rows ({error})") from error
    ports += [Port("invariant", name, tuple(c.shape), c.dtype, c.device, rows=False) for name, c in constants.items()]
    values = results(graph)
    named = {node.meta["label"]: value for node, value in zip(step.labelled, values[len(loop.outputs) :], strict=True)}
    graph.output_node().args = (tuple(values[: len(loop.outputs)]),)
    graph.eliminate_dead_code()
    label_values(graph, ports, placeholders(graph)[1:], named)
    mapped = loop.replace(graph=graph, inputs=tuple(ports), constants={**loop.constants, **constants})
    numbering = row_count_as_number(mapped)
    if numbering is not None:  # such as an index into the numbers of all rows, one row behind another
        raise _refusal(
            next(iter(shared)), f"mapped over rows, the step reads the number of rows as a number in {numbering}"
        )
    return mapped


def _shared_values(loop: Loop) -> dict[fx.Node, None]:
    """The values without rows that are made of shared draws, in order."""
    shared = {node: None for port, node in zip(loop.inputs, loop.placeholders, strict=True) if _is_shared(port)}
    for node in loop.nodes:
        if any(source in shared for source in node.all_input_nodes) and not has_rows(node.meta["val"]):
            shared[node] = None
    return shared


def _refusal(node: fx.Node, why: str) -> EngineRefusal:
    """That rows share the random numbers of which a value is made, with the line of the step that makes or reads it."""
    line = next((one.meta["line"] for one in (node, *node.users) if one.meta.get("line")), None)
    return EngineRefusal(
        f"all rows share random numbers of a step{f' ({line})' if line else ''}: {why}.",
        tries='engine="reference", or "auto", which chooses it; numbers for each row, torch.randn(x.shape[0], n); or '
        "numbers for all steps, lp.once(torch.randn, n)",
    )


class _MappedStep:
    """A step, operator by operator, as a function of the number of rows and its inputs, where draws have rows.

    shared     values without rows in the Loop that have them now, in front
    labelled   values with a name, which it returns behind the outputs
    at         the operator that runs, or that failed
    """

    def __init__(self, loop: Loop, shared: dict[fx.Node, None]) -> None:
        self.loop, self.shared = loop, shared
        self.labelled = [node for node in loop.nodes if node.meta.get("label")]
        self.at: fx.Node | None = None

    def __call__(self, rows: Any, values: list[Tensor]) -> list[Tensor]:
        known: dict[fx.Node, Any] = dict(zip(placeholders(self.loop.graph), [rows, *values], strict=True))
        ones: dict[fx.Node, Any] = {placeholders(self.loop.graph)[0]: 1}  # sizes for one row
        mode: Any = get_proxy_mode()
        with WithoutAssertions():
            for node in self.loop.nodes:
                self.at = node
                with at_line(mode.tracer.graph, partial(node.meta.get, "line")):
                    known[node] = self._value(node, known, ones)
            self.at = None
            return [known[node] for node in (*self.loop.results, *self.labelled)]

    def _value(self, node: fx.Node, known: dict[fx.Node, Any], ones: dict[fx.Node, Any]) -> Any:
        """The value of an operator; a size is also added to `ones`."""
        target: Any = node.target
        if any(source in self.shared for source in node.all_input_nodes):
            return self._mapped(node, known, ones)
        if not isinstance(node.meta["val"], (Tensor, tuple, list)):
            args, options = fx.map_arg((node.args, node.kwargs), ones.__getitem__)
            ones[node] = target(*args, **options)
        args, options = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        return target(*args, **options)

    def _mapped(self, node: fx.Node, known: dict[fx.Node, Any], ones: dict[fx.Node, Any]) -> Any:
        """The value of an operator that reads shared draws: the operator of one row, mapped over rows."""
        target: Any = _REPLACEMENTS.get(node.target, node.target)
        if isinstance(target, OwnGradient):
            raise NotForEveryBatch("an autograd.Function")
        sources = [source for source in node.all_input_nodes if source not in ones]
        places = [None if source in self.shared else self._rows_of(source) for source in sources]
        after = None if node in self.shared else self._rows_of(node)
        if after is not None and after[1] > 1 and not any(places):
            raise NotForEveryBatch("its rows are merged with another axis")

        def of_one_row(*values: Any) -> Any:
            given = dict(zip(sources, values, strict=True))
            args, options = fx.map_arg((node.args, node.kwargs), (ones | given).__getitem__)
            return target(*args, **options)

        values, axes = [known[source] for source in sources], []
        for index, (source, place) in enumerate(zip(sources, places, strict=True)):
            axes.append(place[0] if place is not None else 0 if source in self.shared else None)
            if place is not None:
                values[index] = values[index].unflatten(place[0], (-1, place[1]))
        first = 0 if after is None else after[0]
        result = torch.func.vmap(of_one_row, in_dims=tuple(axes), out_dims=first)(*values)
        return result if after is None else result.flatten(first, first + 1)

    def _rows_of(self, node: fx.Node) -> tuple[int, int] | None:
        """The axis of the rows in a value, and how many of its elements each row has; None where it has no rows.

        Where the axis is merged with another one, elements that lie together count as a row: an operator that reads it
        together with a value without rows treats all of them alike.
        """
        value = node.meta["val"]
        if not has_rows(value):
            return None
        axes = row_axes(value) if isinstance(value, Tensor) else []
        times = self.loop.family.per_row(value.shape[axes[0]]) if len(axes) == 1 else None
        if not isinstance(times, int):
            raise NotForEveryBatch("its rows are no axis of their own")
        return axes[0], times
