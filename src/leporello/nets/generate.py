"""`generate`: a network that reads class indices and gives logits writes by itself, inside one compiled loop."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call, checked_call
from leporello.call.cached_call import CachedCall
from leporello.call.plan_cache import keep, prepared
from leporello.call.values import Extra, counted, extra_values
from leporello.engine import autograd
from leporello.errors import ArgumentError
from leporello.gradient.through_time import Full
from leporello.loop.batch_axis import batch_in_place
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.loop.state import Tree, described, detach
from leporello.loop.tracing.cell_tensors import CELL_LOCK, under_cell_lock
from leporello.nets.recurrent import Recurrent
from leporello.rewrite.pipeline import Context, Pipeline
from leporello.rewrite.sample import TOKEN
from leporello.rewrite.tabulate import MAX_TABLE_NUMBERS

MAX_NOISE_NUMBERS = 1 << 22  # drawn at a time
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
    context: Tree = None,
    time: Any = None,
) -> tuple[Tensor, Tree]:
    """Tokens that a network writes, int64 (steps, batch), or (batch, steps) if batch_first, and the state after them.

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
    forced        for a cell with feedback as large as the logits: each token is fed back as a one-hot vector, just as
                  forcing feeds back targets; False: what the cell itself feeds back

    context       tensors that every step reads, as in a call
    time          the number of the first step, for cells that read `lp.time()`: 0 by default

    To go on, pass tokens[-1] and the state: on the CPU two calls write what one call writes, unless rounding decides
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
    with torch.no_grad():
        call = _understood(net, token, state, steps, context, time)
        sampler = sampler_of(net, call, steps * call.batch, choosing, forced=forced)
        _refuse_no_token(token, sampler.size)
        tokens, leaves = sampler.sample(token.long(), call, steps, choosing, generator)
    after = batch_in_place(net.cell, pytree.tree_unflatten(leaves, pytree.tree_structure(call.state)))
    return tokens.T if net.batch_first else tokens, after


# ---- what is wrong, in the user's words


def _understood(net: Any, token: Any, state: Tree, steps: Any, context: Tree, time: Any) -> Call:
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
    return checked_call(net.cell, first, detach(state), context=context, time=time, one_step=True)


def _refuse_no_token(token: Tensor, size: int) -> None:
    """Raise if a class does not exist. On a GPU they are not read, which would wait for it."""
    if token.device.type == "cpu" and bool(((token < 0) | (token >= size)).any()):
        row = int(((token < 0) | (token >= size)).nonzero()[0])
        raise ArgumentError(
            "the argument 'token' holds a class that does not exist.",
            came=f"{int(token[row])} in row {row}",
            expected=f"from 0 to {size - 1}: the network gives {size} logits",
        )


