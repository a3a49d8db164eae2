"""Gradients of one call and its loss by any gradient method, and the statistics of repeated draws of them.

What is random in the call (draws of the cell, coins of the forcing) is drawn once, so that two gradients differ by
their methods alone.
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

from leporello.analysis.arguments import (
    check_loss,
    check_net,
    check_targets,
    loss_per_row,
    net_in_float64,
    to_float64,
)
from leporello.analysis.measured_cost import timed
from leporello.call.arguments import Call, checked_call
from leporello.call.inputs import ArgumentAxes
from leporello.errors import ArgumentError
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full
from leporello.loop.state import Tree, described, detach, leaves_of, map_leaves
from leporello.loop.step import place_of
from leporello.nets.recurrent import Recurrent
from leporello.rewrite.add_loss import unreduced

TIMED_DRAWS = 7  # gradients of each method that are timed, random or not


@dataclass(frozen=True, eq=False)
class GradientProblem:
    """A call and its loss, which is averaged over all steps of all rows that have not ended.

    net         a network round the caller's cell, so that the caller's network keeps its own last call
    arguments   of the call
    loss        (n, ...) in, n losses out, where n counts all these steps
    target      a tuple of what the loss compares with, or an empty one
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
    ) -> GradientProblem:
        """Check a call and its loss, and draw its random numbers.

        others   arguments of a call: lengths, resets, steps
        """
        check_net(net)
        check_loss(loss)
        fed_back = {} if forcing is None else {"targets": targets, "forcing": forcing}
        with torch.no_grad():
            call = checked_call(net.cell, inputs, state, batch_first=net.batch_first, **others, **fed_back)
        axes = ArgumentAxes(batch_first=net.batch_first)
        if isinstance(inputs, PackedSequence):
            inputs = pad_packed_sequence(inputs, batch_first=net.batch_first)[0]
        if fed_back:
            fed_back["forcing"] = axes.to_time_first(call.coin)
        arguments = detach({"inputs": inputs, "state": state, **others, "lengths": call.lengths, **fed_back})
        target: tuple[Tree, ...] = ()
        if targets is not None:
            target = (detach(targets),)
            check_targets(target[0], call.length, call.batch, axes)
        own_net = Recurrent(net.cell, engine=net.engine, batch_first=net.batch_first)
        if draws := own_net.draw(**arguments):
            arguments["draws"] = draws
        alive = None if call.lengths is None else axes.to_time_first(_alive(call))
        return GradientProblem(own_net, arguments, unreduced(loss), target, alive, call.length, call.batch, call.device)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What the gradient is with respect to."""
        parameters = [parameter for parameter in self.net.cell.parameters() if parameter.requires_grad]
        if not parameters:
            raise ArgumentError(
                "this cell has no parameters to learn.",
                cell=place_of(self.net.cell),
                expected="a cell with parameters that require gradients",
            )
        return parameters

    def gradients(self, method: Method) -> tuple[Tensor, ...]:
        """The gradient by a method, one tensor for each parameter: forward, loss and backward."""
        parameters = self.parameters
        with torch.enable_grad():
            loss = self._mean_loss(self.net(**self.arguments, gradient=method)[0])
            if not loss.requires_grad:
                raise ArgumentError(
                    "the loss does not depend on the parameters of the net.",
                    cell=place_of(self.net.cell),
                    expected="a loss of the outputs, which depend on them",
                )
            return torch.autograd.grad(loss, parameters, materialize_grads=True)

    def exact_gradient(self) -> Tensor:
        """The exact gradient as one vector in float64, by the engine `reference`; raises if it is 0 or not finite."""
        net = Recurrent(net_in_float64(self.net).cell, engine="reference", batch_first=self.net.batch_first)
        arguments, target = map_leaves(to_float64, self.arguments), map_leaves(to_float64, self.target)
        in_float64 = replace(self, net=net, arguments=arguments, target=target)
        with torch.autocast(self.device.type, enabled=False):
            gradient = as_vector(in_float64.gradients(Full()))
        norm = gradient.norm().item()
        if not 0 < norm < math.inf:
            raise ArgumentError(
                "the exact gradient is 0: there is nothing to compare with."
                if norm == 0
                else "the exact gradient is not finite: there is nothing to compare with.",
                cell=place_of(self.net.cell),
                expected="a loss whose gradient with respect to the parameters is a finite one",
            )
        return gradient

    def result_bytes(self) -> int:
        """The size of the outputs and the final state, which every method returns."""
        with torch.no_grad():
            leaves = leaves_of(self.net(**self.arguments))
        return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, Tensor))

    def _mean_loss(self, outputs: Tree) -> Tensor:
        if not any(leaf.is_floating_point() or leaf.is_complex() for leaf in leaves_of(outputs) if leaf is not None):
            raise ArgumentError(
                "the outputs of this net are no floating numbers: they have no derivative.",
                cell=place_of(self.net.cell),
                came=described(outputs),
                expected="floating numbers",
            )
        rows = self.length * self.batch if self.alive is None else int(self.alive.sum())
        target = tuple(self._as_rows(tree) for tree in self.target)
        return loss_per_row(self.loss, self._as_rows(outputs), target, rows, "the outputs").mean()

    def _as_rows(self, tree: Tree) -> Tree:
        """All steps of all rows that have not ended on one axis: from (length, batch, ...) to (n, ...)."""

        def flat(leaf: Any) -> Any:
            if leaf is None:
                return None
            return leaf.flatten(0, 1) if self.alive is None else leaf[self.alive]

        return map_leaves(flat, tree)


def as_vector(gradients: Sequence[Tensor]) -> Tensor:
    """All gradients as one vector of real numbers, in float64."""
    real = [torch.view_as_real(gradient) if gradient.is_complex() else gradient for gradient in gradients]
    return torch.cat([gradient.detach().reshape(-1).double() for gradient in real])


def _alive(call: Call) -> Tensor:
    """Which steps of which rows have not ended, (length, batch)."""
    assert call.lengths is not None
    return torch.arange(call.length, device=call.device).unsqueeze(1) < call.lengths


class GradientSamples:
    """The draws of one gradient method: their number, mean, variance and time, updated with each draw.

    compute     returns the gradients, one for each parameter
    max_draws   how many a random method takes, at least two; one that is not random takes as many as are timed

    The first draw builds whatever is built once, and is not timed. A method that uses no random numbers of torch and
    returns the same gradient again is not random.
    """

    def __init__(self, compute: Callable[[], Sequence[Tensor]], max_draws: int, device: torch.device) -> None:
        self.compute, self.max_draws, self.device = compute, max_draws, device
        self.count = 0
        self.mean = torch.empty(0)
        self.squares = 0.0  # the sum of squared distances from the mean
        self.seconds: list[float] = []
        self.is_random = False

    @property
    def is_complete(self) -> bool:
        """Whether another draw would add nothing."""
        return self.count >= (self.max_draws if self.is_random else min(self.max_draws, 1 + TIMED_DRAWS))

    def draw(self) -> None:
        """Compute one more gradient and update mean and variance (Welford 1962)."""
        rng_before = self._rng_state()
        gradients, seconds = timed(self.compute, self.device)
        gradient = as_vector(gradients)
        if not self.count:
            self.mean = torch.zeros_like(gradient)
        elif self.count <= TIMED_DRAWS:
            self.seconds.append(seconds)
        used_rng = not torch.equal(rng_before, self._rng_state())
        self.is_random |= used_rng or (self.count > 0 and not _equal_or_nan(gradient, self.mean))
        self.count += 1
        if not self.is_random:
            self.mean = gradient
            return
        difference = gradient - self.mean
        self.mean = self.mean + difference / self.count
        self.squares += torch.dot(difference, gradient - self.mean).item()

    @property
    def draws(self) -> int:
        """The number of draws that may differ: 1 for a method that is not random."""
        return self.count if self.is_random else 1

    @property
    def variance(self) -> float:
        """The trace of the covariance of one draw."""
        return self.squares / (self.count - 1) if self.is_random else 0.0

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan

    def _rng_state(self) -> Tensor:
        if self.device.type == "cuda":
            return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state(self.device)])
        return torch.get_rng_state()


def _equal_or_nan(left: Tensor, right: Tensor) -> bool:
    return bool(((left == right) | (left.isnan() & right.isnan())).all())
