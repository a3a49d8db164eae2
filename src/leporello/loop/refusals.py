"""What a step may not do, said in the user's words before or while it is traced.

Knows the rules of a step; knows nothing of what comes after the trace.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from leporello.errors import ArgumentError, DeviceMismatch, LeporelloError, StateMismatch, UntraceableStep
from leporello.loop.draws import Draw
from leporello.loop.family import Family, clean_row_axis
from leporello.loop.state import described, dtype_name
from leporello.loop.step import FunctionCell, place_of

Named = Sequence[tuple[str, Tensor]]
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent.parent)


def refuse_before(cell: nn.Module, sequences: Named, invariants: Named, states: Named) -> None:
    """What can be seen without running the step."""
    _refuse_hooks(cell)
    _refuse_plain_tensors(cell)
    batch = _refuse_batchless(cell, sequences, states)
    _refuse_devices(cell, sequences, invariants, states)
    if batch == 0:
        raise ArgumentError("the batch is empty.", cell=place_of(cell), expected="at least one row")


def _refuse_hooks(cell: nn.Module) -> None:
    kinds = {"_forward_hooks": "forward hook", "_forward_pre_hooks": "forward pre-hook", "_backward_hooks": "backward hook"}
    for path, module in cell.named_modules():
        for attribute, kind in kinds.items():
            if getattr(module, attribute):
                raise UntraceableStep(
                    f"the cell has a {kind}, which would run once per trace and not once per step.",
                    cell=place_of(cell),
                    module=path or type(module).__name__,
                    tries="do its work in forward, or read values with lp.record; for weight norm use "
                    "torch.nn.utils.parametrizations",
                )


def _refuse_plain_tensors(cell: nn.Module) -> None:
    for path, module in cell.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") and name in ("_parameters", "_buffers", "_modules"):
                continue
            held = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else [value]
            if any(isinstance(item, Tensor) for item in held):
                raise UntraceableStep(
                    f"the attribute '{path + '.' if path else ''}{name}' is a plain tensor.",
                    cell=place_of(cell),
                    came=described(value),
                    expected="an nn.Parameter, or a buffer",
                    tries=f'self.register_buffer("{name}", tensor), so that it moves and is saved with the cell',
                )


def _refuse_batchless(cell: nn.Module, sequences: Named, states: Named) -> int | None:
    """All leaves have the batch in front; its size, None for a step that reads nothing."""
    batch: int | None = None
    for kind, side in (("input", sequences), ("state", states)):
        for name, leaf in side:
            if not isinstance(leaf, Tensor):
                raise ArgumentError(
                    f"the {kind} '{name}' is no tensor.", cell=place_of(cell), came=type(leaf).__name__, expected="a tensor"
                )
            if leaf.dim() == 0 or (batch is not None and leaf.shape[0] != batch):
                error = StateMismatch if kind == "state" else ArgumentError
                raise error(
                    f"the {kind} '{name}' has no batch axis." if leaf.dim() == 0 else f"the {kind} '{name}' has another batch.",
                    cell=place_of(cell),
                    came=described(leaf),
                    expected=f"the batch in front: [{batch if batch is not None else 'batch'}, ...]",
                    tries="give every row its own, for example with value.expand(batch, ...)",
                )
            batch = leaf.shape[0]
    return batch


def _refuse_devices(cell: nn.Module, sequences: Named, invariants: Named, states: Named) -> None:
    homes = {leaf.device for _, leaf in (*sequences, *states)}
    for name, leaf in invariants:
        if homes and leaf.device not in homes and leaf.device.type != "meta":
            home = next(iter(homes))
            raise DeviceMismatch(
                f"the parameter '{name}' lies on another device than the inputs.",
                cell=place_of(cell),
                parameter=str(leaf.device),
                inputs=str(home),
                tries=f'net.to("{home}"), or inputs.to("{leaf.device}")',
            )


def refuse_states(cell: nn.Module, before: Named, after: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> None:
    """A state leaf keeps its shape and dtype."""
    for (name, _), old, new in zip(before, stand_ins, after, strict=True):
        if not isinstance(new, Tensor) or new.shape != old.shape or new.dtype != old.dtype:
            raise StateMismatch(
                f"the state '{name}' changes during one step.",
                cell=place_of(cell),
                goes_in=_in_words(old),
                comes_out=_in_words(new) if isinstance(new, Tensor) else type(new).__name__,
                tries="return a state with the shape and dtype it came in with",
            )


def refuse_mixed_rows(cell: nn.Module, names: Sequence[str], outputs: Sequence[Any], family: Family) -> None:
    """An output has the batch in front."""
    for name, leaf in zip(names, outputs, strict=True):
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"the output '{name}' is no tensor.",
                cell=place_of(cell),
                came=type(leaf).__name__,
                expected="tensors, tuples, dicts or None",
            )
        if clean_row_axis(leaf) != 0:
            raise ArgumentError(
                f"the output '{name}' has no batch axis in front.",
                cell=place_of(cell),
                came=_in_words(leaf),
                expected="[batch, ...]",
                tries="return one value per row; take means over the batch outside the step",
            )


def _in_words(value: Tensor) -> str:
    sizes = ", ".join(str(n) if isinstance(n, int) else "batch" if n.node.expr.is_symbol else f"{n}" for n in value.shape)
    return f"{dtype_name(value.dtype)} [{sizes}]"


def refuse_shared_draws(cell: nn.Module, draws: Sequence[Draw]) -> None:
    """Random numbers belong to a row each."""
    for draw in draws:
        if not draw.shape or isinstance(draw.shape[0], int) or not draw.shape[0].node.expr.is_symbol:
            raise UntraceableStep(
                "the step draws random numbers that have no batch axis in front.",
                cell=place_of(cell),
                came=f"{draw.distribution} numbers [{', '.join(map(str, draw.shape))}]",
                expected="[batch, ...]: each row its own",
                tries="draw with torch.rand_like(x) or torch.randn_like(h)",
            )


def refuse_buffer_writes(cell: nn.Module, graph: fx.Graph, invariants: Sequence[str], first: int) -> None:
    """A step may not change what it shares with other steps."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"][1:]
    homes = dict(zip(placeholders[first:], invariants, strict=False))
    for node in graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0] in homes:
            raise UntraceableStep(
                f"the step writes to '{homes[node.args[0]]}'.",
                cell=place_of(cell),
                tries="make it a state leaf: what a step hands on to the next is state",
            )


