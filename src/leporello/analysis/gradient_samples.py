"""`Asked`: one call of a net and its loss, whose gradient any method can compute, again and again.

What is random in the call (draws of the cell, coins of the forcing) is drawn once, so that two gradients differ by
their methods alone. Knows calls, losses and gradients; knows nothing of what they are compared for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from leporello.analysis.arguments import refuse_no_loss, refuse_other_nets, row_by_row, wide, wide_net
from leporello.analysis.measured_cost import timed
from leporello.errors import ArgumentError
from leporello.gradient.full import Full
from leporello.gradient.method import Method
from leporello.loop.state import Tree, described, detach, leaves_of, map_leaves
from leporello.loop.step import place_of
from leporello.modules.arguments import Call, understood
from leporello.modules.recurrent import Recurrent
from leporello.modules.words import Words
from leporello.rewrite.loss import unreduced


@dataclass(frozen=True, eq=False)
class Asked:
    """A call and its loss, which is averaged over all steps of all rows that have not ended.

    net         round the caller's cell, with plans of its own: the caller's net keeps its own last call
    arguments   of the call
    loss        (rows, ...) in, a number per row out
    target      what the loss compares with, in brackets, or nothing
    alive       which steps have not ended, in the caller's axes; None where no row ends early
    """

    net: Recurrent
    arguments: dict[str, Any]
    loss: Callable[..., Any]
    target: tuple[Tree, ...]
    alive: Tensor | None
    length: int
    batch: int
    device: torch.device

    @staticmethod
    def of(
        net: Recurrent,
        inputs: Tree,
        loss: Callable[..., Tensor],
        state: Tree = None,
        *,
        targets: Tree = None,
        forcing: Any = None,
        **others: Any,
    ) -> Asked:
        """others   of a call: lengths, resets, steps"""
        refuse_other_nets(net)
        refuse_no_loss(loss)
        fed = {} if forcing is None else {"targets": targets, "forcing": forcing}
        with torch.no_grad():
            call = understood(net.cell, inputs, state, batch_first=net.batch_first, **others, **fed)
        words = Words(batch_first=net.batch_first)
        if isinstance(inputs, PackedSequence):
            inputs = pad_packed_sequence(inputs, batch_first=net.batch_first)[0]
        fed = {} if forcing is None else {"targets": targets, "forcing": words.taken(call.coin)}
        arguments = detach({"inputs": inputs, "state": state, **others, "lengths": call.lengths, **fed})
        target = () if targets is None else (_targets(call, detach(targets), words),)
        alone = Recurrent(net.cell, engine=net.engine, batch_first=net.batch_first)
        if draws := alone.draw(**arguments):
            arguments["draws"] = draws
        alive = None if call.lengths is None else words.taken(_alive(call))
        return Asked(alone, arguments, unreduced(loss), target, alive, call.length, call.batch, call.device)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What the gradient is with respect to."""
        found = [parameter for parameter in self.net.cell.parameters() if parameter.requires_grad]
        if not found:
            raise ArgumentError(
                "this cell has no parameters to learn.",
                cell=place_of(self.net.cell),
                expected="a cell with parameters that require gradients",
            )
        return found

    def gradients(self, method: Method) -> tuple[Tensor, ...]:
        """By a method, one for each parameter: forward, loss and back."""
        parameters = self.parameters
        with torch.enable_grad():
            loss = self._loss(self.net(**self.arguments, gradient=method)[0])
            if not loss.requires_grad:
                raise ArgumentError(
                    "the loss does not depend on the parameters of the net.",
                    cell=place_of(self.net.cell),
                    expected="a loss of the outputs, which depend on them",
                )
            return torch.autograd.grad(loss, parameters, materialize_grads=True)

    def exact(self) -> Tensor:
        """The exact gradient, in float64 and by the engine `reference`, as one vector."""
        net = Recurrent(wide_net(self.net).cell, engine="reference", batch_first=self.net.batch_first)
        again = replace(self, net=net, arguments=map_leaves(wide, self.arguments), target=map_leaves(wide, self.target))
        with torch.autocast(self.device.type, enabled=False):
            return vector(again.gradients(Full()))

    def bytes_given(self) -> int:
        """Of the outputs and the final state, which every method gives."""
        with torch.no_grad():
            leaves = leaves_of(self.net(**self.arguments))
        return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, Tensor))

    def _loss(self, outputs: Tree) -> Tensor:
        if not any(leaf.is_floating_point() or leaf.is_complex() for leaf in leaves_of(outputs) if leaf is not None):
            raise ArgumentError(
                "the outputs of this net are no floating numbers: they have no derivative.",
                cell=place_of(self.net.cell),
                came=described(outputs),
                expected="floating numbers",
            )
        rows = self.length * self.batch if self.alive is None else int(self.alive.sum())
        target = tuple(self._rows(one) for one in self.target)
        return row_by_row(self.loss, self._rows(outputs), target, rows, "the outputs").mean()

    def _rows(self, tree: Tree) -> Tree:
        """All steps of all rows as rows."""

        def taken(leaf: Any) -> Any:
            if leaf is None:
                return None
            return leaf.flatten(0, 1) if self.alive is None else leaf[self.alive]

        return map_leaves(taken, tree)


