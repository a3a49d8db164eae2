"""Kernels of many cells over odd shapes and of all that is covered: run by a test in a process that watches memory.

A program of its own: `python -m tests.engine.sanitized`. It prints how many kernels ran; what writes or reads outside
its memory, or does what C leaves undefined, ends it with a report.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import torch

import leporello as lp
from leporello.engine.cache_folder import contents
from leporello.engine.cpu import native
from leporello.loop.state import leaves_of
from tests.engine import test_stored_products, test_window_products
from tests.engine.test_coverage import GROUPS, faults
from tests.engine.test_row_sums import COLUMNS, ROWS, SHARES, assert_left_out, assert_sums
from tests.laws.calls import Case, case_of, draws_of, results, tensors_of
from tests.random_cells import cell_of
from tests.random_programs import SIZE, Numbers

CELLS = {
    "RNN": lp.RNN,
    "GRU": lp.GRU,
    "LSTM": lp.LSTM,
    "LayerNormLSTM": lp.LayerNormLSTM,
    "Jordan": lambda inputs, hidden: lp.Jordan(inputs, hidden, 3),
}
HIDDEN = (1, 3, 17, 63)
CALLS = ((1, 1), (2, 2), (5, 13), (2, 25), (1, 50))  # length, batch
RANDOM = 20


def _sized() -> Iterator[None]:
    for name, make in CELLS.items():
        for place, hidden in enumerate(HIDDEN):
            kind = torch.float64 if place % 2 else torch.float32
            net = lp.Recurrent(make(5, hidden).to(kind), engine="cpu")
            for length, batch in CALLS:
                x = torch.randn(length, batch, 5, dtype=kind, requires_grad=True)
                outputs, state = net(x)
                loss = outputs.square().sum() + sum(leaf.sum() for leaf in leaves_of(state))
                torch.autograd.grad(loss, [x, *net.parameters()])
                assert outputs.isfinite().all(), f"{name} {hidden}"
            yield


def _random() -> Iterator[None]:
    numbers = random.Random(0)
    for _ in range(RANDOM):
        try:
            _called(case_of(Numbers(numbers.randbytes(SIZE + 10))))
        except (lp.errors.EngineRefusal, lp.errors.RowsMeet):
            continue
        yield


def _covered() -> Iterator[None]:
    for names in GROUPS:
        assert not faults(names)
        yield


def _summed() -> Iterator[None]:
    """Sums over rows, divided among more threads than such little work ever would be."""
    for threads in (1, 2, 3, 4):
        native.thread_count = lambda _, threads=threads: threads  # type: ignore[attr-defined]
        for dtype, rows, (m, n) in product((torch.float32, torch.float64), ROWS, COLUMNS):
            assert_sums(rows, m, n, dtype)
        for rows, (m, n), share in product(ROWS, COLUMNS, SHARES):
            assert_left_out(rows, m, n, share)
        yield


def _multiplied() -> Iterator[None]:
    """Products of all rows with a matrix, divided alike."""
    for threads in (1, 2, 3, 4):
        native.thread_count = lambda _, threads=threads: threads  # type: ignore[attr-defined]
        for dtype, rows, (inner, outer) in product(
            test_window_products.TYPES, test_window_products.ROWS, test_window_products.SIZES
        ):
            test_window_products.assert_product(rows, inner, outer, dtype)
        yield


def _stored() -> Iterator[None]:
    """Products with matrices that are stored narrower."""
    for inner, outer in test_stored_products.SIZES:
        test_stored_products.test_int8_times_rounded_rows(inner, outer)
        test_stored_products.test_other_matrices_times_rows_as_they_are(inner, outer)
        yield


def _called(case: Case) -> None:
    cell = cell_of(case.program)
    net, tensors = lp.Recurrent(cell, engine="cpu"), tensors_of(case, cell)
    draws = draws_of(net, tensors)
    results(case, cell, tensors, lambda: net(tensors.inputs, tensors.state, **tensors.options, draws=draws))


def main() -> None:
    torch.manual_seed(0)
    count = sum(1 for run in (_sized, _random, _covered, _summed, _multiplied, _stored) for _ in run())
    print(f"{count} cells, {sum(path.suffix == '.so' for path in contents())} kernels")


if __name__ == "__main__":
    main()
