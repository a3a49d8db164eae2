"""`Asked`: one call of a net and its loss, whose gradient any method can compute, again and again.

What is random in the call (draws of the cell, coins of the forcing) is drawn once, so that two gradients differ by
their methods alone. Knows calls, losses and gradients; knows nothing of what they are compared for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from leporello.analysis.exact import wide, wide_net
from leporello.analysis.losses import refuse_no_loss, row_by_row
from leporello.analysis.refusals import refuse_other_nets
from leporello.call.arguments import Call, understood
from leporello.call.inputs import Words
from leporello.errors import ArgumentError
from leporello.gradient.full import Full
from leporello.gradient.method import Method
from leporello.loop.state import Tree, described, detach, leaves_of, map_leaves
from leporello.loop.step import place_of
from leporello.nets.recurrent import Recurrent
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
