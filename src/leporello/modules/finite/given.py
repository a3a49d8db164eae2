"""What was not finite before the first step: parameters, the starting state, inputs and targets.

Knows a call's values by their names; knows nothing of what a step does with them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leporello.loop.port import Port
from leporello.modules.beginning import fresh
from leporello.modules.finite.origin import Origin, kind_of
from leporello.modules.finite.window import Window

NAMES = {"call.target": "targets"}  # what a call adds, in the user's words


def given_not_finite(window: Window, cell: nn.Module) -> Origin | None:
    """The first value that was there before and is not finite: parameters, then states, then inputs.

    Infinity is meant in a buffer, as masks hold it, and in a state whose leaf begins with it.
    """
    parameters = {name for name, _ in cell.named_parameters(remove_duplicate=False)}
    order = {"invariant": 0, "state": 1, "sequence": 2}
    for port, value in sorted(window.pairs, key=lambda pair: order.get(pair[0].kind, 3)):
        if port.kind == "invariant" and not port.name.startswith("call."):
            found = _constant(port, value, port.name in parameters)
        elif port.kind == "state":
            found = _state(port, value, cell)
        elif port.kind == "sequence":
            found = _sequence(port, window.alive(value))
        else:
            found = None
        if found is not None:
            return found
    return None


def _constant(port: Port, value: Tensor, is_parameter: bool) -> Origin | None:
    kind = kind_of(value)
    if kind is None or (kind != "nan" and not is_parameter):
        return None
    return Origin("parameter" if is_parameter else "buffer", kind, name=port.name)


def _state(port: Port, value: Tensor, cell: nn.Module) -> Origin | None:
    if kind_of(value) is None:
        return None
    wrong = value.isnan() | (value.isinf() & ~_begins_infinite(port, value, cell))
    if not wrong.any():
        return None
    row = int(wrong.flatten(1).any(1).nonzero()[0])
    return Origin("state", kind_of(value[wrong]) or "nan", name=port.name, row=row)


def _begins_infinite(port: Port, value: Tensor, cell: nn.Module) -> Tensor:
    """Where the cell's own initial state is infinite."""
    if not hasattr(cell, "initial_state") or not hasattr(cell, "state_names"):
        return torch.zeros_like(value, dtype=torch.bool)
    with torch.no_grad():
        state = fresh(cell, value.shape[0], {"device": value.device, "dtype": value.real.dtype})
    leaves = dict(zip(cell.state_names(), torch.utils._pytree.tree_leaves(state), strict=True))  # type: ignore[operator]
    return leaves[port.name].isinf()


def _sequence(port: Port, value: Tensor) -> Origin | None:
    kind = kind_of(value)
    if kind is None:
        return None
    step, row = value.isfinite().logical_not().flatten(2).any(2).nonzero()[0].tolist()
    return Origin("input", kind_of(value[step, row]) or kind, name=NAMES.get(port.name, port.name), step=step, row=row)
