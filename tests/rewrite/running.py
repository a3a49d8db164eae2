"""A Loop run by `reference` on values by name: what a rewrite is tested with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import leporello as lp
from leporello.engine import reference
from leporello.loop.graph import function_of


def run(
    loop: lp.Loop, values: Mapping[str, Tensor], invariants: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Results by name (`final h` for a state), from sequences, draws and states by name.

    invariants   by name; those of the loop's module where they are not given
    """
    fixed = invariants or {}
    given = [
        (fixed[port.name] if port.name in fixed else loop.invariant(port.name))
        if port.kind == "invariant"
        else values[port.name]
        for port in loop.inputs
    ]
    timed = [value for port, value in zip(loop.inputs, given, strict=True) if port.kind in ("sequence", "draw")]
    length, batch = timed[0].shape[:2]
    found = reference.run(loop, function_of(loop.graph), given, length, batch)  # type: ignore[arg-type]
    names = [f"final {port.name}" if port.kind == "state" else port.name for port in loop.outputs]
    return dict(zip(names, found, strict=True))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coins(*shape: int, seed: int = 0) -> Tensor:
    return numbers(*shape, seed=seed) > 0


def loop_of(cell: lp.Cell, inputs: Any, **arguments: Any) -> lp.Loop:
    """The loop of a cell in float64, from an example of its sequence."""
    return lp.fold(lp.Recurrent(cell.double()), inputs, **arguments)
