"""`split`: a Loop as stages, with what must run step by step separated from what can run on all steps at once.

A strongly connected component with a cycle is an inside. Everything else runs on all steps at once, as late as it can,
with length x batch rows in the place of the batch. Before that, `part` takes products of concatenated values apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.loop.draft import Draft
from leporello.loop.fake_tensors import has_rows
from leporello.loop.graph import arguments
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import without_own_gradients
from leporello.loop.part import part
from leporello.loop.stages import Split, Stage, StageGraphs
from leporello.loop.value_classes import (
    ValueClass,
    classes,
    is_getitem,
    is_matrix_product,
    is_stored_narrower,
    is_view,
    varying_components,
)

aten = torch.ops.aten
Classes = dict[fx.Node, ValueClass]
Places = dict[fx.Node, int]  # inside k is stage 2k + 1; at-once stages have even numbers


def split(loop: Loop, drawn_in: Callable[[fx.Node], bool] | None = None) -> Split:
    """Part a loop into stages: what runs step by step, and what runs on all steps at once.

    drawn_in   whether an operator may run inside although it need not, where an inside reads its result or computes
               its argument: fused into the inside it saves a pass over memory. By default none may
    """
    loop = _one_class_per_operator(part(without_own_gradients(loop)))
    _refuse_without_rows(loop)
    kinds = classes(loop)
    _refuse_rows_with_sums(kinds)
    order = varying_components(loop, kinds)
    cycles = sum(len(component) > 1 for component in order)
    if cycles or drawn_in is None:
        place = _placed(loop, kinds, order, drawn_in or (lambda node: False))
    else:
        place = _placed_without_cycle(loop, order, drawn_in)
    insides = cycles or int(1 in place.values())
    stages = _stages(loop, kinds, order, place, insides, drawn_in or (lambda node: False))
    return Split(loop=loop, stages=stages, classes=kinds)


def whole_step(loop: Loop, stored: Collection[torch.dtype] = ()) -> Split:
    """A loop whose step is one inside, whatever could run at once: what is exported runs step by step.

    stored   narrower types in which the inside reads its matrices; others are converted in the stage "once"

    The stage "once" is what is made of invariants alone. All outputs and states are in the inside, in their order.
    """
    loop = without_own_gradients(loop)
    _refuse_without_rows(loop)
    kinds = classes(loop, changing=True)
    once = StageGraphs("once", loop, kinds)
    inside = StageGraphs("inside", loop, kinds, lambda node: node.all_input_nodes[0].meta["val"].dtype in stored)
    for _, leaving in loop.delays.values():
        inside.compute(leaving)
    for node in loop.nodes:
        if kinds[node] is ValueClass.VARYING:
            inside.compute(node)
    for port, node in zip(loop.outputs, loop.results, strict=True):
        if port.kind == "sequence":
            inside.write(node)
    stage = inside.stage()
    for node in stage.reads:
        if kinds[node] is not ValueClass.VARYING and node.op != "placeholder":
            once.write(node)
    return Split(loop=loop, stages=(once.stage(), stage), classes=kinds)


def _refuse_without_rows(loop: Loop) -> None:
    """Refuse random numbers of a step that rows share, and a view of a value without elements, in whose sizes the rows,
    times nothing, are gone."""
    if any(port.is_shared_draw for port in loop.inputs):
        raise EngineRefusal(
            "stages have rows, and all rows share random numbers of this step.",
            loop=loop.name,
            tries="leporello.rewrite.rows_for_draws(loop) first, as engines do",
        )
    for node in loop.nodes:
        value = node.meta["val"]
        if not is_view(node) or not isinstance(value, Tensor) or has_rows(value):
            continue
        empty = any(isinstance(size, int) and size == 0 for size in value.shape)
        if empty and has_rows(node.all_input_nodes[0].meta["val"]):
            raise EngineRefusal(
                f"the operator {node.target} loses the rows of a value without elements.",
                tries='engine="reference", which runs every operator',
            )


def _refuse_rows_with_sums(kinds: Classes) -> None:
    """Refuse an operator that reads both rows and a sum over rows, which is complete only when all steps have run."""
    for node in kinds:
        sources = {kinds[source] for source in node.all_input_nodes}
        if node.op == "call_function" and {ValueClass.VARYING, ValueClass.REDUCED} <= sources:
            raise EngineRefusal(
                f"the operator {node.target} joins rows with a sum over rows.",
                tries='engine="reference", which runs every operator',
            )


def _one_class_per_operator(loop: Loop) -> Loop:
    """Duplicate an operator that returns both rows and a sum over rows, so that each result can have its own stage."""
    draft = Draft(loop)
    for node in list(draft.graph.nodes):
        takers = [user for user in node.users if is_getitem(user)]
        sums = [taker for taker in takers if not has_rows(taker.meta["val"])]
        if not has_rows(node.meta.get("val")) or not sums or len(sums) == len(takers):
            continue
        with draft.before(sums[0]):
            twin = draft.call(node.target, *_arguments_for(node, sums), **node.kwargs)
        for taker in sums:
            taker.replace_input_with(node, twin)
        node.args = _arguments_for(node, [taker for taker in takers if taker not in sums])
    return draft.close()


def _arguments_for(node: fx.Node, takers: list[fx.Node]) -> tuple[Any, ...]:
    """The arguments of an operator of which only some results are read; `output_mask`, where it has one, excludes the
    others.

    takers   the `getitem` nodes that take the results which are read
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or schema.arguments[-1].name != "output_mask":
        return arguments(node)
    wanted = {arguments(taker)[1] for taker in takers}
    return (*arguments(node)[:-1], [index in wanted for index in range(len(arguments(node)[-1]))])