@dataclass(frozen=True)
class Choosing:
    """How tokens are chosen from logits.

    temperature, top_k, top_p   as in `generate`; None for no limit
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        _refuse("temperature", self.temperature, _is_number(self.temperature) and 0 <= self.temperature < math.inf,
                "a number from 0 up: 0 for the most probable token, 1 for the network's own probabilities")  # fmt: skip
        is_integer = isinstance(self.top_k, numbers.Integral) and not isinstance(self.top_k, bool)
        _refuse("top_k", self.top_k, self.top_k is None or (is_integer and self.top_k >= 1),
                "an integer of at least 1: so many most probable tokens; or None for all")  # fmt: skip
        _refuse("top_p", self.top_p, self.top_p is None or (_is_number(self.top_p) and 0 < self.top_p <= 1),
                "a number above 0 and up to 1: a probability; or None for all tokens")  # fmt: skip

    def structure(self, size: int) -> dict[str, bool]:
        """Which operators `sample` adds for logits of this size: none for a k or p that excludes no token."""
        greedy = self.temperature == 0
        return {
            "greedy": greedy,
            "top_k": not greedy and self.top_k is not None and self.top_k < size,
            "top_p": not greedy and self.top_p is not None and self.top_p < 1,
        }

    def values(self, dtype: torch.dtype, device: torch.device) -> Extra:
        """Temperature, k and p as scalars, by role: invariants of a sampled loop; what is None is left out."""
        options = {Role.TEMPERATURE: self.temperature, Role.TOP_K: self.top_k, Role.TOP_P: self.top_p}
        return {
            (role, None): torch.tensor(float(value), dtype=dtype, device=device)
            for role, value in options.items()
            if value is not None
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _refuse(argument: str, value: Any, fits: bool, expected: str) -> None:
    if not fits:
        raise ArgumentError(f"the argument '{argument}' is out of range.", came=repr(value), expected=expected)


# ---- the sampled loop


@dataclass(frozen=True, eq=False)
class Sampler:
    """A sampled loop, ready to run.

    size   of the logits
    """

    cached: CachedCall
    size: int

    def sample(
        self, token: Tensor, call: Call, steps: int, choosing: Choosing, generator: torch.Generator | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Tokens (steps, batch), and the leaves of the state after the last step.

        Steps run in windows, so that the memory of the noise is bounded.
        """
        plan, batch = self.cached.plan, call.batch
        leaves = [leaf.detach() for _, leaf in call.states]
        noise = next((port for port in plan.loop.inputs if port.role is Role.NOISE), None)
        dtype = torch.float32 if noise is None else noise.dtype
        extra = choosing.values(dtype, call.device)
        window = steps if noise is None else max(1, MAX_NOISE_NUMBERS // (batch * self.size))
        tokens: list[Tensor] = []
        drawn_once: list[tuple[int, Tensor]] = []
        for start in range(0, steps, window):
            length = min(window, steps - start)
            extra |= extra_values(replace(call, length=length, begin=call.begin + start), plan.loop)
            extra[Role.TOKEN, None] = token
            batch = counted(call.batch, plan.loop, extra)
            if noise is not None:
                extra[Role.NOISE, None] = uniform_noise(length, batch, self.size, dtype, call.device, generator)
            with CELL_LOCK:
                values = self.cached.gather((), leaves, extra, None, length, batch)
            for place, drawn in drawn_once:
                values[place] = drawn
            drawn_once = [(i, values[i]) for i, port in enumerate(plan.loop.inputs) if port.role is Role.ONE_DRAW]
            results = zip(plan.loop.outputs, autograd.call(plan, values, length, batch), strict=True)
            named = {(port.kind, port.name): value for port, value in results}
            tokens.append(named["sequence", "token"])
            _refuse_not_finite(tokens[-1], start, plan.loop)
            token = named["state", TOKEN]
            leaves = [named["state", name] for name, _ in call.states]
        return torch.cat(tokens), leaves


def uniform_noise(
    length: int, batch: int, size: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Uniform on (0, 1), (length, batch, size). Drawn step after step: several windows have the same numbers as one."""
    home = device if generator is None else generator.device
    noise = torch.rand(length, batch, size, dtype=dtype, device=home, generator=generator)
    return noise.clamp_(min=torch.finfo(dtype).tiny).to(device)


@under_cell_lock
def sampler_of(net: Recurrent, call: Call, rows: int, choosing: Choosing, *, forced: bool) -> Sampler:
    """The sampler of a network and a structure of `choosing`, planned once and then taken from the network's cache.

    rows   how many tokens the call reads, steps times batch: products with the embedding are tabulated for all tokens
           only if there are no more of them than that
    """
    cache = net._plan_cache
    loop = cache.loop(net.cell, call, free=True)
    logits = [port for port in loop.outputs if port.kind == "sequence"]
    size = logits[0].shape[-1] if logits and logits[0].shape else 1
    structure, often = choosing.structure(size), rows >= size
    key = (loop, tuple(structure.values()), forced, often, net.engine)
    cached = cache.calls.get(key)
    if cached is None or not cached.unchanged():
        if cached is None:
            leaf = _feedback_leaf(net, loop, size) if forced else None
            pipeline = Pipeline(
                Context(
                    sampled={**structure, "leaf": leaf},
                    table={"numbers": size, "rows": MAX_TABLE_NUMBERS if often else 0},
                )
            )
            sampled = pipeline.call(loop)
            wanted = (False,) * len(sampled.inputs)
            plan, _ = prepared(sampled, wanted, Full(), net.engine, net.cell, pipeline.records)
        else:
            plan = cached.plan
        cached = CachedCall(key, net.cell, call, plan, Full())
        keep(cache.calls, key, cached)
    return Sampler(cached, size)


def _feedback_leaf(net: Recurrent, loop: Loop, size: int) -> str | None:
    """The leaf that is fed back, if it can hold a one-hot token; else None."""
    leaf = net.feedback_leaf()
    fits = any((port.kind, port.name, port.shape) == ("state", leaf, (size,)) for port in loop.inputs)
    return leaf if fits else None


def _refuse_not_finite(tokens: Tensor, start: int, loop: Loop) -> None:
    """Raise if a token is -1: so the loop marks logits that are not finite, from which nothing can be drawn."""
    if bool((tokens < 0).any()):
        time, row = (tokens < 0).nonzero()[0].tolist()
        raise ArgumentError(
            "the network's logits are not finite: there is nothing to draw from.",
            loop=loop.name,
            came=f"NaN or infinity in row {row}, first at step {start + time}",
            tries="look for NaN among the parameters, and in the state that was passed",
        )
