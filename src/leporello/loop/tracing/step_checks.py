"""Checks of a step before, while and after it is traced: its signature, modules, inputs, states, outputs and draws.

What does not pass is refused with an error that names the cell, the value and a remedy.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import ArgumentError, DeviceMismatch, StateMismatch, UntraceableStep
from leporello.loop.cell import Cell
from leporello.loop.context import context_argument
from leporello.loop.draws import Draw
from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, has_row_symbol
from leporello.loop.state import described
from leporello.loop.step import place_of, signature_of

Named = Sequence[tuple[str, Tensor]]


def refuse_before(cell: nn.Module, sequences: Named, invariants: Named, states: Named) -> None:
    """Refuse what can be checked without running the step."""
    refuse_other_forward(cell)
    _refuse_networks(cell)
    _refuse_hooks(cell)
    batch = refuse_batchless(cell, "state", states, refuse_batchless(cell, "input", sequences, None))
    refuse_devices(cell, sequences, invariants, states)
    if batch == 0:
        raise ArgumentError("the batch is empty.", cell=place_of(cell), came="0 rows", expected="at least one row")


def refuse_other_forward(cell: nn.Module) -> None:
    """Refuse a step that does not take an input and a state."""
    if isinstance(cell, Cell) and type(cell).forward is Cell.forward:
        raise ArgumentError(
            "the cell has no forward.", cell=place_of(cell), expected="forward(self, x, state) -> (output, next state)"
        )
    try:
        signature = signature_of(cell)
        signature.bind(*[None] * (2 if context_argument(signature) is None else 3))
    except TypeError:
        raise ArgumentError(
            "the step does not take an input and a state.",
            cell=place_of(cell),
            came=f"a step that takes {signature_of(cell)}",
            expected="(x, state) -> (output, next state), or (x, state, context)",
            tries="take both; a cell without state gets () and returns it; of a module that keeps its state in "
            "attributes, lp.Stateful(module, names) makes a cell",
        ) from None
    except ValueError:  # a builtin without a signature raises an error of its own when it runs
        pass


def _refuse_networks(cell: nn.Module) -> None:
    """Refuse a cell that holds a network of ours, which would be traced inside a trace."""
    for path, module in cell.named_modules():
        is_step = isinstance(module, Cell) or hasattr(module, "is_step")
        if type(module).__module__.startswith("leporello.nets.") and not is_step:
            raise UntraceableStep(
                f"the cell holds a whole network, '{path}'; a step is one step of each of its parts.",
                cell=place_of(cell),
                came=type(module).__name__,
                expected="cells",
                tries="run the network over its own sequence first; or call its cell in forward, once per step",
            )


HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}


FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # a call of `lp.Recurrent` calls them


def _refuse_hooks(cell: nn.Module) -> None:
    called = FORWARD_HOOKS if any(hasattr(module, "calls_hooks") for module in cell.modules()) else ()
    for path, module in cell.named_modules():
        for attribute, kind in HOOKS.items():
            if attribute not in called and getattr(module, attribute):
                raise UntraceableStep(
                    f"a module of the cell has a {kind}, which would run once per trace and not once per step.",
                    cell=place_of(cell),
                    module=f"{path} ({type(module).__name__})" if path else type(module).__name__,
                    tries="do its work in forward, or read values with lp.record; for weight norm use "
                    "torch.nn.utils.parametrizations",
                )


def refuse_batchless(cell: nn.Module, kind: str, leaves: Named, batch: int | None) -> int | None:
    """Refuse a leaf without the batch as its first axis.

    kind     "input" or "state", for the error
    batch    the size of the batch if it is known, else None
    returns  the size of the batch; `batch` itself without leaves
    """
    error = StateMismatch if kind == "state" else ArgumentError
    for name, leaf in leaves:
        expected = f"[{'batch' if batch is None else batch}, ...]"
        if not isinstance(leaf, Tensor):
            raise error(
                f"the {kind} '{name}' is no tensor.",
                cell=place_of(cell),
                came=type(leaf).__name__,
                expected=f"a tensor {expected}",
                tries="tensors, or tuples, lists, dicts and named tuples of them; a number is an attribute of the cell",
            )
        if leaf.dim() == 0 or (batch is not None and leaf.shape[0] != batch):
            raise error(
                f"the {kind} '{name}' has {'no batch axis' if leaf.dim() == 0 else 'another batch than the call'}.",
                cell=place_of(cell),
                came=described(leaf),
                expected=f"the batch in front: {expected}",
                tries=_remedy(kind, name, leaf, batch),
            )
        batch = leaf.shape[0]
    return batch


def _remedy(kind: str, name: str, leaf: Tensor, batch: int | None) -> str:
    others = [axis for axis, size in enumerate(leaf.shape) if axis and size == batch]
    if kind == "state" and others:
        return f"lp.Recurrent(cell, batch_axis={{{name!r}: {others[0]}}}), if the step wants its state so"
    return "give every row its own, for example with value.expand(batch, ...)"


def refuse_devices(cell: nn.Module, sequences: Named, invariants: Named, states: Named) -> None:
    """Refuse inputs, states and parameters on different devices."""
    home = next((leaf.device for _, leaf in (*sequences, *states)), None)
    for kind, side in (("input", sequences), ("state", states), ("parameter", invariants)):
        for name, leaf in side:
            if home is not None and leaf.device != home:
                raise DeviceMismatch(
                    f"the {kind} '{name}' lies on another device than the inputs.",
                    cell=place_of(cell),
                    **{kind: str(leaf.device)},
                    inputs=str(home),
                    tries=_device_remedy(kind, leaf.device, home),
                )
    if home is not None and home.type == "meta":
        raise DeviceMismatch(
            "the inputs lie on the device 'meta', which holds no numbers.",
            cell=place_of(cell),
            tries="inputs with numbers; lp.fold needs them too, to see whether rows of the batch interact",
        )


def _device_remedy(kind: str, away: torch.device, home: torch.device) -> str:
    if kind == "parameter":
        here = f'net.to_empty(device="{home}"), then its parameters from a file'
        return here if away.type == "meta" else f'net.to("{home}"), or inputs.to("{away}")'
    return f'lp.to(state, "{home}")' if kind == "state" else "bring all inputs to one device"


def refuse_sparse(leaves: Named, read: Container[str]) -> None:
    """Refuse a step that reads a sparse tensor; `read` are the names of the leaves that it reads."""
    for name, leaf in leaves:
        if name in read and leaf.layout is not torch.strided:
            raise UntraceableStep(
                f"the step reads a sparse tensor, '{name}'.",
                came=f"{described(leaf)}, {str(leaf.layout).removeprefix('torch.')}",
                expected="dense tensors",
                tries="value.to_dense() where the cell is made, and the same with @",
            )


def refuse_states(states: Named, after: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Refuse a step that changes the shape or dtype of a state leaf; `before` and `after` are fake tensors."""
    for (name, _), old, new in zip(states, before, after, strict=True):
        if not isinstance(new, Tensor) or new.dim() != old.dim() or new.shape != old.shape or new.dtype != old.dtype:
            raise StateMismatch(
                f"the state '{name}' changes during one step.",
                goes_in=described(old),
                comes_out=described(new),
                tries="return a state with the shape and dtype it came in with",
            )


