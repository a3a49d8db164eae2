"""`Bidirectional`: one cell reads from the beginning, another from the end, each within the row's own length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call, checked_call, repacked
from leporello.call.explain import Explanation
from leporello.call.inputs import ArgumentAxes
from leporello.errors import ArgumentError
from leporello.loop.construction import Constructed
from leporello.loop.state import Tree, described, leaves_of, map_leaves
from leporello.nets.ends import ends_of
from leporello.nets.recurrent import Recurrent, shown
from leporello.nets.typing import DirectionOptions
from leporello.view.bidirectional_view import BothWays


class Bidirectional(Constructed, nn.Module):
    """Two cells over one sequence, in both directions; outputs side by side, states as a pair.

    forward_cell, backward_cell   the outputs are joined along the last axis
    options                       those of lp.Recurrent

    With `lengths` the second cell begins at each row's own end. With `resets` both directions are cut at the same
    border: between t-1 and t where resets[t] holds.

    >>> from leporello.cells import GRU
    >>> net = Bidirectional(GRU(3, 4), GRU(3, 4))
    >>> outputs, (ahead, back) = net(torch.zeros(5, 2, 3))
    >>> outputs.shape
    torch.Size([5, 2, 8])
    """

    def __init__(
        self, forward_cell: Any, backward_cell: Any, *, batch_first: bool = False, **options: Unpack[DirectionOptions]
    ) -> None:
        super().__init__()
        self.ahead = Recurrent(forward_cell, **options)
        self.back = Recurrent(backward_cell, **options)
        self.batch_first = batch_first

    def _repr_html_(self) -> str:
        return shown(self)

    if TYPE_CHECKING:

        def __call__(
            self,
            inputs: Tree,
            state: Tree = None,
            *,
            lengths: Any = None,
            resets: Tensor | None = None,
            context: Tree = None,
        ) -> tuple[Any, tuple[Any, Any]]: ...

    def forward(
        self,
        inputs: Tree,
        state: Tree = None,
        *,
        lengths: Any = None,
        resets: Tensor | None = None,
        context: Tree = None,
    ) -> tuple[Tree, Tree]:
        """Outputs (length, batch, both features) and the pair of final states; both cells read the context."""
        ahead, back, states, call = self._both(inputs, state, lengths, resets, context)
        order = _reversed_order(call.length, call.batch, call.lengths, call.device)
        outputs = _joined(ahead, map_leaves(lambda leaf: _along_time(leaf, order), back))
        if isinstance(inputs, PackedSequence):
            outputs = repacked(outputs, inputs)
        elif self.batch_first:
            outputs = map_leaves(lambda leaf: leaf if leaf is None else leaf.transpose(0, 1), outputs)
        return outputs, states

    def at_end(
        self,
        inputs: Tree,
        state: Tree = None,
        *,
        lengths: Any = None,
        resets: Tensor | None = None,
        context: Tree = None,
    ) -> tuple[Tree, Tree]:
        """The last output of each direction, side by side, (batch, both features), and the pair of final states.

        The last of the backward cell is its output at the first step of the sequence: it has read all of it then.
        """
        ahead, back, states, call = self._both(inputs, state, lengths, resets, context)
        return _joined(ends_of(ahead, call.lengths), ends_of(back, call.lengths), axes=2), states

    def _both(
        self, inputs: Tree, state: Tree, lengths: Any, resets: Tensor | None, context: Tree
    ) -> tuple[Tree, Tree, tuple[Tree, Tree], Call]:
        """Outputs of both directions, each (length, batch, ...) in the order of its reading; both states; the call."""
        if state is not None and not (isinstance(state, (tuple, list)) and len(state) == 2):
            raise ArgumentError(
                "the argument 'state' is no pair.",
                came=type(state).__name__,
                expected="(forward state, backward state)",
            )
        first, second = (None, None) if state is None else state
        if torch.compiler.is_compiling():
            from leporello.call.compiled import common_call  # loads torch._dynamo, which only a compiler needs

            call = common_call(inputs, lengths, resets, ArgumentAxes(batch_first=self.batch_first))
        else:
            call = self._checked(inputs, first, lengths, resets, context)
        ahead, after = self.ahead(call.inputs, first, lengths=call.lengths, resets=call.resets, context=context)
        order = _reversed_order(call.length, call.batch, call.lengths, call.device)
        turned = map_leaves(lambda leaf: _along_time(leaf, order), call.inputs)
        borders = None if call.resets is None else _borders(call.resets, order)
        back, before = self.back(turned, second, lengths=call.lengths, resets=borders, context=context)
        return ahead, back, (after, before), call

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.ahead.initial_state(batch, **options), self.back.initial_state(batch, **options)

    def _checked(self, inputs: Tree, state: Tree, lengths: Any, resets: Any, context: Tree) -> Call:
        """The call of the network from the beginning."""
        return checked_call(
            self.ahead.cell,
            inputs,
            state,
            lengths=lengths,
            resets=resets,
            context=context,
            batch_first=self.batch_first,
        )

    def fold(
        self,
        inputs: Tree,
        state: Tree = None,
        *,
        lengths: Any = None,
        resets: Tensor | None = None,
        context: Tree = None,
    ) -> BothWays:
        """Both loops of a call, to be drawn together: `net.fold(inputs).unfold(3).svg()`."""
        first, second = (None, None) if state is None else state
        call = self._checked(inputs, first, lengths, resets, context)
        arguments = {"lengths": call.lengths, "resets": call.resets, "context": context}
        return BothWays(
            self.ahead.fold(call.inputs, first, **arguments), self.back.fold(call.inputs, second, **arguments)
        )

    def explain(
        self,
        inputs: Tree,
        state: Tree = None,
        *,
        lengths: Any = None,
        resets: Tensor | None = None,
        context: Tree = None,
        passes: bool = False,
        timing: bool = False,
    ) -> Explanation:
        """What `Recurrent.explain` says of both networks."""
        first, second = (None, None) if state is None else state
        call = self._checked(inputs, first, lengths, resets, context)
        arguments: dict[str, Any] = {"lengths": call.lengths, "resets": call.resets, "passes": passes}
        arguments |= {"context": context, "timing": timing}
        return Explanation(
            "from the beginning\n"
            + self.ahead.explain(call.inputs, first, **arguments)
            + "from the end\n"
            + self.back.explain(call.inputs, second, **arguments)
        )


def _reversed_order(length: int, batch: int, lengths: Tensor | None, device: torch.device) -> Tensor:
    """For each step and row the step that is read there when the row is read from its end; padding stays in place.

    This order is its own inverse.
    """
    times = torch.arange(length, device=device).unsqueeze(1)
    if lengths is None:
        return (length - 1 - times).expand(length, batch)
    return torch.where(times < lengths, lengths - 1 - times, times)


def _along_time(leaf: Any, order: Tensor) -> Any:
    """A sequence with the steps of each row in another order."""
    if not isinstance(leaf, Tensor):
        return leaf
    index = order.reshape(*order.shape, *[1] * (leaf.dim() - 2)).expand(leaf.shape)
    return leaf.gather(0, index)


def _borders(resets: Tensor, order: Tensor) -> Tensor:
    """Resets for the other direction: the border before t is, from the end, the border before t-1."""
    following = torch.cat([resets[1:], torch.zeros_like(resets[:1])])
    return following.gather(0, order)


def _joined(one: Tree, other: Tree, axes: int = 3) -> Tree:
    """Outputs side by side along the last axis.

    axes   how many they have at least
    """
    ahead, back = leaves_of(one), leaves_of(other)
    narrow = any(isinstance(leaf, Tensor) and leaf.dim() < axes for leaf in (*ahead, *back))
    if narrow or [leaf is None for leaf in ahead] != [leaf is None for leaf in back]:
        raise ArgumentError(
            "the outputs of the two cells cannot be joined along a last axis.",
            came=f"{described(one)} and {described(other)}",
            expected="the same structure, each leaf (length, batch, ..., features)",
            tries="return output.unsqueeze(-1) from a step that gives one number per row",
        )
    joined = [None if pair[0] is None else torch.cat(pair, -1) for pair in zip(ahead, back, strict=True)]
    return pytree.tree_unflatten(joined, pytree.tree_structure(one))
