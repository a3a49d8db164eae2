"""The rewrite `with_loss`: a Loop with the loss L of each step and the target y it is compared with."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError, LeporelloError
from leporello.loop.draft import Draft, append_graph, trace_function
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role


def with_loss(loop: Loop, loss: Callable[[Any, Any], Tensor], target: Any = None) -> Loop:
    """Add the sequence `y` and the output `L` = loss(output, y) of each row.

    Where the Loop is forced, and no target is passed, `call.target` serves as `y` if it has the output's shape. If all
    outputs are of the last step only, so is L.

    loss     a function of one step's output and target, one value per row, or several, which are averaged; torch's
             losses are used without reduction
    target   an example of the targets of one step, (batch, ...); by default like the output, and class indices for
             torch's nll_loss
    """
    signature = loop.signature
    assert signature is not None
    draft = Draft(loop)
    outputs = [node for port, node in draft.outputs if port.kind == "sequence"]
    if target is None and len(outputs) != 1:
        raise ArgumentError(
            "the loss has no target to compare with.", expected="the argument 'target'", tries="lp.fold(..., target=y)"
        )
    if target is None and reads_indices(loss):
        y = _index_input(draft, outputs[0].meta["val"])
    else:
        y = _target_input(draft, outputs[0].meta["val"], target)
    graph = _loss_graph(loop, loss, [node.meta["val"] for node in outputs], y.meta["val"])
    (losses,) = append_graph(draft, graph, [*outputs, y])
    losses.meta["label"] = "L"
    draft.outputs.append((Port("sequence", "L", (), losses.meta["val"].dtype, losses.meta["val"].device), losses))
    output = pytree.tree_unflatten([0] * len(signature.present), signature.outputs)
    only_last = all(port.name in loop.last_step_outputs for port, _ in draft.outputs[:-1] if port.kind == "sequence")
    return draft.close(
        last_step_outputs=(*loop.last_step_outputs, "L") if only_last else loop.last_step_outputs,
        signature=replace(signature, outputs=pytree.tree_structure((output, 0)), present=(*signature.present, True)),
    )


def _target_input(draft: Draft, output: Tensor, target: Any) -> fx.Node:
    """The input that the loss compares with: the targets of forcing where their shape fits, else a new input `y`."""
    fed = next((node for port, node in draft.inputs if port.role is Role.TARGET), None)
    if target is None and fed is not None and fed.meta["val"].shape == output.shape:
        return fed
    like = output if target is None else target
    return draft.add_input(Port("sequence", "y", tuple(like.shape[1:]), like.dtype, like.device, role=Role.LOSS_TARGET))


def reads_indices(loss: Any) -> bool:
    """Whether a loss compares with class indices and with nothing else: torch's nll_loss, as function or module."""
    function = loss.func if isinstance(loss, functools.partial) else loss
    return isinstance(function, nn.NLLLoss) or function is nn.functional.nll_loss


def _index_input(draft: Draft, output: Tensor) -> fx.Node:
    """A new input `y` of class indices, for outputs with the classes as their first axis behind the rows."""
    shape = tuple(output.shape[2:])
    return draft.add_input(Port("sequence", "y", shape, torch.int64, output.device, role=Role.LOSS_TARGET))


def _loss_graph(loop: Loop, loss: Callable[..., Tensor], outputs: list[Tensor], target: Tensor) -> fx.Graph:
    """The graph of the loss of every row, as a function of the outputs and the target."""
    signature = loop.signature
    assert signature is not None
    per_row = unreduced(loss)

    def of_rows(rows: Any, *values: Any) -> Tensor:
        tensors = iter(values[:-1])
        leaves = [next(tensors) if present else None for present in signature.present]
        losses = per_row(pytree.tree_unflatten(leaves, signature.outputs), values[-1])
        if clean_row_axis(losses) != 0:
            raise ArgumentError(
                "the argument 'loss' gives no value per row.",
                came=f"{list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__,
                expected="[batch], or [batch, ...], which is averaged over features",
                tries="leave the mean over the batch to the end, after the loop",
            )
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

    try:
        graph, constants = trace_function(of_rows, [*outputs, target], loop.family)
    except LeporelloError:
        raise
    except Exception as error:
        raise ArgumentError(
            "the argument 'loss' fails on one step's outputs and targets.",
            says=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            tries="pass target=, an example of one step's targets",
        ) from error
    if constants:
        raise ArgumentError("the loss holds tensors of its own.", tries="use a loss of the output and the target alone")
    return graph


def unreduced(loss: Callable[..., Tensor]) -> Callable[[Any, Any], Tensor]:
    """A function like `loss` without reduction: torch's losses, which average over the batch by default, with
    reduction="none"; any other as it is."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        per_element: Any = copy.copy(loss)
        per_element.reduction = "none"
        return per_element
    if "reduction" in inspect.signature(loss).parameters:
        return functools.partial(loss, reduction="none")
    return loss