def _placed(loop: Loop, kinds: Classes, order: list[list[fx.Node]], drawn_in: Callable[[fx.Node], bool]) -> Places:
    """The stage of each varying value, inputs other than states left out.

    Insides come in their order; the rest runs at once and as late as possible, unless it is drawn in.

    order   the components of `varying_components`; those of more than one value are the insides
    """
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
            fused = earliest % 2 and node not in leaving and drawn_in(node)
            place[node] = earliest if fused else earliest // 2 * 2
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind != "state":
            place.pop(node, None)  # sequences exist from the beginning
    _place_results_with_operators(loop, place)
    _fuse_after_insides(order, place, drawn_in)
    _place_results_with_operators(loop, place)
    return place


def _placed_without_cycle(loop: Loop, order: list[list[fx.Node]], drawn_in: Callable[[fx.Node], bool]) -> Places:
    """The stage of each varying value of a loop without a cycle: what may be drawn in is one inside.

    Nothing makes it run step by step; but a kernel takes a few rows through all its operators while they are in the
    cache, where operators at once would go through memory one after another.
    """
    delays = {out: into for into, out in loop.delays.values()}
    place: Places = {}
    for (node,) in order:
        if node.op == "placeholder" and node not in delays:
            continue  # sequences exist from the beginning
        sources = [delays[node]] if node in delays else node.all_input_nodes
        latest = max((place[source] for source in sources if source in place), default=0)
        inside = latest < 2 and node.op == "call_function" and drawn_in(node)
        place[node] = 1 if inside else (latest + 1) // 2 * 2
    _place_results_with_operators(loop, place)
    worth_it = any(place.get(node) == 1 and not is_view(node) and not is_getitem(node) for node in loop.nodes)
    return place if worth_it else dict.fromkeys(place, 0)


def _place_results_with_operators(loop: Loop, place: Places) -> None:
    """Change `place` so that the results of an operator with several (`getitem`) are in the stage of the operator."""
    for node in loop.nodes:
        if is_getitem(node) and node in place:
            place[node] = place[arguments(node)[0]]


def _fuse_after_insides(order: list[list[fx.Node]], place: Places, drawn_in: Callable[[fx.Node], bool]) -> None:
    """Change `place` so that operators which read results of an inside, and may be drawn in, are in that inside.

    What else such an operator reads is then drawn in too, or computed before the inside. Matrix products stay at once,
    unless a factor is stored narrower, and so do views that are not read by such an operator alone.
    """
    behind = _insides_behind(order, place)
    for component in order:
        node = component[0]
        at_once = is_view(node) or is_getitem(node) or (is_matrix_product(node) and not _reads_stored_narrower(node))
        if place.get(node, 1) % 2 or at_once or not drawn_in(node):
            continue
        views = [view for source in node.all_input_nodes for view in _own_views(source, node, place, drawn_in)]
        sources = [source for reader in (node, *views) for source in reader.all_input_nodes if source not in views]
        latest = max((behind.get(source, 0) for source in sources), default=0)
        if latest % 2 and all(place.get(source) == latest for source in sources if behind.get(source) == latest):
            place.update(dict.fromkeys([node, *views], latest))
            _compute_before(latest, sources, place, drawn_in)


def _reads_stored_narrower(node: fx.Node) -> bool:
    """Whether a factor is converted as it is read: at once, the whole of it would be converted at each call."""
    return any(is_stored_narrower(source) for source in node.all_input_nodes)


def _insides_behind(order: list[list[fx.Node]], place: Places) -> Places:
    """The stage of the last inside that each value depends on; of a shifted state its own stage, to be safe."""
    behind: Places = {}
    for component in order:
        for node in component:
            own = place.get(node, 0)
            is_state = node.op == "placeholder" and node in place
            earlier = max((behind.get(source, 0) for source in node.all_input_nodes), default=0)
            behind[node] = own if own % 2 or is_state else earlier
    return behind