def vector(gradients: tuple[Tensor, ...]) -> Tensor:
    """Real numbers side by side, in float64."""
    real = [torch.view_as_real(one) if one.is_complex() else one for one in gradients]
    return torch.cat([one.detach().reshape(-1).double() for one in real])


def _targets(call: Call, targets: Tree, words: Words) -> Tree:
    for leaf in leaves_of(targets):
        ahead = words.taken(leaf) if isinstance(leaf, Tensor) else leaf
        if not isinstance(leaf, Tensor) or tuple(ahead.shape[:2]) != (call.length, call.batch):
            raise ArgumentError(
                "the argument 'targets' has the wrong shape.",
                came=described(leaf),
                expected=words.shape(call.length, call.batch, "..."),
            )
    return targets


def _alive(call: Call) -> Tensor:
    """(length, batch)."""
    assert call.lengths is not None
    return torch.arange(call.length, device=call.device).unsqueeze(1) < call.lengths


TIMED = 7  # gradients of each method that are timed: as many of one without chance as of the others


class Sampled:
    """The draws of one method.

    compute   gives the gradients, one for each parameter
    most      draws to be taken, at least two

    The first one makes ready whatever is made once, so it is not timed.
    """

    def __init__(self, compute: Callable[[], Sequence[Tensor]], most: int, device: torch.device) -> None:
        self.compute, self.most, self.device = compute, most, device
        self.count = 0
        self.mean = torch.empty(0)
        self.squares = 0.0  # summed distances from the mean
        self.seconds: list[float] = []
        self.is_random = False

    @property
    def over(self) -> bool:
        """Whether another draw would tell nothing new."""
        return self.count >= (self.most if self.is_random else min(self.most, 1 + TIMED))

    def draw(self) -> None:
        """One gradient more (Welford 1962)."""
        before = self._chance()
        found, seconds = timed(self.compute, self.device)
        one = vector(tuple(found))
        if not self.count:
            self.mean = torch.zeros_like(one)
        elif self.count <= TIMED:
            self.seconds.append(seconds)
        self.is_random |= not torch.equal(before, self._chance()) or (self.count > 0 and not _same(one, self.mean))
        self.count += 1
        if not self.is_random:
            self.mean = one
            return
        away = one - self.mean
        self.mean = self.mean + away / self.count
        self.squares += torch.dot(away, one - self.mean).item()

    @property
    def draws(self) -> int:
        """Those that tell something: of a method without chance it is one."""
        return self.count if self.is_random else 1

    @property
    def variance(self) -> float:
        """The trace of the covariance of one draw."""
        return self.squares / (self.count - 1) if self.is_random else 0.0

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan

    def _chance(self) -> Tensor:
        """Where torch's random numbers stand: a method that draws some is random even if two draws are the same."""
        if self.device.type == "cuda":
            return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state(self.device)])
        return torch.get_rng_state()


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
