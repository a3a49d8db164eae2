"""The function view of a step: all of it as one function f of the inputs and the state.

A true value that is fed back is an input too. Where a state leaf is always that value, it is read from the step before.
"""

from __future__ import annotations

from leporello.draw.picture import Name
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.view.diagram import (
    Diagram,
    Edge,
    Vertex,
    delayed_sources,
    is_target,
    with_distinct_names,
)
from leporello.view.display_names import display_names, labels


def function_diagram(loop: Loop, *, unfolded: bool) -> Diagram:
    """One vertex for the state (for the output, without a state), one for each input and for a true value fed back.

    unfolded   where f is written: folded, on the edges from the inputs; unfolded, or without inputs, between states
    """
    ports = [port for port in loop.inputs if port.kind == "sequence" and not port.is_added]
    called = labels(loop)
    names = display_names(called.values())
    inputs = [
        Vertex(f"input.{port.name}", names[called["input", port.name]], "input")
        for port in ports
        if not is_target(port)
    ]
    f = (Name("f"),)
    between = f if unfolded or not inputs else ()
    by_role = {port.role: (port, node) for port, node in zip(loop.inputs, loop.placeholders, strict=True)}
    target, fed = by_role.get(Role.TARGET, (None, None))
    before = delayed_sources(loop, Role.RESET)
    forced = [leaf for leaf, (_, out) in loop.delays.items() if before[out][0] is fed]  # the true value, nothing else
    leaves = [leaf for leaf in loop.delays if leaf not in forced]
    if leaves:
        of_leaves = [called["state", leaf] for leaf in leaves]
        name = names[of_leaves[0]] if len(leaves) == 1 else Name("s")
        state = Vertex("state", name, "state", stepwise=True, tooltip=", ".join(of_leaves))
        delayed = [Edge("state", "state", between, delay=1, stepwise=True)]
    else:
        state, delayed = Vertex("output", Name("o")), []
    teacher = [] if target is None else [Vertex(f"input.{target.name}", Name("y"), "target", tooltip="the true value")]
    delayed += [Edge(vertex.key, state.key, () if leaves else between, delay=1) for vertex in teacher if forced]
    label = () if unfolded and delayed else f
    read = [Edge(vertex.key, state.key, label) for vertex in inputs]
    read += [Edge(vertex.key, state.key, label) for vertex in teacher if not forced]
    return Diagram(tuple(with_distinct_names([*inputs, *teacher, state])), (*delayed, *read), loop.reverse)
