"""Products with matrices in int8 and bfloat16: of rows rounded to 16 bits exactly, whatever the sizes and numbers."""

from __future__ import annotations

import ctypes
from array import array

import pytest
import torch
from torch import Tensor

from leporello.engine.cpu import native
from leporello.engine.cpu.runner import STORAGE

pytestmark = pytest.mark.kernels

ROUNDED = 32767  # MOST_ROUNDED in stored_products.c
LEAST_INNER = 64  # shorter rows are not rounded
SIZES = ((1, 1), (3, 40), (63, 5), (64, 4), (65, 37), (130, 70), (513, 33), (1100, 9))
ROWS = (1, 2, 3, 4, 5, 17, 70)


def multiplied(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows @ matrix by the runtime, which may write behind a row, but not into the last one."""
    inner, outer = matrix.shape
    function = native.runtime().product_f
    address, number = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [address, number, number, number, number, address, number, address, number]
    function.restype = None
    words = array("q", [0, matrix.data_ptr(), 0, *matrix.stride(), STORAGE[matrix.dtype]])
    out = torch.full((len(rows) + 1, outer + 64), 7.0)
    function(words.buffer_info()[0], 0, len(rows), inner, outer, rows.data_ptr(), inner, out.data_ptr(), outer + 64)
    assert (out[-1] == 7).all(), "written behind the last row"
    return out[:-1, :outer]


def stored(outer: int, inner: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(-127, 128, (outer, inner)).to(dtype)


def assert_near(made: Tensor, rows: Tensor, matrix: Tensor, *, rounded: bool = False) -> None:
    """As sums in float32 are; with rounded rows, as numbers are that are off by half a part of the largest of a row."""
    rows, matrix = rows.double(), matrix.double()
    most = 1e-6 * rows.abs() @ matrix.abs() + 1e-30
    if rounded:
        most += 0.501 / ROUNDED * rows.abs().amax(1, keepdim=True) * matrix.abs().sum(0)
    assert ((made - rows @ matrix).abs() <= most).all()


@pytest.mark.parametrize(("inner", "outer"), SIZES)
def test_int8_times_rounded_rows(inner: int, outer: int) -> None:
    torch.manual_seed(0)
    matrix = stored(outer, inner, torch.int8)
    for count in ROWS:
        rows = torch.randn(count, inner) * torch.rand(count, 1) * 100
        assert_near(multiplied(rows, matrix.t()), rows, matrix.t(), rounded=inner >= LEAST_INNER)
        rows = torch.randint(-ROUNDED, ROUNDED + 1, (count, inner)).float()
        rows[:, 0] = -ROUNDED
        assert_near(multiplied(rows / 8, matrix.t()), rows / 8, matrix.t())


@pytest.mark.parametrize(("inner", "outer"), SIZES)
def test_other_matrices_times_rows_as_they_are(inner: int, outer: int) -> None:
    torch.manual_seed(0)
    for matrix in (stored(inner, outer, torch.int8), stored(outer, inner, torch.bfloat16).t()):
        for count in ROWS:
            rows = torch.randn(count, inner)
            assert_near(multiplied(rows, matrix), rows, matrix)


@pytest.mark.parametrize("inner", [2048, 4096, 8192, 8200])
def test_the_largest_sums_do_not_overflow(inner: int) -> None:
    matrix = torch.full((5, inner), -128, dtype=torch.int8)
    rows = torch.full((6, inner), 3.0)
    rows[1::2] = -2.0  # every number is the largest
    assert_near(multiplied(rows, matrix.t()), rows, matrix.t())


def test_rows_that_cannot_be_rounded_are_multiplied_as_they_are() -> None:
    torch.manual_seed(0)
    matrix = stored(9, 96, torch.int8)
    matrix[:, 5] = 1
    rows = torch.randn(7, 96)
    rows[1] = 0
    rows[2, 5], rows[3, 5], rows[4, 5] = torch.inf, -torch.inf, torch.nan
    rows[5] *= 1e-35
    made = multiplied(rows, matrix.t())
    assert_near(made[[0, 6]], rows[[0, 6]], matrix.t(), rounded=True)
    assert (made[1] == 0).all()
    assert (made[2] == torch.inf).all()
    assert (made[3] == -torch.inf).all()
    assert made[4].isnan().all()
    assert_near(made[5:6], rows[5:6], matrix.t())


def test_a_row_has_the_same_bits_among_any_others() -> None:
    torch.manual_seed(0)
    matrix, rows = stored(70, 130, torch.int8), torch.randn(23, 130)
    together = multiplied(rows, matrix.t())
    for index in range(len(rows)):
        assert torch.equal(multiplied(rows[index : index + 1], matrix.t())[0], together[index])
