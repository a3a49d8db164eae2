"""lp.gradient.cost: what each method costs, counted in the Loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import leporello as lp
from leporello.errors import ArgumentError
from leporello.gradient.work import work_of
from tests.cells.examples import EXAMPLES, FEW
from tests.errors.said import said


def loop_of(cell: Any) -> lp.Loop:
    return lp.fold(cell, torch.zeros(2, cell.inputs, dtype=next(cell.parameters()).dtype))


def test_operations_of_a_small_net_are_those_counted_by_hand() -> None:
    work = work_of(loop_of(lp.Elman(3, 5, 2)))
    products = 2 * (3 * 5 + 5 * 5 + 5 * 2)
    assert products < work.forward < products + 40  # and some values of 5 and 2
    weights, states = products, 2 * (5 * 5 + 5 * 2)
    assert weights + states < work.backward < weights + states + 80
    assert (work.state, work.parameters, work.size) == (5, 3 * 5 + 5 * 5 + 5 * 2 + 5 + 2, 4)


@pytest.mark.parametrize("name", FEW)
def test_what_full_keeps_is_what_explain_says(name: str) -> None:
    cell = EXAMPLES[name]()
    (full,) = lp.gradient.cost(7, 3, loop_of(cell), [lp.Full()]).rows
    told = lp.Recurrent(cell, engine="stepwise").explain(torch.zeros(7, 3, cell.inputs))
    found = re.search(r"^saved .*: ([\d,]+) bytes$", told, re.M)
    assert full.memory == (int(found[1].replace(",", "")) if found else 0), told


def test_methods_differ_as_they_should() -> None:
    table = lp.gradient.cost(10_000, 4, loop_of(lp.LSTM(8, 16)))
    rows = {repr(row.method): row for row in table.rows}
    full, kept, twice = (rows[name] for name in ("Full()", "Checkpointed()", "Checkpointed(levels=2)"))
    assert rows["Truncated(steps=35)"].time == full.time
    assert rows["Truncated(steps=35, every=1)"].time - 1 == pytest.approx(35 * (full.time - 1))
    assert (kept.time, twice.time) == (full.time + 1, full.time + 2)
    assert kept.memory < 0.03 * full.memory
    assert twice.memory < kept.memory
    assert all(repr(row.method) in str(table) and repr(row.method) in table._repr_html_() for row in table.rows)


def test_what_is_no_size_or_loop_is_refused() -> None:
    loop: Any = loop_of(lp.RNN(3, 4))
    said(ArgumentError, lambda: lp.gradient.cost(0, 3, loop), "the argument 'length' is no size.", "came      0")
    said(ArgumentError, lambda: lp.gradient.cost(3, 2.5, loop), "the argument 'batch' is no size.")  # type: ignore[arg-type]
    said(ArgumentError, lambda: lp.gradient.cost(3, 3, lp.RNN(3, 4)), "is no loop", "lp.fold(cell, x)")  # type: ignore[arg-type]
