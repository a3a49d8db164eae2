"""How close two results must be: one table by dtype, and the comparisons that use it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# The largest difference, relative to the largest value of the tensor. What differs between a plain loop and an engine
# is the order in which products are summed; over the lengths of the tests errors stay within some hundred units of the
# last place, and a wrong term is larger by far.
TOLERANCE = {
    torch.float64: 1e-10,  # a unit of the last place is 2e-16
    torch.complex128: 1e-10,  # the same in both parts
    torch.float32: 1e-4,  # a unit is 1e-7; gradients cancel more than values do
    torch.complex64: 1e-4,
    torch.float16: 2e-2,  # a unit is 1e-3, and sums are rounded once a product
    torch.bfloat16: 1e-1,  # a unit is 8e-3
}
# Values and gradients of the tests' cells are of order one: what is far below that is a difference of rounded terms.
ORDER_ONE = 1e-2


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest value; infinite where one is NaN and the other is not."""
    assert found.shape == wanted.shape, f"{list(found.shape)} instead of {list(wanted.shape)}"
    assert found.dtype == wanted.dtype, f"{found.dtype} instead of {wanted.dtype}"
    if not wanted.numel():
        return 0.0
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return 0.0 if torch.equal(found, wanted) else float("inf")
    largest = (found - wanted).detach().abs().max().item()
    difference = float("inf") if largest != largest else largest
    return difference / max(wanted.detach().abs().max().item(), ORDER_ONE)


def assert_close(found: Mapping[str, Tensor | None], wanted: Mapping[str, Tensor | None], what: str) -> None:
    """Tensors by name against others; None passes for zeros, as a gradient that does not exist."""
    assert list(found) == list(wanted), f"{what}: {list(found)} instead of {list(wanted)}"
    for name, value in found.items():
        other = wanted[name]
        if value is None or other is None:
            there = value if other is None else other
            assert there is None or not there.any(), f"{what} {name}: {value} instead of {other}"
            continue
        tolerance = TOLERANCE.get(other.dtype, 0.0)
        assert error(value, other) <= tolerance, f"{what} {name}: error {error(value, other):.1e}\n{value}\n{other}"


def assert_same(found: Mapping[str, Tensor | None], wanted: Mapping[str, Tensor | None], what: str) -> None:
    """Tensors by name, the same to the last bit."""
    assert list(found) == list(wanted), f"{what}: {list(found)} instead of {list(wanted)}"
    for name, value in found.items():
        other = wanted[name]
        same = value is other if value is None or other is None else torch.equal(value, other)
        assert same, f"{what} {name}:\n{value}\n{other}"
