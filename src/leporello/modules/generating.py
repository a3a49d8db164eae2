"""`generate`: a network that reads class indices and gives logits writes by itself, inside one compiled loop.

Knows the user's words for what is wrong, and tokens as numbers; `writer` does the work. Knows nothing of text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError
from leporello.loop.state import Tree, described, detach
from leporello.modules.arguments import Call, understood
from leporello.modules.choosing import Choosing
from leporello.modules.recurrent import Recurrent
from leporello.modules.writer import writer_of

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def generate(
    net: Recurrent,
    token: Tensor,
    state: Tree = None,
    *,
    steps: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    forced: bool = True,
) -> tuple[Tensor, Tree]:
    """Tokens that a network writes, int64 (steps, batch), and the state behind the last of them.

        for t in range(steps):
            logits, state = net.step(token, state)
            token = tokens[t] = drawn from softmax(logits / temperature)

    net           an lp.Recurrent whose cell reads class indices [batch] and gives logits [batch, size]
    token         int64 [batch]: what the first step reads
    state         before the first step; by default the cell's initial state
    temperature   0 for the most probable token each time, 1 for the network's own probabilities
    top_k         draw from so many most probable tokens only
    top_p         draw from the most probable ones that together have this probability only, at the temperature and
                  among those of top_k
    generator     of the random numbers; by default torch's own
    forced        for a cell with feedback as large as the logits: the one-hot row of each token is fed back, as forcing
                  feeds back targets; False: what the cell itself feeds back

    To go on, hand in tokens[-1] and the state: on the CPU two calls write what one call writes, unless rounding decides
    between two tokens. No gradients; another temperature, k or p needs no new trace and no new kernel.

    >>> class Letters(lp.Cell):
    ...     def __init__(self, size, hidden):
    ...         super().__init__(h=hidden)
    ...         self.E, self.W, self.V = nn.Embedding(size, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, size)
    ...     def forward(self, x, h):
    ...         h = torch.tanh(self.E(x) + self.W(h))
    ...         return self.V(h), h
    >>> net = lp.Recurrent(Letters(5, 8))
    >>> _, state = net(torch.tensor([[0], [3]]))                          # reads a beginning of two letters
    >>> tokens, state = generate(net, torch.tensor([1]), state, steps=4, temperature=0.8, top_k=3)
    >>> tokens.shape, tokens.dtype
    (torch.Size([4, 1]), torch.int64)
    """
    choosing = Choosing(temperature, top_k, top_p)
    tokens, _, after = _written(net, token, state, steps, choosing, generator, surprises=False, forced=forced)
    return tokens, after


def generate_with_surprises(
    net: Recurrent,
    token: Tensor,
    state: Tree = None,
    *,
    steps: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    forced: bool = True,
) -> tuple[Tensor, Tensor, Tree]:
    """The same tokens, -ln p of each (at temperature 1 and among all tokens), and the state."""
    choosing = Choosing(temperature, top_k, top_p)
    tokens, surprises, after = _written(net, token, state, steps, choosing, generator, surprises=True, forced=forced)
    assert surprises is not None
    return tokens, surprises, after


def _written(
    net: Recurrent,
    token: Tensor,
    state: Tree,
    steps: int,
    choosing: Choosing,
    generator: torch.Generator | None,
    *,
    surprises: bool,
    forced: bool,
) -> tuple[Tensor, Tensor | None, Tree]:
    with torch.no_grad():
        call = _understood(net, token, state, steps)
        writer = writer_of(net, call, steps * call.batch, choosing, surprises=surprises, forced=forced)
        _refuse_no_token(token, writer.size)
        tokens, surprised, leaves = writer.write(token.long(), call, steps, choosing, generator)
    after = pytree.tree_unflatten(leaves, pytree.tree_structure(call.state))
    if net.batch_first:
        tokens, surprised = tokens.T, None if surprised is None else surprised.T
    return tokens, surprised, after


# ---- what is wrong, in the user's words


def _understood(net: Any, token: Any, state: Tree, steps: Any) -> Call:
    if not isinstance(net, Recurrent):
        raise ArgumentError("the argument 'net' is no network.", came=type(net).__name__, expected="lp.Recurrent")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ArgumentError("the argument 'steps' is no length.", came=repr(steps), expected="an integer of at least 1")
    if not isinstance(token, Tensor) or token.dtype not in INTEGERS or token.dim() != 1:
        raise ArgumentError(
            "the argument 'token' is not one class a row.",
            came=described(token),
            expected="int64 [batch]: what the first step reads",
            tries="torch.tensor([0]) for a batch of one",
        )
    first = torch.zeros_like(token, dtype=torch.int64)  # a trace tries the step: numbers are looked at when it is known
    return understood(net.cell, first, detach(state), one_step=True)


def _refuse_no_token(token: Tensor, size: int) -> None:
    """On a GPU they are not looked at, which would wait for it."""
    if token.device.type == "cpu" and bool(((token < 0) | (token >= size)).any()):
        row = int(((token < 0) | (token >= size)).nonzero()[0])
        raise ArgumentError(
            "the argument 'token' holds a class that does not exist.",
            came=f"{int(token[row])} in row {row}",
            expected=f"from 0 to {size - 1}: the network gives {size} logits",
        )
