"""The whole step as one function f: inputs go in, the state comes out and goes round.

A true value that is fed back goes in too, from the step before where the state is nothing else.
"""

from __future__ import annotations

from leporello.draw.picture import Name
from leporello.loop.loop import Loop
from leporello.view.diagram import RESETS, Diagram, Edge, Vertex, is_target, origins, shown, told_apart

FED = "call.target"


def whole(loop: Loop, *, unfolded: bool) -> Diagram:
    """One vertex for the state, one for each input, one for what a teacher feeds back.

    f stands where the figures have it: folded, at the inputs; unfolded, or where there is no input, between states.
    """
    ports = [port for port in loop.inputs if port.kind == "sequence" and not port.name.startswith("call.")]
    names = shown(port.name for port in ports)
    inputs = [Vertex(f"input.{port.name}", names[port.name], "input") for port in ports if not is_target(loop, port)]
    f = (Name("f"),)
    between = f if unfolded or not inputs else ()
    fed = {port.name: node for port, node in zip(loop.inputs, loop.placeholders, strict=True)}.get(FED)
    before = origins(loop, RESETS)
    forced = [leaf for leaf, (_, out) in loop.delays.items() if before[out][0] is fed]  # true values and nothing else
    leaves = [leaf for leaf in loop.delays if leaf not in forced]
    if leaves:
        name = shown(leaves)[leaves[0]] if len(leaves) == 1 else Name("s")
        state = Vertex("state", name, "state", stepwise=True, tooltip=", ".join(leaves))
        delayed = [Edge("state", "state", between, delay=1, stepwise=True)]
    else:
        state, delayed = Vertex("output", Name("o")), []
    teacher = [] if fed is None else [Vertex(f"input.{FED}", Name("y"), "target", tooltip="the true value")]
    delayed += [Edge(vertex.key, state.key, () if leaves else between, delay=1) for vertex in teacher if forced]
    written = () if unfolded and delayed else f
    read = [Edge(vertex.key, state.key, written) for vertex in inputs]
    read += [Edge(vertex.key, state.key, written) for vertex in teacher if not forced]
    return Diagram(tuple(told_apart([*inputs, *teacher, state])), (*delayed, *read), loop.reverse)
