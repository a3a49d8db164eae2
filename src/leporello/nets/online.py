"""`online`: a learner that takes one step's input and target at a time, and keeps nothing of the past but the state.

At each step it runs the network, computes the loss of the output, and lets the gradient method turn the gradient of the
output into gradients of the parameters, by way of what the method carries along with the state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call, checked_call
from leporello.call.cached_call import CachedCall
from leporello.call.initial_state import fresh_state
from leporello.call.inputs import map_tensors
from leporello.call.signature import autocast_mode, signature
from leporello.call.values import values_of
from leporello.engine.plan import Plan
from leporello.errors import ArgumentError
from leporello.gradient.forward_in_time import CarryingLoop, ForwardMethod, without_gradients
from leporello.gradient.method import Method
from leporello.loop.port import PortKey
from leporello.loop.state import Tree, batch_of, described, detach, leaves_of
from leporello.nets.recurrent import Recurrent
from leporello.rewrite.forward_in_time.linearize import gradient_port, total_port

Loss = Callable[[Any, Any], Tensor]


def online(net: Recurrent, method: Method, loss: Loss, state: Tree = None) -> Online:
    """A learner for data that come one step at a time.

        learner = lp.online(net, lp.RTRL(), loss)
        for x, target in pairs:
            output = learner.step(x, target)     # adds the gradient of this step's loss to .grad, as backward() does
            optimizer.step()
            optimizer.zero_grad()

    net      an lp.Recurrent; its own gradient= stays as it is
    method   one that goes forward in time: lp.RTRL() or lp.UORO()
    loss     loss(output, target) -> a scalar; parameters of its own get their gradients too
    state    before the first step and after a reset; by default the cell's initial state

    The parameters may change between steps. What is carried was then made with the older ones: that is what learning
    online means.

    >>> net = Recurrent(lp.GRU(3, 4))
    >>> learner = online(net, lp.RTRL(), nn.functional.mse_loss)
    >>> learner.step(torch.randn(2, 3), torch.zeros(2, 4)).shape, net.cell.W.grad.shape
    (torch.Size([2, 4]), torch.Size([12, 4]))
    """
    if not isinstance(net, Recurrent):
        raise ArgumentError(
            "the argument 'net' is no network that goes step by step.",
            came=type(net).__name__,
            expected="lp.Recurrent",
            tries="lp.online(lp.Recurrent(cell), ...); lp.Stack makes one cell of several",
        )
    if not isinstance(method, ForwardMethod):
        raise ArgumentError(
            "the argument 'method' does not go forward in time.",
            came=repr(method),
            expected="lp.RTRL() or lp.UORO()",
            tries="to go back in time, call the network on one window of steps after another, with backward() after "
            "each: lp.Recurrent(cell, gradient=lp.Truncated(35))",
        )
    return Online(net, method, loss, state)


@dataclass(frozen=True, eq=False)
class _Step:
    """How a step of a learner is run.

    carried   the method's loop beside the network's own
    learned   for each leaf of the state whether the initial state's has a gradient
    """

    cached: CachedCall
    carried: CarryingLoop
    batch: int
    learned: list[bool]


class Online:
    """What `lp.online` gives.

    state   after the last step; None before the first, unless one was passed
    loss    of the last step; None before the first
    """

    def __init__(self, net: Recurrent, method: ForwardMethod, loss: Loss, state: Tree) -> None:
        self.net, self.method = net, method
        self.loss: Tensor | None = None
        self.state: Tree = detach(state)
        self._loss_function, self._initial_state = loss, detach(state)
        self._last: _Step | None = None  # the last step since the beginning
        self._carried: dict[PortKey, Tensor] = {}  # what the method carries along with the state

    def step(self, x: Tree, target: Any) -> Tree:
        """The output, [batch, ...]; every parameter's .grad has the gradient of this step's loss added to it.

        x        the input of one step, [batch, ...], a tree of such tensors, or None for a system without input
        target   whatever the loss takes
        """
        with torch.enable_grad():
            step, values = self._ready(x)
            plan, batch = step.cached.plan, step.batch
            outputs, state = step.cached.in_trees(without_gradients(plan, values, 1, batch))
            output = map_tensors(lambda leaf: _as_leaf(leaf.squeeze(0)), outputs)
            self.loss = self._loss_of(output, target)
            inputs = {port.key: value for port, value in zip(plan.loop.inputs, values, strict=True)} | self._carried
            results = step.carried.run(inputs | _output_gradients(plan, output), 1, batch)
            self._accumulate(step, values, results)
        self.state, self._last = state, step
        self._carried = {port.key: results[port.key] for port in step.carried.states}
        return detach(output)

    def reset(self, rows: Any = None) -> None:
        """Begin again: with the initial state, and nothing of the past in the gradients.

        rows   those that do, as indices or one boolean each; by default all, and the next step may have another batch
        """
        if rows is None or self._last is None:
            self.state, self._last, self._carried = self._initial_state, None, {}
            return
        last = self._last
        leaves, spec = pytree.tree_flatten(self.state)
        first = leaves_of(self._initial_state) if self._initial_state is not None else self._initial_leaves(last)
        self.state = pytree.tree_unflatten([_with_rows(*pair, rows) for pair in zip(leaves, first, strict=True)], spec)
        empty = self.method.beginning(last.carried.linear, last.batch)
        self._carried = {one: _with_rows(value, empty[one], rows) for one, value in self._carried.items()}

    # ---- before the step

    def _ready(self, x: Tree) -> tuple[_Step, list[Tensor]]:
        """How this step is run, and the values of its loop's inputs."""
        last, call_key = self._last, self._key(x)
        if last is not None and call_key == last.cached.key is not None and last.cached.cell is self.net.cell:
            sequences = () if x is None else (x.unsqueeze(0),)
            gathered = last.cached.values(sequences, detach(self.state), 1, last.batch)
            if gathered is not None and (x is None or len(x) == last.batch):
                return last, gathered[0]
        call = self._call(x)
        plan, _ = self.net._plan_cache.plan(self.net.cell, call, self.method, self.net.engine)
        self._refuse_nothing_to_learn(plan)
        cached = CachedCall(call_key, self.net.cell, call, plan, self.method)
        step = _Step(cached, self.method.carried(plan), call.batch, [leaf.requires_grad for _, leaf in call.states])
        self._begin(step)
        return step, values_of(plan.loop, call)

    def _key(self, x: Tree) -> Hashable | None:
        """The signature of a step; None where it must be planned anew."""
        if x is None:
            device = self._last.cached.device if self._last is not None else torch.device("cpu")
            return (autocast_mode(device), self.net.engine)
        return signature(x, None, None, None, None, self.net.engine, self.method, one_step=True)

    def _call(self, x: Tree) -> Call:
        """The call of one step, on a detached state; the leaves of a learned one require a gradient all the same."""
        self._refuse_other_batch(x)
        call = checked_call(self.net.cell, x, self.state, one_step=True)
        if self._last is not None:
            learned = self._last.learned
        else:
            learned = [self._initial_state is None and leaf.requires_grad for _, leaf in call.states]
        pairs = zip(call.states, learned, strict=True)
        states = [(name, leaf.detach().requires_grad_(requires)) for (name, leaf), requires in pairs]
        spec = pytree.tree_structure(call.state)
        return replace(call, states=states, state=pytree.tree_unflatten([leaf for _, leaf in states], spec))

    def _refuse_other_batch(self, x: Tree) -> None:
        came, expected = batch_of(x), self._last.batch if self._last is not None else batch_of(self.state)
        if None not in (came, expected) and came != expected:
            raise ArgumentError(
                "the argument 'x' has another batch than the steps before.",
                came=described(x),
                expected=f"batch {expected}: every row has a state of its own",
                tries="learner.reset() begins again, with any batch; learner.reset(rows) for some rows",
            )

    def _refuse_nothing_to_learn(self, plan: Plan) -> None:
        if not any(plan.wanted):
            raise ArgumentError(
                "no parameter of the network requires a gradient: there is nothing to learn.",
                tries="requires_grad_(True) on what is to be learned; or net.step, which learns nothing",
            )

    def _begin(self, step: _Step) -> None:
        """Make what is carried before the first step; at later ones it must be what the network still needs."""
        if self._last is None:
            self._carried = self.method.beginning(step.carried.linear, step.batch)
        elif set(self._carried) != {port.key for port in step.carried.states}:
            raise ArgumentError(
                "the network asks for other gradients than at the steps before.",
                came=", ".join(sorted(port.name for port in step.carried.states)) or "none",
                expected=", ".join(sorted(name for _, name in self._carried)) or "none",
                tries="learner.reset() after a change of requires_grad",
            )

    # ---- after the step

    def _loss_of(self, output: Tree, target: Any) -> Tensor:
        """The loss of this step; it leaves its gradient in the output's leaves and in the loss's own parameters."""
        loss = self._loss_function(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ArgumentError(
                "the argument 'loss' gives no scalar.",
                came=described(loss),
                expected="one number for the whole batch",
                tries="take the mean or the sum over the batch",
            )
        if loss.requires_grad:
            loss.backward()
        return loss.detach()

    def _accumulate(self, step: _Step, values: Sequence[Tensor], results: dict[PortKey, Tensor]) -> None:
        """Add gradients to those of the parameters, also by way of the initial state."""
        plan = step.cached.plan
        ports = zip(plan.loop.inputs, values, plan.wanted, strict=True)
        sources = [(port, value, results.get(total_port(port).key)) for port, value, wanted in ports if wanted]
        pairs = [(value, grad) for port, value, grad in sources if port.kind == "invariant" and grad is not None]
        if any(step.learned):
            first = dict(zip(step.cached.state_names, self._initial_leaves(step), strict=True))
            pairs += [
                (first[port.name], grad) for port, _, grad in sources if port.kind == "state" and grad is not None
            ]
        if pairs:
            torch.autograd.backward([value for value, _ in pairs], [gradient for _, gradient in pairs])

    def _initial_leaves(self, step: _Step) -> list[Tensor]:
        """The leaves of the initial state, as they depend on parameters now."""
        return leaves_of(fresh_state(self.net.cell, step.batch, step.cached.state_options))


def _as_leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_(value.is_floating_point())


def _output_gradients(plan: Plan, output: Tree) -> dict[PortKey, Tensor]:
    """The gradients of the outputs, as one step of a sequence."""
    ports = [port for port in plan.loop.outputs if port.kind == "sequence"]
    leaves = [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]
    gradients: dict[PortKey, Tensor] = {}
    for port, leaf in zip(ports, leaves, strict=True):
        if leaf.requires_grad:
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            gradients[gradient_port(port).key] = grad.unsqueeze(0)
    return gradients


def _with_rows(value: Tensor, first: Tensor, rows: Any) -> Tensor:
    """A value with some of its rows as they were before the first step."""
    mixed = value.clone()
    mixed[rows] = first.detach()[rows].to(value.dtype)
    return mixed
