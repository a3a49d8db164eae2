"""tabulate: the product of a looked-up row with an invariant becomes a row of a table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.rewrite import tabulate
from tests.close import assert_close
from tests.nets.letters import SIZE, Letters
from tests.rewrite.running import run

TOKENS = torch.tensor([[2, 0, 6], [1, 1, 5], [3, 4, 0], [6, 2, 2]])
EVERY = {"numbers": SIZE, "rows": 1000}


def folded(way: str, inner: lp.Cell | None = None) -> tuple[lp.Cell, lp.Loop]:
    cell = Letters(lp.GRU(SIZE, 4) if inner is None else inner, SIZE, way).double()
    return cell, lp.fold(cell, TOKENS[0])


def values(cell: lp.Cell) -> dict[str, Tensor]:
    return {"x": TOKENS, "h": cell.initial_state(3)}


@pytest.mark.parametrize("way", ["embedding", "one_hot", "eye"])
@pytest.mark.parametrize("inner", [lp.GRU, lambda inputs, hidden: lp.Elman(inputs, hidden, 5)], ids=["addmm", "mm"])
def test_a_tabulated_loop_gives_what_the_loop_gave(way: str, inner: type) -> None:
    cell, loop = folded(way, inner(SIZE, 4))
    tabled = tabulate(loop, **EVERY)
    assert_close(run(tabled, values(cell)), run(loop, values(cell)), way)
    inside = tabled.split().inside
    assert "inner.U" not in [name for stage in tabled.split().stages if stage.kind != "once" for name in stage.products]
    assert inside.products == ["inner.W"]


def test_a_table_of_more_rows_than_are_read_is_not_made() -> None:
    _, loop = folded("embedding")
    assert tabulate(loop, numbers=SIZE, rows=SIZE - 1).text() == loop.text()
    assert tabulate(loop, numbers=SIZE, rows=SIZE).text() != loop.text()


def test_one_hot_rows_are_looked_up_however_few_are_read() -> None:
    _, loop = folded("one_hot")
    assert "aten.eq" not in tabulate(loop, numbers=SIZE, rows=0).text()


def test_one_hot_rows_that_may_be_empty_stay() -> None:
    _, loop = folded("one_hot")
    assert tabulate(loop, numbers=SIZE + 1, rows=1000).text() == loop.text()


def test_a_large_table_is_not_made() -> None:
    _, loop = folded("embedding")
    assert tabulate(loop, **EVERY, largest=12 * SIZE - 1).text() == loop.text()
    assert tabulate(loop, **EVERY, largest=12 * SIZE).text() != loop.text()


def test_a_product_with_what_changes_stays() -> None:
    class Own(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.E, self.W = nn.Embedding(SIZE, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.W(self.E(x) + h))
            return h, h

    loop = lp.fold(Own(), TOKENS[0])
    assert tabulate(loop, **EVERY).text() == loop.text()


def test_a_row_that_is_read_elsewhere_too_is_still_there() -> None:
    class Own(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.E, self.W = nn.Embedding(SIZE, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            row = self.E(x)
            h = torch.tanh(self.W(row) + h * row)
            return h, h

    cell = Own().double()
    loop = lp.fold(cell, TOKENS[0])
    found = run(tabulate(loop, **EVERY), values(cell))
    assert_close(found, run(loop, values(cell)), "both")
