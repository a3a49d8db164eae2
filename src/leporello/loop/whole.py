"""The whole step as one function f: inputs go in, the state comes out and goes round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leporello.draw.picture import Name
from leporello.loop.diagram import Diagram, Edge, Vertex, is_target, shown, told_apart

if TYPE_CHECKING:
    from leporello.loop.loop import Loop


def whole(loop: Loop, *, unfolded: bool) -> Diagram:
    """One vertex for the state, one for each input.

    f stands where the figures have it: folded, at the inputs; unfolded, or where there is no input, between states.
    """
    ports = [port for port in loop.inputs if port.kind == "sequence" and not port.name.startswith("call.")]
    names = shown(port.name for port in ports)
    inputs = [Vertex(f"input.{port.name}", names[port.name], "input") for port in ports if not is_target(loop, port)]
    leaves = list(loop.delays)
    f = (Name("f"),)
    if not leaves:
        state, delayed = Vertex("output", Name("o")), []
    else:
        name = shown(leaves)[leaves[0]] if len(leaves) == 1 else Name("s")
        state = Vertex("state", name, "state", stepwise=True, tooltip=", ".join(leaves))
        delayed = [Edge("state", "state", f if unfolded or not inputs else (), delay=1, stepwise=True)]
    written = () if unfolded and delayed else f
    read = [Edge(vertex.key, state.key, written) for vertex in inputs]
    return Diagram(tuple(told_apart([*inputs, state])), (*delayed, *read), loop.reverse)
