"""`online`: a learner that takes one step's input and target at a time, and keeps nothing of the past but the state.

At each step it runs the network, lets the loss judge the output, and has the gradient method find what that means to
the parameters, by way of what the method carries beside the state. Knows networks and methods that go forward in time;
knows nothing of what these carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call, understood
from leporello.call.cached_call import KnownStep
from leporello.call.initial_state import fresh
from leporello.call.values import each, in_trees, values_of
from leporello.engine.plan import Plan
from leporello.errors import ArgumentError
from leporello.gradient.forward_in_time import ForwardMethod, without_gradients
from leporello.gradient.method import Method
from leporello.loop.cell_tensors import CELL_LOCK
from leporello.loop.state import Tree, batch_of, described, detach, leaves_of
from leporello.nets.recurrent import Recurrent
from leporello.rewrite.linearize import Key, arriving, key, total

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


class Online:
    """What `lp.online` gives.

    state   after the last step; None before the first, unless one was given
    loss    of the last step; None before the first
    """

    def __init__(self, net: Recurrent, method: ForwardMethod, loss: Loss, state: Tree) -> None:
        self.net, self.method = net, method
        self.loss: Tensor | None = None
        self.state: Tree = detach(state)
        self._judge, self._given = loss, detach(state)
        self._known: KnownStep | None = None  # of the last step, since the beginning
        self._beside: dict[Key, Tensor] = {}  # what goes along with the state

    def step(self, x: Tree, target: Any) -> Tree:
        """The output, [batch, ...]; every parameter's .grad has the gradient of this step's loss added to it.

        x        the input of one step, [batch, ...], a tree of such tensors, or None for a system without input
        target   whatever the loss takes
        """
        with torch.enable_grad():
            known, values = self._look(x)
            plan, carried, batch = known.plan, known.carried, known.batch
            outputs, after = in_trees(plan.loop, without_gradients(plan, values, 1, batch))
            output = each(lambda leaf: _watched(leaf.squeeze(0)), outputs)
            self.loss = self._judged(output, target)
            given = dict(zip(map(key, plan.loop.inputs), values, strict=True)) | self._beside
            found = carried.run(given | _heard(plan, output), 1, batch)
            self._add(known, values, found)
        self.state, self._known = after, known
        self._beside = {key(port): found[key(port)] for port in carried.states}
        return detach(output)

    def reset(self, rows: Any = None) -> None:
        """Begin again: with the initial state, and nothing of the past in the gradients.

        rows   those that do, as indices or one boolean each; by default all, and the next step may have another batch
        """
        if rows is None or self._known is None:
            self.state, self._known, self._beside = self._given, None, {}
            return
        leaves, spec = pytree.tree_flatten(self.state)
        begun = leaves_of(self._given) if self._given is not None else self._initial(self._known)
        self.state = pytree.tree_unflatten([_mixed(*pair, rows) for pair in zip(leaves, begun, strict=True)], spec)
        empty = self.method.beginning(self._known.carried.linear, self._known.batch)
        self._beside = {one: _mixed(value, empty[one], rows) for one, value in self._beside.items()}

    # ---- what is run

    def _look(self, x: Tree) -> tuple[KnownStep, list[Tensor]]:
        """How this step is run, and the values of its loop's inputs."""
        known = self._known
        if known is not None and known.fits(x, self.net.engine):
            states = [leaf.detach() for leaf in leaves_of(self.state)]
            with CELL_LOCK:
                return known, known.gather(None if x is None else x.unsqueeze(0), states, 1, known.batch, None)
        call = self._call(x)
        plan, _ = self.net._planner.plan(self.net.cell, call, self.method, self.net.engine)
        self._refuse_nothing_to_learn(plan)
        made = KnownStep.of(self.net.cell, call, plan, self.method.carried(plan), self.net.engine, x)
        self._begin(made)
        return made, values_of(plan.loop, call)

    def _call(self, x: Tree) -> Call:
        """The call of one step, on a state without a past; a learned one asks for its gradient all the same."""
        self._refuse_other_batch(x)
        call = understood(self.net.cell, x, self.state, one_step=True)
        if self._known is not None:
            learned = self._known.learned
        else:
            learned = [self._given is None and leaf.requires_grad for _, leaf in call.states]
        pairs = zip(call.states, learned, strict=True)
        states = [(name, leaf.detach().requires_grad_(asked)) for (name, leaf), asked in pairs]
        spec = pytree.tree_structure(call.state)
        return replace(call, states=states, state=pytree.tree_unflatten([leaf for _, leaf in states], spec))

    def _refuse_other_batch(self, x: Tree) -> None:
        came, expected = batch_of(x), self._known.batch if self._known is not None else batch_of(self.state)
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

    def _begin(self, made: KnownStep) -> None:
        """What is carried before the first step; later it must be what the network still asks for."""
        if self._known is None:
            self._beside = self.method.beginning(made.carried.linear, made.batch)
        elif set(self._beside) != {key(port) for port in made.carried.states}:
            raise ArgumentError(
                "the network asks for other gradients than at the steps before.",
                came=", ".join(sorted(port.name for port in made.carried.states)) or "none",
                expected=", ".join(sorted(name for _, name in self._beside)) or "none",
                tries="learner.reset() after a change of requires_grad",
            )

    # ---- what comes of it

    def _judged(self, output: Tree, target: Any) -> Tensor:
        """The loss of this step; the output's leaves, and the loss's own parameters, have its gradient then."""
        loss = self._judge(output, target)
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

    def _add(self, known: KnownStep, values: Sequence[Tensor], found: dict[Key, Tensor]) -> None:
        """Gradients go to the parameters, by way of the initial state too."""
        ports = zip(known.plan.loop.inputs, values, known.plan.wanted, strict=True)
        sources = [(port, value, found.get(key(total(port)))) for port, value, wanted in ports if wanted]
        pairs = [(value, grad) for port, value, grad in sources if port.kind == "invariant" and grad is not None]
        if any(known.learned):
            begun = dict(zip(known.names, self._initial(known), strict=True))
            pairs += [(begun[port.name], g) for port, _, g in sources if port.kind == "state" and g is not None]
        if pairs:
            torch.autograd.backward([value for value, _ in pairs], [gradient for _, gradient in pairs])

    def _initial(self, known: KnownStep) -> list[Tensor]:
        """The leaves of the initial state, as they depend on parameters now."""
        return leaves_of(fresh(self.net.cell, known.batch, known.home))


def _watched(leaf: Tensor) -> Tensor:
    return leaf.detach().requires_grad_(leaf.is_floating_point())


def _heard(plan: Plan, output: Tree) -> dict[Key, Tensor]:
    """The gradients of the outputs, as one step of a sequence."""
    ports = [port for port in plan.loop.outputs if port.kind == "sequence"]
    leaves = [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]
    found: dict[Key, Tensor] = {}
    for port, leaf in zip(ports, leaves, strict=True):
        if leaf.requires_grad:
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            found[key(arriving(port))] = grad.unsqueeze(0)
    return found


def _mixed(value: Tensor, begun: Tensor, rows: Any) -> Tensor:
    """A value with some of its rows begun again."""
    mixed = value.clone()
    mixed[rows] = begun.detach()[rows].to(value.dtype)
    return mixed