def _compute_before(inside: int, values: list[fx.Node], place: Places, drawn_in: Callable[[fx.Node], bool]) -> None:
    """Change `place` so that values which do not depend on an inside, and what they are made of, come before it, or are
    in it where they may be drawn in and nothing before it reads them."""
    pending = [(value, inside) for value in values]
    while pending:
        node, latest = pending.pop()
        if place.get(node, 0) > latest:
            place[node] = inside if latest == inside and drawn_in(node) else inside - 1
            pending += [(source, place[node]) for source in node.all_input_nodes]


def _own_views(
    source: fx.Node, reader: fx.Node, place: Places, drawn_in: Callable[[fx.Node], bool]
) -> Iterator[fx.Node]:
    """The chain of views that ends in a source and that nothing but the reader reads; at once, so far."""
    while is_view(source) and list(source.users) == [reader] and place.get(source, 1) % 2 == 0 and drawn_in(source):
        yield source
        source, reader = source.all_input_nodes[0], source


def _stages(
    loop: Loop,
    kinds: Classes,
    order: list[list[fx.Node]],
    place: Places,
    insides: int,
    drawn_in: Callable[[fx.Node], bool],
) -> tuple[Stage, ...]:
    """The stages, each with the graph of its values; those that are no inside and write nothing are left out.

    A sum over rows is where its argument is computed if it is drawn in there, else in an at-once stage.
    """
    once, finish = StageGraphs("once", loop, kinds), StageGraphs("finish", loop, kinds)
    timed = [
        StageGraphs("inside" if index % 2 else "at once", loop, kinds, drawn_in) for index in range(2 * insides + 1)
    ]
    rank = {node: index for index, node in enumerate(loop.graph.nodes)}
    for component in order:
        for node in sorted(component, key=rank.__getitem__):
            if node in place:
                timed[place[node]].compute(node)
    for node in loop.nodes:
        if kinds[node] is ValueClass.REDUCED:
            same = next((writer for writer in timed if is_getitem(node) and writer.has(arguments(node)[0])), None)
            inside = place.get(node.all_input_nodes[0], 0) if node.all_input_nodes else 0
            if same is None and inside % 2 and _is_row_sum(node) and drawn_in(node):
                same = timed[inside]
            (same or timed[_when_complete(node, kinds, place, last=2 * insides)]).compute(node)
    _write_results(loop, kinds, place, once, timed, finish)
    _write_what_stages_read(kinds, place, once, timed, finish)
    stages = [writer.stage() for writer in (once, *timed, finish)]
    return tuple(stage for stage in stages if stage.kind == "inside" or stage.writes)


def _is_row_sum(node: fx.Node) -> bool:
    """Whether it is the sum of a value over its rows, with nothing else summed."""
    return node.target is aten.sum.dim_IntList and list(arguments(node)[1]) == [0] and not node.kwargs


def _when_complete(node: fx.Node, kinds: Classes, place: Places, last: int) -> int:
    """The first at-once stage at which all arguments of a sum over rows exist, or a later one that reads one of them
    anyway; the last one for a sum of inputs.

    Other sums over the same values are there, so that they are read once for all of them.
    """
    sources = node.all_input_nodes
    if any(kinds[source] is ValueClass.VARYING for source in sources) and not any(
        source in place for source in sources
    ):
        return last
    stages = [(place[source] + 1) // 2 * 2 for source in sources if source in place]
    stages += [place[user] for source in sources for user in source.users if place.get(user, 1) % 2 == 0]
    return max(stages, default=0)


def _write_results(
    loop: Loop, kinds: Classes, place: Places, once: StageGraphs, timed: list[StageGraphs], finish: StageGraphs
) -> None:
    """Make each result of the loop an output of the stage that computes it: changes the stages' graphs."""
    for port, node in zip(loop.outputs, loop.results, strict=True):
        if port.kind == "state" and place.get(loop.delays[port.name][1], 0) % 2:
            continue  # an inside returns its next states anyway
        if node in place:
            timed[place[node]].write(node)
        elif kinds[node] is ValueClass.REDUCED:
            next(writer for writer in timed if writer.has(node)).write(node)
        elif port.kind == "total" and not port.rows:
            finish.write(node)
        elif port.kind == "state" and kinds[node] is not ValueClass.VARYING:
            once.write(node)
        elif kinds[node] is not ValueClass.VARYING:
            timed[-1].write(node)  # the same at every step: expanded to all rows at the end


def _write_what_stages_read(
    kinds: Classes, place: Places, once: StageGraphs, timed: list[StageGraphs], finish: StageGraphs
) -> None:
    """Make each value that a stage reads an output of the stage that computes it: changes the stages' graphs."""
    for writer in (finish, *timed):
        for node in writer.reads:
            if node in place and not writer.has_initial(node):
                timed[place[node]].write(node)
            elif kinds[node] is ValueClass.REDUCED:
                next(writer for writer in timed if writer.has(node)).write(node)
            elif kinds[node] in (ValueClass.FIXED, ValueClass.TIMELESS) and node.op != "placeholder":
                once.write(node)
