"""What tests of modules share: a call beside its slow twin, the plain loop; the tolerance; small random sequences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leporello.call.arguments import checked_call
from leporello.loop.state import leaves_of, map_leaves
from leporello.nets.plain_loop import plain_loop
from leporello.nets.recurrent import Recurrent

ALL = ("cpu", "stepwise", "reference")


def thoroughly(*cases: Any) -> list[Any]:
    """Cases that make check-all alone runs."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def quickly(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases: the quick ones run always, the others in make check-all alone."""
    cases = list(cases)
    assert all(case in cases for case in quick), f"{quick} of {cases}"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


ENGINES = ("cpu", "stepwise", *thoroughly("reference"))  # the laws run on the reference too
FASTEST = ("cpu", *thoroughly("stepwise", "reference"))
STEPWISE = ("stepwise", *thoroughly("cpu", "reference"))  # where kernels have no part in what is tested


def crossed(cells: Iterable[str], **quick: Iterable[str]) -> list[Any]:
    """Every cell with every engine: those named with their engine always, the others in make check-all alone."""
    return [
        pytest.param(cell, engine, marks=[] if cell in quick.get(engine, ()) else pytest.mark.slow)
        for cell in cells
        for engine in ALL
    ]


TOLERANCE = 1e-10  # float64, of the largest value: short sums of numbers near 1, of which only the order differs


def close(got: Any, wanted: Any, tolerance: float = TOLERANCE, what: str = "a value") -> None:
    """Two trees are the same but for rounding; None is only like None."""
    got, wanted = leaves_of(got), leaves_of(wanted)
    assert len(got) == len(wanted), f"{what}: {len(got)} leaves instead of {len(wanted)}"
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert (a is None) == (b is None), f"{what} {index}: {a} instead of {b}"
        if a is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what} {index}"
            assert b.isfinite().all(), f"{what} {index}: the twin itself is not finite"
            a, b = (value.double() if not value.is_complex() else value for value in (a, b))
            error = (a - b).abs().max().item()
            assert error <= tolerance * max(b.abs().max().item(), 1e-3), f"{what} {index}: off by {error:.1e}"


def weighed(tree: Any, seed: int = 7) -> Tensor:
    """A scalar in which every number of the tree counts differently."""
    numbers = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for leaf in leaves_of(tree):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            weights = torch.randn(leaf.shape, generator=numbers, dtype=torch.float64)
            total = total + (leaf.real * weights).sum()
            total = total + (leaf.imag * weights.flip(0)).sum() if leaf.is_complex() else total
    return total


def gradients(tree: Any, sources: list[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad(weighed(tree), sources, allow_unused=True))


def agrees_with_the_plain_loop(net: Recurrent, inputs: Any, state: Any = None, **arguments: Any) -> Any:
    """Outputs, final state and the gradients of all that requires one; random numbers, if any, are the same."""
    draws = net.draw(inputs, state, **arguments)
    call = checked_call(net.cell, inputs, state, **arguments)
    sources = [
        leaf for leaf in leaves_of((inputs, state, arguments)) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    sources += [parameter for parameter in net.cell.parameters() if parameter.requires_grad]
    got = net(inputs, state, draws=draws, **arguments)
    wanted = plain_loop(net.cell, call, draws)
    close(got, wanted, what="result")
    close(gradients(got, sources), gradients(wanted, sources), what="gradient")
    return got


@contextlib.contextmanager
def said(where: str) -> Iterator[None]:
    """A failure inside says where."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case: {where}")
        raise


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64, grad: bool = False) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=numbers, dtype=dtype).requires_grad_(grad)


def somewhere(length: int, batch: int, chance: float = 0.4, seed: int = 5) -> Tensor:
    """Booleans (length, batch): true here and there."""
    return torch.rand(length, batch, generator=torch.Generator().manual_seed(seed)) < chance


def state_like(net: Any, batch: int, seed: int = 3, grad: bool = True) -> Any:
    """A random state, each leaf its own."""
    seeds = iter(range(seed, seed + 100))
    zeros = net.initial_state(batch, dtype=torch.float64)
    return map_leaves(lambda leaf: (0.5 * normal(*leaf.shape, seed=next(seeds))).requires_grad_(grad), zeros)


def shaken(net: nn.Module, seed: int = 0) -> nn.Module:
    """The net in float64, every parameter random: a forgotten one shows."""
    for index, parameter in enumerate(net.double().parameters()):
        parameter.data.copy_(0.5 * normal(*parameter.shape, seed=1000 * seed + index))
    return net