@contextmanager
def translated(cell: nn.Module, sequences: Named) -> Iterator[None]:
    """Errors of the tracer, and of the step itself, with the user's line."""
    try:
        with mock.patch.object(torch.autograd.Function, "apply", _refuse_function(cell)):
            yield
    except LeporelloError:
        raise
    except (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UntraceableStep(
            "the step decides by the values of its data, which differ from row to row and step to step.",
            cell=place_of(cell),
            line=_users_line(error.__traceback__),
            tries="choose with torch.where(condition, a, b) instead of if, while, .item() or masks as indices",
        ) from error
    except Exception as error:
        if "convert all Tensors to FakeTensors" in str(error):
            raise UntraceableStep(
                "the step reads a tensor that is neither its input, nor its state, nor its parameter or buffer.",
                cell=place_of(cell),
                line=_users_line(error.__traceback__),
                tries="make it a parameter or a buffer of a module, so that it gets gradients and moves with it",
            ) from error
        raise ArgumentError(
            "the step fails on these inputs.",
            cell=place_of(cell),
            line=_users_line(error.__traceback__),
            inputs=", ".join(f"{name} {described(leaf)}" for name, leaf in sequences) or "none",
            says=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            tries="check the features of the inputs (batch, then features, in one step) against the cell's sizes",
        ) from error


def _refuse_function(cell: nn.Module) -> Any:
    @classmethod  # type: ignore[misc]
    def apply(function: type, *args: Any, **options: Any) -> Any:
        raise UntraceableStep(
            f"the step calls {function.__name__}, an autograd.Function whose own backward a graph cannot keep.",
            cell=place_of(cell),
            tries="write a surrogate gradient as soft + (hard - soft).detach()",
        )

    return apply


def _users_line(trace: TracebackType | None) -> str:
    """The last line that is neither torch's nor ours, cells excepted."""
    frames = traceback.extract_tb(trace)
    ours = [
        frame
        for frame in frames
        if not frame.filename.startswith(_TORCH)
        and (not frame.filename.startswith(_HERE) or "/cells/" in frame.filename)
        and not frame.filename.startswith("<")
        and "/contextlib" not in frame.filename
    ]
    if not ours:
        return "unknown"
    last = ours[-1]
    return f"{Path(last.filename).name}, line {last.lineno}: {last.line}"
