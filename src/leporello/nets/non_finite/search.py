"""`first_not_finite`: where the first value that is not finite came from, in a call that has failed.

Knows the order of the search: what was there before, the forward sweep, the loss, the backward sweep.
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
from leporello.call.plan_cache import detached_for, rewritten
from leporello.call.values import map_tensors, passing_of, tree_function, values_of
from leporello.engine.passing import ALL
from leporello.errors import ArgumentError
from leporello.loop.port import Port
from leporello.loop.state import Tree, described
from leporello.nets.non_finite.backward import backward
from leporello.nets.non_finite.forward import Forward, Window, forward
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
              without one only the forward sweep is looked through
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
    window = Window.of_call(loop, values, call.length, call.batch)
    found = given_not_finite(window, net.cell)
    if found is not None:
        return found
    ran = forward(window)
    if loss is None:
        return ran.origin
    compared = () if targets is None else (targets,)
    outputs, whole = _outputs(net, window, ran, call)
    found, gradients = loss_not_finite(lambda: loss(whole, *compared), list(outputs.values()), call.length, call.batch)
    if found is None:
        arriving = {name: value for name, value in zip(outputs, gradients, strict=True) if value is not None}
        found = backward(window, ran.starts, arriving, passing)
    return found if found is None else ran.origin or found


def _outputs(net: Recurrent, window: Window, ran: Forward, call: Call) -> tuple[dict[str, Tensor], Tree]:
    """The output sequences, which require their gradients, and the tree of them that the loss reads."""
    made: dict[tuple[str, str], Tensor] = {}
    for (kind, name), value in ran.made.items():
        floats = value.is_floating_point() or value.is_complex()
        made[kind, name] = value.detach().requires_grad_(kind == "sequence" and floats)
    whole, _ = tree_function(window.loop)(list(made.values()))
    with torch.enable_grad():
        if call.packed is not None:
            whole = repacked(whole, call.packed)
        elif net.batch_first:
            whole = map_tensors(lambda leaf: leaf.transpose(0, 1), whole)
    return {name: value for (kind, name), value in made.items() if kind == "sequence" and value.requires_grad}, whole


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
        state = fresh_state(cell, value.shape[0], {"device": value.device, "dtype": value.real.dtype})
    leaves = dict(zip(cell.state_names(), torch.utils._pytree.tree_leaves(state), strict=True))  # type: ignore[operator]
    return leaves[port.name].isinf()


def _sequence(port: Port, value: Tensor) -> Origin | None:
    kind = kind_of(value)
    if kind is None:
        return None
    step, row = value.isfinite().logical_not().flatten(2).any(2).nonzero()[0].tolist()
    return Origin("input", kind_of(value[step, row]) or kind, name=NAMES.get(port.name, port.name), step=step, row=row)


class Heard(TorchDispatchMode):
    """While it is on, the first operator that makes what is not finite of finite values is noted with its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[str, Tensor] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self.first is None:
            wrong = next((value for value in tensors_in(made) if kind_of(value) is not None), None)
            given = pytree.tree_leaves((args, kwargs))
            if wrong is not None and not any(map(_is_not_finite, given)):
                self.first = called(func), wrong.detach()
        return made


def _is_not_finite(given: Any) -> bool:
    if isinstance(given, Tensor):
        return kind_of(given) is not None
    return isinstance(given, float) and not math.isfinite(given)


def loss_not_finite(
    loss: Callable[[], Any], outputs: Sequence[Tensor], length: int, batch: int
) -> tuple[Origin | None, list[Tensor | None]]:
    """The origin, and the gradients of the outputs where there is none.

    loss      gives the loss of the outputs, which require their gradients
    outputs   (length, batch, ...)
    """
    with torch.enable_grad(), Heard() as heard:
        whole = loss()
    if not isinstance(whole, Tensor):
        raise ArgumentError(
            "the argument 'loss' gives no tensor.",
            came=described(whole),
            expected="loss(outputs), or loss(outputs, targets), of the whole call, as training computes it",
        )
    kind = kind_of(whole)
    if kind is not None:
        name, value = heard.first or (None, whole)
        step, row = _place(value, length, batch)
        return Origin("loss", kind_of(value) or kind, name, step=step, row=row), [None] * len(outputs)
    if not whole.requires_grad:
        return None, [None] * len(outputs)
    names: list[str] = []
    handles = [node.register_hook(_noting(node.name(), names)) for node in _nodes(whole.grad_fn)]
    found = torch.autograd.grad(whole.sum(), outputs, allow_unused=True)
    for handle in handles:
        handle.remove()
    for gradient in found:
        if gradient is not None and (kind := kind_of(gradient)) is not None:
            step, row = _place(gradient, length, batch)
            name = f"the gradient of {names[0]}" if names else None
            return Origin("loss", kind, name, step=step, row=row), list(found)
    return None, list(found)


def _place(value: Tensor, length: int, batch: int) -> tuple[int | None, int | None]:
    """Step and row of the first value that is not finite, where the axes tell them."""
    wrong = value.isfinite().logical_not()
    if value.dim() > 1 and tuple(value.shape[:2]) == (length, batch):
        step, row = wrong.flatten(2).any(2).nonzero()[0].tolist() if value.dim() > 2 else wrong.nonzero()[0].tolist()
        return step, row
    if value.dim() and value.shape[0] == length * batch:
        step, row = divmod(int(wrong.reshape(length * batch, -1).any(1).nonzero()[0]), batch)
        return step, row
    return None, None


def _nodes(root: Any) -> list[Any]:
    """All of autograd's nodes behind one."""
    found, waiting = {root}, [root]
    while waiting:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in found:
                found.add(following)
                waiting.append(following)
    return list(found)


def _noting(name: str, names: list[str]) -> Callable[[Any, Any], None]:
    """Note an operator whose own gradient makes what is not finite of what is."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"Backward\d*$", "", name)).lower()

    def hook(made: Any, given: Any) -> None:
        if any(kind_of(value) is not None for value in tensors_in(given)):
            return
        if any(kind_of(value) is not None for value in tensors_in(made)):
            names.append(CALLED.get(snake, snake))

    return hook
