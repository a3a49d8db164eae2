"""Laws: stages hold every value of a loop once, in an order in which they can run; differentiate is autograd."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, fx

import leporello as lp
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import function_of
from leporello.loop.port import Port
from leporello.loop.stages import Split
from leporello.loop.value_classes import ValueClass, is_view
from leporello.rewrite import differentiate, rows_for_draws
from tests.close import assert_close
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of
from tests.random_operators import CLASSES

ROWS = 3


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_stages_cover_every_value_and_gradients_are_those_of_autograd(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    loop = rows_for_draws(lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options))
    backward = differentiate(loop)
    for found in (loop, backward):
        split = found.split()
        _covers_every_value(split)
        _reads_what_is_written(split)
    _equals_autograd(loop, backward)


def _covers_every_value(split: Split) -> None:
    """Each operator that varies runs in one stage; views, and what mixes rows with features, may be repeated."""
    wanted = Counter(
        node.target for node, kind in split.classes.items() if kind is ValueClass.VARYING and _counts(node)
    )
    found = Counter(
        node.target
        for stage in split.stages
        for node in stage.graph.nodes
        if node.meta.get("class") is ValueClass.VARYING and _counts(node)
    )
    assert found == wanted


def _counts(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and not is_view(node)
        and clean_row_axis(node.meta["val"]) is not None
    )


def _reads_what_is_written(split: Split) -> None:
    """A stage reads inputs, states, and what a stage before it writes."""
    there = set(split.loop.placeholders)
    for stage in split.stages:
        assert set(stage.reads) <= there, f"{stage.kind} reads {set(stage.reads) - there}"
        there |= set(stage.writes)


def _equals_autograd(loop: lp.Loop, backward: lp.Loop) -> None:
    """One step of the backward loop against autograd on the loop's own graph."""
    values = {(port.kind, port.name): _example(port, loop) for port in loop.inputs}
    for (kind, _), value in values.items():
        value.requires_grad_(kind != "draw" and value.is_floating_point())
    results = function_of(loop.graph)(ROWS, *values.values())
    arriving: dict[tuple[str, str], Tensor] = {}
    pairs = []
    for port, result in zip(loop.outputs, results, strict=True):
        if result.is_floating_point():
            gradient = torch.rand_like(result) - 0.5
            name = port.name if port.kind == "state" else f"grad.{port.name}"
            arriving[{"total": "invariant"}.get(port.kind, port.kind), name] = gradient
            pairs.append((result, gradient))
    pairs = [(result, gradient) for result, gradient in pairs if result.requires_grad]
    sources = {key: value for key, value in values.items() if value.requires_grad}
    wanted: dict[str, Any] = dict.fromkeys(f"{kind} {name}" for kind, name in sources)
    if pairs and sources:
        heard, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(heard, list(sources.values()), gradients, allow_unused=True)
        wanted = dict(zip(wanted, found, strict=True))
    with torch.no_grad():
        given = [
            arriving[p.kind, p.name] if (p.kind, p.name) in arriving else _read(p, values, backward)
            for p in backward.inputs
        ]
        results = function_of(backward.graph)(ROWS, *given)
    kinds = {"total": "invariant"}
    traced = {f"{kinds.get(p.kind, p.kind)} {p.name}": r for p, r in zip(backward.outputs, results, strict=True)}
    assert_close({name: traced.get(name) for name in wanted}, wanted, "gradient of")


def _read(port: Port, values: dict[tuple[str, str], Tensor], backward: lp.Loop) -> Tensor:
    """What the backward loop reads of the forward one."""
    if port.name in backward.constants:
        return backward.constants[port.name]
    prefix, _, name = port.name.partition(".")
    kind = {"input": "sequence", "draw": "draw", "before": "state"}.get(prefix)
    if port.kind == "sequence" and kind:
        return values[kind, name]
    return values["invariant", port.name]


def _example(port: Port, loop: lp.Loop) -> Tensor:
    if port.kind == "invariant" and loop.invariant(port.name) is not None:
        return loop.invariant(port.name).detach().clone()  # type: ignore[union-attr]
    shape = (ROWS, *port.shape) if port.rows else port.shape
    if port.dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.rand(shape, dtype=port.dtype) if port.dtype.is_floating_point else torch.randint(0, CLASSES, shape)
