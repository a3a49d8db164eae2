"""Laws: the strip is the plain loop to the last bit, and grows with its length; a text read back is the same loop."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from hypothesis import given
from torch import Tensor

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.call.values import values_of
from leporello.engine import reference
from leporello.loop.graph import function_of
from leporello.view.folded_loop import loop_from
from tests.close import assert_same
from tests.laws.calls import Case, by_plain_loop, cases, draws_of, named, tensors_of
from tests.laws.examples import cells
from tests.random_cells import cell_of


@pytest.mark.timeout(3600)
@cells(0.06)
@given(cases())
def test_the_strip_equals_the_plain_loop_to_the_last_bit(case: Case) -> None:
    """On inputs that lie in one piece: a product sums in another order where its rows lie apart. And where torch does
    not choose the order of an einsum by the size of the batch, as it does where opt_einsum is installed."""
    plain_call = dataclasses.replace(case.arguments, lengths=False, resets=False, forcing="", strided=False)
    case = dataclasses.replace(case, arguments=plain_call)
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    draws = draws_of(net, tensors)
    loop = net.fold(tensors.inputs, tensors.state, **tensors.options)
    assert loop.batch_interaction is None
    with torch.no_grad(), torch.backends.opt_einsum.flags(enabled=False):
        plain = named(*by_plain_loop(cell, tensors, draws), cell)
        found = loop.unfold(case.arguments.length).run(tensors.inputs, tensors.state, draws=draws)
    assert_same(named(*found, cell), plain, "strip")
    _grows_linearly(loop)


def _grows_linearly(loop: lp.Loop) -> None:
    """Parameters stand once, whatever the length; of everything else there is as much more for every step."""
    strips = [loop.unfold(steps) for steps in (1, 2, 3)]
    assert len({len(strip.parameters) for strip in strips}) == 1
    assert len(strips[0].parameters) == len(loop.parameters)
    one, two, three = (Counter(node.op for node in strip.graph.nodes) for strip in strips)
    for kind in one:
        assert three[kind] - two[kind] == two[kind] - one[kind], kind


@pytest.mark.timeout(3600)
@cells(0.06)
@given(cases())
def test_a_text_read_back_is_the_same_loop(case: Case) -> None:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    net = lp.Recurrent(cell, engine="stepwise")
    call = checked_call(cell, tensors.inputs, tensors.state, **tensors.options)
    call.draws = draws_of(net, tensors)
    loop = net.fold(tensors.inputs, tensors.state, **tensors.options)
    again = loop_from(loop.text())
    assert again.text() == loop.text()
    assert (again.inputs, again.outputs, again.reverse) == (loop.inputs, loop.outputs, loop.reverse)
    values = values_of(loop, call)
    with torch.no_grad():
        assert_same(_run(again, values, case), _run(loop, values, case), "loop from text")


def _run(loop: lp.Loop, values: list[Tensor], case: Case) -> dict[str, Tensor | None]:
    found = reference.run(loop, function_of(loop.graph), values, case.arguments.length, case.arguments.batch)
    return {f"{port.kind} {port.name}": value for port, value in zip(loop.outputs, found, strict=True)}
