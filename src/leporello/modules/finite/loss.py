"""The loss of a call and its gradient at the outputs, looked through: which operator was the first that was not finite.

Operators of the loss are heard as torch calls them; those of its gradient are known to autograd by the operators they
belong to. Knows torch's modes and graphs; knows nothing of Loops.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from leporello.errors import ArgumentError
from leporello.loop.state import described
from leporello.modules.finite.origin import CALLED, Origin, called, kind_of, tensors_in


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
