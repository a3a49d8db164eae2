"""The textbook's view of random cells: a diagram is one step of its loop, and leads where the graph leads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from torch import fx

import leporello as lp
from leporello.loop.graph import results
from leporello.loop.port import Role
from leporello.view.diagram import Diagram, unmasked_results
from leporello.view.drawable import Detail
from leporello.view.textbook_view import textbook_diagram
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


def _plain(case: Case) -> Case:
    arguments = dataclasses.replace(case.arguments, lengths=False, resets=False, forcing="")
    return dataclasses.replace(case, arguments=arguments)


def _folded(case: Case) -> lp.Loop:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    return lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options)


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_a_diagram_is_one_step_of_its_loop(case: Case) -> None:
    loop = _folded(case)
    view = textbook_diagram(loop)
    keys = [vertex.key for vertex in view.vertices]
    assert len(set(keys)) == len(keys)
    assert len({vertex.name for vertex in view.vertices}) == len(keys)
    assert {end for edge in view.edges for end in (edge.source, edge.target)} <= set(keys)
    assert _is_acyclic(view)
    handed_on = list(zip(loop.outputs, unmasked_results(loop, Role.RESET), strict=True))
    for port, node in handed_on:
        if port.kind == "state" and node.op == "call_function":
            assert {f"state.{other.name}" for other, same in handed_on if same is node} & set(keys), port.name


def _is_acyclic(view: Diagram) -> bool:
    """Whether what one step does can be done in some order."""
    left = {vertex.key for vertex in view.vertices}
    waiting = {(edge.source, edge.target) for edge in view.edges if not edge.delay}
    while ready := left - {target for _, target in waiting}:
        left -= ready
        waiting = {(source, target) for source, target in waiting if source in left}
    return not left


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_an_input_reaches_an_output_in_the_drawing_where_it_does_in_the_graph(case: Case) -> None:
    steps = 3
    loop = _folded(_plain(case))
    strip = loop.unfold(steps)
    found = iter(results(strip.graph))
    outputs = {
        (port.name, time): next(found)
        for time in range(1, steps + 1)
        for port in loop.outputs
        if port.kind == "sequence"
    }
    graph = [(source, node) for node in strip.graph.nodes for source in node.all_input_nodes]
    details: list[tuple[Detail, str]] = [("textbook", "input"), ("operators", "sequence")]
    for detail, kind in details:
        picture = strip.picture(detail, times="numbers")
        drawn = [(line.source, line.target) for line in picture.lines]
        places = {spot.place for spot in picture.spots}
        ids = {(spot.place, spot.name.time): spot.id for spot in picture.spots}
        for node in strip.graph.nodes:
            if node.op == "placeholder" and node.meta.get("time") and node.meta["port"] is not None:
                port = loop.inputs[node.meta["port"]]
                if port.kind != "sequence":
                    continue
                in_graph = _reached(graph, node)
                in_drawing = _reached(drawn, ids.get((f"{kind}.{port.name}", str(node.meta["time"]))))
                for (name, time), output in outputs.items():
                    place = _place(loop, name, places)
                    if place:
                        assert (output in in_graph) == (ids[place, str(time)] in in_drawing), (detail, port.name, name)


def _place(loop: lp.Loop, output: str, places: set[str]) -> str | None:
    """Where an output is drawn: as itself, or as the state or the other output that it is."""
    named: list[tuple[str, str, fx.Node]] = [
        (port.kind, port.name, node) for port, node in zip(loop.outputs, unmasked_results(loop), strict=True)
    ]
    own = next(node for kind, name, node in named if (kind, name) == ("sequence", output))
    words = {"state": "state", "sequence": "output"}
    others = [f"{words[kind]}.{name}" for kind, name, node in named if node is own]
    return next((place for place in [f"output.{output}", *others] if place in places), None)


def _reached(edges: Iterable[tuple[Any, Any]], start: Any) -> set[Any]:
    out: dict[Any, list[Any]] = {}
    for source, target in edges:
        out.setdefault(source, []).append(target)
    found, waiting = set(), [start]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += out.get(here, ())
    return found
