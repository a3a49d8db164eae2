"""The rewrite `sample`: the next input is drawn from the output of this step, with noise that is an input sequence.

The sequence of class indices that a Loop reads becomes a state, and the logits are no longer an output. Temperature, k
and p are invariants, so that one Loop serves all their values.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from leporello.errors import ArgumentError
from leporello.loop.draft import Draft, append_graph, trace_function
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role

aten = torch.ops.aten

TOKEN = "call.token"  # the state: what the next step reads
NOISE = "call.noise"  # the sequence, uniform on (0, 1)
TEMPERATURE, TOP_K, TOP_P = "call.temperature", "call.k", "call.p"  # invariants, one number each


def sample(
    loop: Loop,
    *,
    greedy: bool = False,
    top_k: bool = False,
    top_p: bool = False,
    leaf: str | None = None,
) -> Loop:
    """The Loop that generates its own inputs: its output is the sequence `token`, int64 [rows], drawn from its logits.

    A token is -1 where the logits are not finite; the step after reads token 0 there. The Loop gets the state
    `call.token`, what the next step reads; the sequence `call.noise`, [rows, size]; the invariants `call.temperature`
    and, where asked for, `call.k` and `call.p`.

    greedy      the most probable token, without noise: neither temperature nor k nor p is read
    top_k       only the k most probable tokens are drawn from
    top_p       only the most probable ones that together have probability p
    leaf        a state leaf that becomes the one-hot vector of the token, as it becomes the target under forcing
    """
    read, logits, size = _tokens_and_logits(loop)
    draft = Draft(loop)
    _read_from_state(draft, read)
    logits_node = draft.output("sequence", logits.name)
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    numbers = _numbers(draft, wide, logits, size, greedy=greedy, top_k=top_k, top_p=top_p)
    fed = next((port for port in loop.inputs if (port.kind, port.name) == ("state", leaf)), None)
    _refuse_leaf(leaf, fed, size)

    def step(rows: object, values: Tensor, *options: Tensor) -> list[Tensor]:
        values = values.to(wide)
        token = choose(values, **dict(zip(numbers, options, strict=True)))
        results = [or_none(token, values)]
        if fed is not None:
            results.append(one_hot(token, size, fed.dtype))
        return results

    nodes = [logits_node, *numbers.values()]
    graph, constants = trace_function(step, [node.meta["val"] for node in nodes], loop.family)
    assert not constants, "the choice of a token holds no tensors"
    token, *others = append_graph(draft, graph, nodes)
    token.meta["label"] = "token"
    _set_outputs(draft, token)
    if fed is not None:
        draft.set_output("state", fed.name, others[0])
    return _close(draft, loop)


def _tokens_and_logits(loop: Loop) -> tuple[Port, Port, int]:
    """The one input, class indices; the one output, logits; and the number of classes. Other Loops are refused."""
    read = [port for port in loop.inputs if port.kind == "sequence" and port.role is not Role.TIME]
    outputs = [port for port in loop.outputs if port.kind == "sequence"]
    expected = "one input, int64 [rows]: classes; one output [rows, size]: logits"
    if [(port.dtype, port.shape) for port in read] != [(torch.int64, ())]:
        raise ArgumentError(
            "the next input can be drawn only where it is one class a row.",
            loop=loop.name,
            came=f"{', '.join(f'{port.name} {port}' for port in read) or 'no input'}",
            expected=expected,
            tries="a cell that reads int64 [batch], and looks its rows up in an nn.Embedding",
        )
    if len(outputs) != 1 or len(outputs[0].shape) != 1 or not outputs[0].dtype.is_floating_point:
        raise ArgumentError(
            "a token can be drawn only from one row of logits.",
            loop=loop.name,
            came=f"{', '.join(f'{port.name} {port}' for port in outputs) or 'no output'}",
            expected=expected,
            tries="a cell that ends with nn.Linear(hidden, size)",
        )
    return read[0], outputs[0], outputs[0].shape[0]


def _read_from_state(draft: Draft, read: Port) -> None:
    """Turn the input sequence of a draft into a state. Where it is -1, which no table can look up, token 0 is read."""
    draft.inputs = [
        (replace(port, kind="state", name=TOKEN, role=Role.TOKEN) if port is read else port, node)
        for port, node in draft.inputs
    ]
    state = draft.input("state", TOKEN)
    state.meta["label"] = TOKEN
    users = list(state.users)
    with draft.after_inputs():
        valid = draft.call(aten.clamp_min.default, state, 0)
    for user in users:
        user.replace_input_with(state, valid)


def _refuse_leaf(leaf: str | None, fed: Port | None, size: int) -> None:
    if leaf is not None and (fed is None or fed.shape != (size,)):
        raise ArgumentError(
            f"the leaf '{leaf}' cannot hold a token.",
            came="no leaf of the state" if fed is None else str(fed),
            expected=f"a state leaf [rows, {size}]: as many numbers as there are logits",
        )


def _numbers(
    draft: Draft, dtype: torch.dtype, logits: Port, size: int, *, greedy: bool, top_k: bool, top_p: bool
) -> dict[str, fx.Node]:
    """Add to the draft the inputs that `choose` reads beside the logits, and return them by the names of its arguments.

    Empty where `greedy`.
    """
    if greedy:
        return {}

    def number(name: str, role: Role) -> fx.Node:
        return draft.add_input(Port("invariant", name, (), dtype, logits.device, rows=False, role=role))

    inputs = {"noise": draft.add_input(Port("sequence", NOISE, (size,), dtype, logits.device, role=Role.NOISE))}
    inputs["temperature"] = number(TEMPERATURE, Role.TEMPERATURE)
    if top_k:
        inputs["k"] = number(TOP_K, Role.TOP_K)
    if top_p:
        inputs["p"] = number(TOP_P, Role.TOP_P)
    return inputs


def _set_outputs(draft: Draft, token: fx.Node) -> None:
    """Replace the logits of a draft by the token, as output and as next state."""
    device = token.meta["val"].device
    states = [(port, node) for port, node in draft.outputs if port.kind == "state"]
    draft.outputs = [
        (Port("sequence", "token", (), torch.int64, device), token),
        (Port("state", TOKEN, (), torch.int64, device, role=Role.TOKEN), token),
        *states,
    ]


def _close(draft: Draft, loop: Loop) -> Loop:
    """The rewritten Loop; in its signature the state is the pair of the token and the Loop's own state."""
    signature = loop.signature
    if signature is not None:
        state = pytree.tree_unflatten([0] * len(loop.delays), signature.state)
        signature = replace(
            signature,
            inputs=pytree.tree_structure(None),
            state=pytree.tree_structure((0, state)),
            outputs=pytree.tree_structure(0),
            present=(True,),
        )
    return draft.close(signature=signature, last_step_outputs=())


