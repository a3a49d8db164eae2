"""`first_not_finite`: where the first value that is not finite came from, in a call that has failed.

The search goes through what was there before the first step, the forward sweep, the loss, the backward sweep.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.call.arguments import Call, repacked
from leporello.call.initial_state import fresh_state
from leporello.call.inputs import is_floating, map_tensors
from leporello.call.plan_cache import detached_for, rewritten
from leporello.call.values import passing_of, tree_function, values_of
from leporello.engine.state_gradient import ALL
from leporello.errors import ArgumentError
from leporello.loop.port import Port, Role
from leporello.loop.state import Tree, described
from leporello.nets.non_finite.backward import backward
from leporello.nets.non_finite.forward import FailedCall, Forward, forward
from leporello.nets.non_finite.origin import CALLED, Origin, called, kind_of, tensors_in
from leporello.nets.recurrent import Recurrent


def first_not_finite(
    net: Recurrent,
    inputs: Tree = None,
    state: Tree = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    targets: Tree = None,
    forcing: Any = None,
    **others: Any,
) -> Origin | None:
    """Where the first value that is not finite came from; None where all are finite.

    The call is run again in plain PyTorch, block after block of steps; one operator at a time where something is found.

    loss      loss(outputs) or, with targets, loss(outputs, targets), of the whole call, as training computes it;
              without one only the forward sweep is searched. With one, what a step makes counts only if the loss or a
              gradient is not finite either
    targets   what the loss compares with
    forcing   as in a call: the targets are then fed back to the net too; without it they are not. Coins are flipped
              anew for a probability: a mask repeats them
    inputs, state, others   as in a call: lengths, resets, steps, draws

    >>> net = Recurrent(lambda x, h: (h, torch.exp(h + x)))
    >>> print(first_not_finite(net, torch.ones(9, 1, 1), torch.zeros(1, 1)))
    exp gives inf, at step 3 of row 0
    """
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network to look through.", came=type(net).__name__, expected="lp.Recurrent"
        )
    fed = {} if forcing is None else {"targets": targets, "forcing": forcing}
    with torch.enable_grad():
        call = detached_for(net._checked(inputs, state, **fed, **others), net.gradient)
        loop = rewritten(net._plan_cache.loop(net.cell, call), net.cell, call)
        values = values_of(loop, call)
        passing = passing_of(call, net.gradient) if net.gradient.backwards else ALL
    failed = FailedCall.of_call(loop, values, call.length, call.batch)
    origin = _before_first_step(failed, net.cell)
    if origin is not None:
        return origin
    sweep = forward(failed)
    if loss is None:
        return sweep.origin
    compared = () if targets is None else (targets,)
    outputs, tree = _outputs(net, failed, sweep, call)
    origin, gradients = _in_loss(lambda: loss(tree, *compared), list(outputs.values()), call.length, call.batch)
    if origin is None:
        arriving = {name: value for name, value in zip(outputs, gradients, strict=True) if value is not None}
        origin = backward(failed, sweep.starts, arriving, passing)
    return None if origin is None else sweep.origin or origin


def _outputs(net: Recurrent, failed: FailedCall, sweep: Forward, call: Call) -> tuple[dict[str, Tensor], Tree]:
    """The output sequences, which require their gradients, and the tree of them that the loss reads."""
    leaves: dict[tuple[str, str], Tensor] = {}
    for (kind, name), value in sweep.results.items():
        leaves[kind, name] = value.detach().requires_grad_(kind == "sequence" and is_floating(value))
    tree, _ = tree_function(failed.loop)(list(leaves.values()))
    with torch.enable_grad():
        if call.packed is not None:
            tree = repacked(tree, call.packed)
        elif net.batch_first:
            tree = map_tensors(lambda leaf: leaf.transpose(0, 1), tree)
    return {name: value for (kind, name), value in leaves.items() if kind == "sequence" and value.requires_grad}, tree


# ---- before the first step

ARGUMENTS = {Role.TARGET: "targets"}  # sequences that a call adds, as the user calls them


def _before_first_step(failed: FailedCall, cell: nn.Module) -> Origin | None:
    """The first value that is not finite already: among parameters, then states, then inputs.

    Infinity is intended in a buffer, as masks hold it, and in a state that is infinite initially.
    """
    parameters = {name for name, _ in cell.named_parameters(remove_duplicate=False)}
    order = {"invariant": 0, "state": 1, "sequence": 2}
    for port, value in sorted(failed.pairs, key=lambda pair: order.get(pair[0].kind, 3)):
        if port.role is Role.INVARIANT:
            origin = _invariant(port, value, port.name in parameters)
        elif port.kind == "state":
            origin = _state(port, value, cell)
        elif port.kind == "sequence":
            origin = _sequence(port, failed.alive(value))
        else:
            origin = None
        if origin is not None:
            return origin
    return None


def _invariant(port: Port, value: Tensor, is_parameter: bool) -> Origin | None:
    kind = kind_of(value)
    if kind is None or (kind != "nan" and not is_parameter):
        return None
    return Origin("parameter" if is_parameter else "buffer", kind, name=port.name)


def _state(port: Port, value: Tensor, cell: nn.Module) -> Origin | None:
    if kind_of(value) is None:
        return None
    wrong = value.isnan() | (value.isinf() & ~_initially_infinite(port, value, cell))
    if not wrong.any():
        return None
    row = int(wrong.flatten(1).any(1).nonzero()[0])
    return Origin("state", kind_of(value[wrong]) or "nan", name=port.name, row=row)


def _initially_infinite(port: Port, value: Tensor, cell: nn.Module) -> Tensor:
    """Where the cell's own initial state is infinite."""
    if not hasattr(cell, "initial_state") or not hasattr(cell, "state_names"):
        return torch.zeros_like(value, dtype=torch.bool)
    with torch.no_grad():
        state = fresh_state(cell, value.shape[0], {"device": value.device, "dtype": value.real.dtype})
    leaves = dict(zip(cell.state_names(), pytree.tree_leaves(state), strict=True))  # type: ignore[operator]
    return leaves[port.name].isinf()