def refuse_outputs(names: Sequence[str], outputs: Sequence[Any], family: FakeTensorFamily) -> None:
    """Refuse an output that is no tensor with the batch as its first axis; None is allowed."""
    for name, leaf in zip(names, outputs, strict=True):
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"the output '{name}' is no tensor.",
                came=type(leaf).__name__,
                expected="tensors [batch, ...], or tuples and dicts of them, or None",
                tries="leave out of the output what is no tensor",
            )
        if not has_batch(leaf, family):
            raise ArgumentError(
                f"the output '{name}' has no batch axis in front.",
                came=described(leaf),
                expected="[batch, ...]",
                tries="return one value per row; take means over the batch outside the step",
            )


def refuse_misplaced_rows(draw: Draw, family: FakeTensorFamily) -> None:
    """Refuse random numbers that have the batch as another axis than the first."""
    counts = [not isinstance(size, int) and has_row_symbol(size) for size in draw.shape]
    if any(counts) and not has_batch(draw, family):
        sizes = ", ".join("batch" if count else str(size) for size, count in zip(draw.shape, counts, strict=True))
        raise UntraceableStep(
            "the step draws random numbers whose batch axis is not in front.",
            came=f"{draw.distribution} numbers [{sizes}]",
            expected="[batch, ...]: each row its own; or no batch axis: all rows share them",
            tries="draw with torch.rand_like(x), torch.randn_like(h) or torch.randn(x.shape[0], n), and move the axis",
        )


def has_batch(value: Any, family: FakeTensorFamily) -> bool:
    """Whether the first axis of a tensor, or of a draw, is the batch."""
    if not len(value.shape):
        return False
    if family.batch_is_concrete():  # the batch is a plain number in this trace
        return bool(value.shape[0] == family.example_rows)
    first = value.shape[0]
    clean = clean_row_axis(value) == 0 if isinstance(value, Tensor) else not isinstance(first, int)
    return clean and first.node.expr.is_symbol


def refuse_unread_context(cell: nn.Module) -> None:
    raise ArgumentError(
        "the argument 'context' is passed, but the step does not take one.",
        cell=place_of(cell),
        came=f"a step that takes {signature_of(cell)}",
        expected="(x, state, context) -> (output, next state)",
        tries="give the step, or a cell inside of it, a third argument",
    )
