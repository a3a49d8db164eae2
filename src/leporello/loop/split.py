"""`split`: a Loop as stages, what must run step by step apart from what can run on all steps at once.

The graph with its delay edges is condensed into strongly connected components. A component with a cycle is an inside;
everything else runs on all steps at once, as late as it can, with length x batch rows in the place of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from leporello.errors import EngineRefusal
from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.stages import Split, Stage, StageWriter
from leporello.loop.value_classes import ValueClass, classes, is_part, is_view, multiplies, ordered

Classes = dict[fx.Node, ValueClass]
Places = dict[fx.Node, int]  # inside k is stage 2k + 1; at-once stages have even numbers


def split(loop: Loop, drawn_in: Callable[[fx.Node], bool] | None = None) -> Split:
    """Part a loop into stages: what runs step by step, and what runs on all steps at once.

    drawn_in   operators that may run inside though they need not, where an inside reads what they make, or makes what
               they read: what costs an inside nothing saves a pass over memory
    """
    loop = _one_result_each(part(loop))
    kinds = classes(loop)
    _refuse_joined(kinds)
    order = ordered(loop, kinds)
    place = _placed(loop, kinds, order, drawn_in or (lambda node: False))
    return Split(loop=loop, stages=_stages(loop, kinds, order, place), classes=kinds)


def _refuse_joined(kinds: Classes) -> None:
    """A sum over rows is complete when all steps have run; no value of a step can wait for that."""
    for node in kinds:
        sources = {kinds[source] for source in node.all_input_nodes}
        if node.op == "call_function" and {ValueClass.VARYING, ValueClass.REDUCED} <= sources:
            raise EngineRefusal(
                f"the operator {node.target} joins rows with a sum over rows.",
                tries='engine="reference", which runs every operator',
            )


def _one_result_each(loop: Loop) -> Loop:
    """An operator with results both of rows and of invariants becomes two, so that each can find its own stage."""
    draft = Draft(loop)
    for node in list(draft.graph.nodes):
        takers = [user for user in node.users if is_part(user)]
        sums = [taker for taker in takers if not has_rows(taker.meta["val"])]
        if not has_rows(node.meta.get("val")) or not sums or len(sums) == len(takers):
            continue
        with draft.before(sums[0]):
            alone = draft.call(node.target, *_asked(node, sums), **node.kwargs)
        for taker in sums:
            taker.replace_input_with(node, alone)
        node.args = _asked(node, [taker for taker in takers if taker not in sums])
    return draft.close()


def _asked(node: fx.Node, takers: list[fx.Node]) -> tuple[Any, ...]:
    """An operator's arguments for some of its results, where it can be told which to compute."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or schema.arguments[-1].name != "output_mask":
        return arguments(node)
    wanted = {arguments(taker)[1] for taker in takers}
    return (*arguments(node)[:-1], [index in wanted for index in range(len(arguments(node)[-1]))])


def _placed(loop: Loop, kinds: Classes, order: list[list[fx.Node]], drawn_in: Callable[[fx.Node], bool]) -> Places:
    """The stage of each varying value: insides in their order, the rest at once and as late as can be."""
    insides = [component for component in order if len(component) > 1]
    place = {node: 2 * index + 1 for index, component in enumerate(insides) for node in component}
    leaving: dict[fx.Node, list[fx.Node]] = {}
    for into, out in loop.delays.values():
        leaving.setdefault(into, []).append(out)
    for component in reversed(order):
        node = component[0]
        if node not in place:
            users = [place[user] for user in [*node.users, *leaving.get(node, ())] if user in place]
            earliest = min(users, default=2 * len(insides))
            drawn = earliest % 2 and node not in leaving and drawn_in(node)
            place[node] = earliest if drawn else earliest // 2 * 2
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind != "state":
            place.pop(node, None)  # sequences are there from the beginning
    _with_their_operators(loop, place)
    _draw_in_behind(order, place, drawn_in)
    _with_their_operators(loop, place)
    return place


def _with_their_operators(loop: Loop, place: Places) -> None:
    """One of several results is found where its operator is."""
    for node in loop.nodes:
        if is_part(node) and node in place:
            place[node] = place[arguments(node)[0]]


def _draw_in_behind(order: list[list[fx.Node]], place: Places, drawn_in: Callable[[fx.Node], bool]) -> None:
    """Operators on what an inside makes go there too, but for views, which make nothing, and for products."""
    for component in order:
        node = component[0]
        if place.get(node, 1) % 2 or is_view(node) or is_part(node) or multiplies(node) or not drawn_in(node):
            continue
        latest = max((place[source] for source in node.all_input_nodes if source in place), default=0)
        if latest % 2:
            place[node] = latest