def _sequence(port: Port, value: Tensor) -> Origin | None:
    kind = kind_of(value)
    if kind is None:
        return None
    step, row = value.isfinite().logical_not().flatten(2).any(2).nonzero()[0].tolist()
    return Origin(
        "input", kind_of(value[step, row]) or kind, name=ARGUMENTS.get(port.role, port.name), step=step, row=row
    )


# ---- the loss


class _FirstNonFinite(TorchDispatchMode):
    """While active, notes the first operator that makes a non-finite result of finite arguments, and that result."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[str, Tensor] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.first is None:
            wrong = next((value for value in tensors_in(result) if kind_of(value) is not None), None)
            if wrong is not None and not any(map(_is_not_finite, pytree.tree_leaves((args, kwargs)))):
                self.first = called(func), wrong.detach()
        return result


def _is_not_finite(argument: Any) -> bool:
    if isinstance(argument, Tensor):
        return kind_of(argument) is not None
    return isinstance(argument, float) and not math.isfinite(argument)


def _in_loss(
    loss: Callable[[], Any], outputs: Sequence[Tensor], length: int, batch: int
) -> tuple[Origin | None, list[Tensor | None]]:
    """The origin within the loss and its gradient, and the gradients of the outputs where there is none.

    loss      computes the loss of the outputs, which require their gradients
    outputs   (length, batch, ...)
    """
    with torch.enable_grad(), _FirstNonFinite() as operators:
        value = loss()
    if not isinstance(value, Tensor):
        raise ArgumentError(
            "the argument 'loss' gives no tensor.",
            came=described(value),
            expected="loss(outputs), or loss(outputs, targets), of the whole call, as training computes it",
        )
    kind = kind_of(value)
    if kind is not None:
        name, wrong = operators.first or (None, value)
        step, row = _place(wrong, length, batch)
        return Origin("loss", kind_of(wrong) or kind, name, step=step, row=row), [None] * len(outputs)
    if not value.requires_grad:
        return None, [None] * len(outputs)
    names: list[str] = []
    handles = [node.register_hook(_noting(node.name(), names)) for node in _nodes(value.grad_fn)]
    gradients = torch.autograd.grad(value.sum(), outputs, allow_unused=True)
    for handle in handles:
        handle.remove()
    for gradient in gradients:
        if gradient is not None and (kind := kind_of(gradient)) is not None:
            step, row = _place(gradient, length, batch)
            name = f"the gradient of {names[0]}" if names else None
            return Origin("loss", kind, name, step=step, row=row), list(gradients)
    return None, list(gradients)


def _place(value: Tensor, length: int, batch: int) -> tuple[int | None, int | None]:
    """Step and row of the first value that is not finite, where the axes show them."""
    wrong = value.isfinite().logical_not()
    if value.dim() > 1 and tuple(value.shape[:2]) == (length, batch):
        step, row = wrong.flatten(2).any(2).nonzero()[0].tolist() if value.dim() > 2 else wrong.nonzero()[0].tolist()
        return step, row
    if value.dim() and value.shape[0] == length * batch:
        step, row = divmod(int(wrong.reshape(length * batch, -1).any(1).nonzero()[0]), batch)
        return step, row
    return None, None


def _nodes(root: Any) -> list[Any]:
    """A node of autograd's graph with all nodes it leads to."""
    nodes, pending = {root}, [root]
    while pending:
        for following, _ in pending.pop().next_functions:
            if following is not None and following not in nodes:
                nodes.add(following)
                pending.append(following)
    return list(nodes)


def _noting(name: str, names: list[str]) -> Callable[[Any, Any], None]:
    """A hook for a node of autograd: it adds the operator to `names` if finite gradients come in and others go out.

    name   of the node, such as MulBackward0
    """
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", name)).lower()

    def hook(gradients: Any, incoming: Any) -> None:
        if any(kind_of(value) is not None for value in tensors_in(incoming)):
            return
        if any(kind_of(value) is not None for value in tensors_in(gradients)):
            names.append(CALLED.get(snake, snake))

    return hook