# ---- how a token is chosen from logits and noise, as plain functions of rows that are grafted into the Loop
#
# Nothing is sorted: the thresholds of top-k and top-p are found by repeated subdivision of an interval, with a fixed
# number of pointwise operators and sums.

MAX_SCORE_GAP = 64.0  # a token whose score is further below the best is never drawn: noise differs by less than 41
PARTS_PER_ROUND = 8  # into which each round divides the interval
ROUNDS = {torch.float32: 11, torch.float64: 17}  # by dtype: 64 / 8^11 = 2^-27 is finer than float32 between 1 and 2


def choose(
    logits: Tensor,
    noise: Tensor | None = None,
    temperature: Tensor | None = None,
    k: Tensor | None = None,
    p: Tensor | None = None,
) -> Tensor:
    """The token of each row: argmax(logits / temperature - log(-log noise)) among those that k and p leave.

    logits        [rows, size], float32 or float64
    noise         [rows, size], uniform on (0, 1); None for the most probable token, whatever k and p are
    temperature   one number; None like noise
    k             leave the k most probable, and their ties; None: all
    p             leave the most probable ones that together have probability p, at the temperature and among those of
                  k; None: all
    """
    if noise is None or temperature is None:
        return logits.argmax(-1)
    scores = (logits - logits.amax(-1, keepdim=True)) / temperature
    if k is not None:
        scores = _keep_top(scores, torch.ones_like(scores), k)
    if p is not None:
        weights = scores.exp()
        scores = _keep_top(scores, weights, p * weights.sum(-1, keepdim=True))
    return (scores - (-noise.log()).log()).argmax(-1)


def _keep_top(scores: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The scores, with -inf for those below the threshold of `limit`."""
    return scores.masked_fill(scores < limit(scores, weights, wanted), -math.inf)


def limit(scores: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """The threshold, [rows, 1]: the largest one at which the scores at or above it have at least the wanted weight.

    scores    [rows, size], at most 0. A threshold below -64 is not looked for; scores closer to each other than the
              last interval count as equal
    weights   of the scores, [rows, size]
    wanted    their total, one number or [rows, 1]
    """
    low = torch.full_like(scores[:, :1], -MAX_SCORE_GAP)
    width = MAX_SCORE_GAP
    parts = torch.arange(PARTS_PER_ROUND, dtype=scores.dtype, device=scores.device) / PARTS_PER_ROUND
    for _ in range(ROUNDS[scores.dtype]):
        marks = low + width * parts[1:]  # [rows, 7]; if the weight at one is enough, so it is at all lower ones
        below = scores.unsqueeze(1) < marks.unsqueeze(2)
        heavy = weights.unsqueeze(1).masked_fill(below, 0.0).sum(2) >= wanted
        low = low + width * (heavy.to(scores.dtype).sum(1, keepdim=True) / PARTS_PER_ROUND)  # the last such mark
        width /= PARTS_PER_ROUND
    return low


def one_hot(token: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Tokens [rows] as vectors [rows, size]: 1 at the token's index, 0 elsewhere."""
    return (token.unsqueeze(-1) == torch.arange(size, device=token.device)).to(dtype)


def or_none(token: Tensor, logits: Tensor) -> Tensor:
    """The token, or -1 where the logits define no distribution: they hold a NaN, or their maximum is infinite."""
    best = logits.amax(-1)
    return token.masked_fill((best - best).isnan(), -1)