def _stages(loop: Loop, kinds: Classes, order: list[list[fx.Node]], place: Places) -> tuple[Stage, ...]:
    insides = sum(len(component) > 1 for component in order)
    once, finish = StageWriter("once", loop, kinds), StageWriter("finish", loop, kinds)
    timed = [StageWriter("inside" if index % 2 else "at once", loop, kinds) for index in range(2 * insides + 1)]
    rank = {node: index for index, node in enumerate(loop.graph.nodes)}
    for component in order:
        for node in sorted(component, key=rank.__getitem__):
            if node in place:
                timed[place[node]].compute(node)
    for node in loop.nodes:
        if kinds[node] is ValueClass.REDUCED:
            home = next((writer for writer in timed if is_part(node) and writer.has(arguments(node)[0])), None)
            (home or timed[_when_complete(node, place)]).compute(node)
    _write_results(loop, kinds, place, once, timed, finish)
    _write_what_is_read(kinds, place, once, timed, finish)
    stages = [writer.stage() for writer in (once, *timed, finish)]
    return tuple(stage for stage in stages if stage.kind == "inside" or stage.writes)


def _when_complete(node: fx.Node, place: Places) -> int:
    """The first at-once stage at which all that a sum over rows needs is there."""
    return (max((place[source] for source in node.all_input_nodes if source in place), default=0) + 1) // 2 * 2


def _write_results(
    loop: Loop, kinds: Classes, place: Places, once: StageWriter, timed: list[StageWriter], finish: StageWriter
) -> None:
    """Whoever computes a result of the loop writes it."""
    for port, node in zip(loop.outputs, loop.results, strict=True):
        if port.kind == "state" and place.get(loop.delays[port.name][1], 0) % 2:
            continue  # an inside hands on its own states
        if node in place:
            timed[place[node]].write(node)
        elif kinds[node] is ValueClass.REDUCED:
            next(writer for writer in timed if writer.has(node)).write(node)
        elif port.kind == "total" and not port.rows:
            finish.write(node)
        elif port.kind == "state" and kinds[node] is not ValueClass.VARYING:
            once.write(node)
        elif kinds[node] is not ValueClass.VARYING:
            timed[-1].write(node)  # the same at every step: spread over all rows at the end


def _write_what_is_read(
    kinds: Classes, place: Places, once: StageWriter, timed: list[StageWriter], finish: StageWriter
) -> None:
    """Every value that a stage reads is written by the one that computes it."""
    for writer in (finish, *timed):
        for node in writer.reads:
            if node in place and not writer.has_initial(node):
                timed[place[node]].write(node)
            elif kinds[node] is ValueClass.REDUCED:
                next(writer for writer in timed if writer.has(node)).write(node)
            elif kinds[node] in (ValueClass.FIXED, ValueClass.TIMELESS) and node.op != "placeholder":
                once.write(node)


aten = torch.ops.aten


def part(loop: Loop) -> Loop:
    """Where a joined row waits for a state in part only, give every piece its own product."""
    if not any(_joined(node) for node in loop.nodes):
        return loop
    draft = Draft(loop)
    fixed = {draft.copies[node] for node, kind in classes(loop).items() if kind is ValueClass.FIXED}
    waiting = _waiting(draft)
    for node in list(draft.graph.nodes):
        pieces = _joined(node)
        mixed = len({piece in waiting for piece in pieces}) == 2
        if mixed and node.args[-1] in fixed:
            with draft.before(node):
                draft.replace(node, _parted(draft, node, pieces, waiting))
    return draft.close()


def _joined(node: fx.Node) -> list[fx.Node]:
    """The pieces of the row that a product multiplies, [] if it is no product of joined pieces."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return []
    joined = arguments(node)[-2]
    if joined.target is not aten.cat.default or len(joined.args) < 2 or joined.args[1] not in (1, -1):
        return []
    return list(joined.args[0])


def _waiting(draft: Draft) -> set[fx.Node]:
    """Values that wait for a state."""
    found = {node for port, node in draft.inputs if port.kind == "state"}
    for node in draft.graph.nodes:
        if found & set(node.all_input_nodes):
            found.add(node)
    return found


def _parted(draft: Draft, node: fx.Node, pieces: list[fx.Node], waiting: set[fx.Node]) -> fx.Node:
    """The sum of the pieces' products, those that wait for a state last."""
    matrix = arguments(node)[-1]
    widths = [piece.meta["val"].shape[1] for piece in pieces]
    starts = [sum(widths[:index]) for index in range(len(pieces))]
    placed = sorted(zip(pieces, starts, widths, strict=True), key=lambda found: found[0] in waiting)
    total: Any = node.args[0] if node.target is aten.addmm.default else None
    for piece, start, width in placed:
        own = draft.call(aten.slice.Tensor, matrix, 0, start, start + width)
        if total is None:
            total = draft.call(aten.mm.default, piece, own)
        else:
            total = draft.call(aten.addmm.default, total, piece, own)
    return total
