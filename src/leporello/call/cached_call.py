"""`Warm`: a call of a common form, seen before: one tensor in, a state or none, perhaps lengths or resets.

What such a call looked up the first time is kept; the next one checks that it still holds, and runs. Knows plans and
the order of a call's tensors; whatever is not as it was goes the long way, which knows the words for what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call
from leporello.call.cell_key import Watch, autocast_mode
from leporello.call.checks import checked_lengths, checked_mask
from leporello.call.initial_state import fresh, initial_of
from leporello.call.inputs import Words, home_of
from leporello.call.values import Gathering, gathering, of_the_call, passing, times_of
from leporello.engine import autograd
from leporello.engine.choice import Choice
from leporello.engine.plan import Plan
from leporello.engine.state_gradient import ALL, Passing
from leporello.errors import LeporelloError
from leporello.gradient.forward_in_time import CarryingLoop
from leporello.gradient.method import Method
from leporello.gradient.through_time import Full
from leporello.loop.cell import Cell
from leporello.loop.cell_tensors import CELL_LOCK
from leporello.loop.loop import Loop
from leporello.loop.state import Tree, leaves_of

Run = tuple[Tree, Tree]


def form_of(
    inputs: Any, state: Any, lengths: Any = None, resets: Any = None, *, one_step: bool = False
) -> Hashable | None:
    """What two calls have in common that share a plan, if the cell has not changed; None for a form of another kind."""
    axes = 1 if one_step else 2
    if type(inputs) is not Tensor or inputs.dim() < axes or inputs.device.type == "meta":
        return None
    device = inputs.device
    known = (inputs.shape[axes:], inputs.dtype, inputs.requires_grad, device)
    modes = (torch.is_grad_enabled(), autocast_mode(device), lengths is None, resets is None)
    if state is None:
        return (known, modes)
    if type(state) is Tensor:
        return (known, modes, _leaf(state))
    if isinstance(state, tuple) and all(type(leaf) is Tensor for leaf in state):
        return (known, modes, type(state), *map(_leaf, state))
    return None


def _leaf(leaf: Tensor) -> Hashable:
    return (leaf.shape[1:], leaf.dtype, leaf.requires_grad, leaf.device)


class Warm:
    """One form of call."""

    def __init__(
        self, cell: nn.Module, call: Call, plan: Plan, choice: Choice, gradient: Method, engine: str, *, given: Tree
    ) -> None:
        self.cell, self.plan, self.gradient, self.engine = cell, plan, gradient, engine
        self.watch = Watch(cell)
        self.trains = any(plan.wanted)
        self.plain = autograd.call if choice.engine == "reference" else autograd.plain
        own = choice.engine == "reference" or type(gradient).run is not Method.run
        self.trained = gradient.run if own else autograd.trained
        self.detached = not gradient.crossing(1)[0]
        self.device = call.device
        self.sequence = call.sequences[0][0]
        self.home = {"device": call.device, "dtype": _floating(call)}
        self.exact = type(gradient) is Full and gradient.clip_state is None
        self.passes: tuple[int, int, Passing] = (0, 0, ALL)  # of the last call, with its length and batch
        self.weighed = next((leaf.real.dtype for _, leaf in call.states if _floats(leaf)), None)
        self.zeros = _zeros(cell, call, given is not None)
        self.begun: tuple[int, list[Tensor]] = (0, [])  # of the last call: rows, and states of zeros
        self.times: Tensor | None = None  # of the last call with lengths
        self.names = [name for name, _ in call.states]
        self.values = gathering(plan.loop, cell, self.names)
        self.outputs, self.states = _places(plan.loop)
        signature = plan.loop.signature
        assert signature is not None
        self.tree = _builder(signature.outputs, signature.present)
        self.state_tree = _builder(signature.state)
        self.form_of_state = type(given)
        open_ = self.trains or torch.is_grad_enabled() or autocast_mode(call.device)
        self.single = None if open_ or choice.engine == "reference" else Single.of(self, call)

    def run(self, inputs: Tensor, state: Tree, lengths: Any = None, resets: Any = None) -> Run | None:
        """Outputs and final state, or None if the call must go the long way."""
        length, batch = inputs.shape[:2]
        if length < 1 or batch < 1:
            return None
        with CELL_LOCK:
            if not self.watch.same():
                return None
            states = self.begin(state, batch)
            if states is None:
                return None
            beside = None
            if lengths is not None or resets is not None:
                beside = self._beside(inputs, states, lengths, resets)
                if beside is None:
                    return None
            values = self.values(inputs, states, length, batch, beside)
        past = None if beside is None else beside.get(("sequence", "call.past"))
        passes = ALL if self.exact else self._passing(length, batch, past)
        plan = self.plan
        if self.trains:
            return self.in_trees(self.trained(plan, values, length, batch, passes))
        return self.in_trees(self.plain(plan, values, length, batch))

    def _passing(self, length: int, batch: int, past: Tensor | None) -> Passing:
        """What each step passes back; of the last call where it is the same again."""
        if past is not None or not self.gradient.weights_stay or not torch.is_grad_enabled():
            return passing(self.gradient, length, batch, self.device, self.weighed, past)
        if self.passes[:2] != (length, batch):
            found = passing(self.gradient, length, batch, self.device, self.weighed, None)
            whole = None if found.weights is None else found.weights.contiguous()
            self.passes = (length, batch, Passing(whole, found.groups, found.limit))
        return self.passes[2]

    def in_trees(self, results: Sequence[Tensor]) -> Run:
        """Results as the user wrote them."""
        outputs = self.tree([results[place] for place in self.outputs])
        return outputs, self.state_tree([results[place] for place in self.states])

    def _beside(
        self, inputs: Tensor, states: Sequence[Tensor], lengths: Any, resets: Any
    ) -> dict[tuple[str, str], Tensor] | None:
        """What goes along with the sequence; None where it is not as it should be."""
        length, batch = inputs.shape[:2]
        call = Call(inputs, None, length, batch, self.device, sequences=[(self.sequence, inputs)])
        call.states = list(zip(self.names, states, strict=True))
        try:
            call.lengths = checked_lengths(lengths, length, batch, self.device)
            call.resets = checked_mask("resets", resets, length, batch, self.device, Words())
        except LeporelloError:
            return None
        if lengths is not None:
            times = self.times  # of this moment: other threads may call too
            call.times = times if times is not None and len(times) == length else times_of(call)
            self.times = call.times
        if resets is not None:
            tree = self.state_tree(list(states))
            call.initial = initial_of(self.cell, tree, batch, self.home)
        return of_the_call(call, self.plan.loop)

    def begin(self, state: Tree, batch: int) -> Sequence[Tensor] | None:
        """The state's leaves before the first step."""
        if state is None:
            if self.zeros is not None:
                if batch != self.begun[0]:
                    made = [torch.zeros(batch, *shape, dtype=dtype, device=self.device) for shape, dtype in self.zeros]
                    self.begun = (batch, made)
                return self.begun[1]
            leaves = leaves_of(fresh(self.cell, batch, self.home))
        else:
            leaves = [state] if isinstance(state, Tensor) else list(state)
            if any(not leaf.dim() or leaf.shape[0] != batch for leaf in leaves):
                return None
        return [leaf.detach() for leaf in leaves] if self.detached else leaves


def _floating(call: Call) -> torch.dtype | None:
    """The dtype of a fresh state."""
    return next((leaf.dtype for _, leaf in call.sequences if _floats(leaf)), None)


def _floats(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _zeros(cell: nn.Module, call: Call, given: bool) -> list[tuple[tuple[int, ...], torch.dtype]] | None:
    """The leaves of a state that begins with zeros; None where the cell makes its own."""
    if given or not isinstance(cell, Cell) or type(cell).initial_state is not Cell.initial_state or len(cell.initial):
        return None
    return [(tuple(leaf.shape[1:]), leaf.dtype) for _, leaf in call.states]


def _places(loop: Loop) -> tuple[list[int], list[int]]:
    """Where outputs and final states stand among the results; a state that is a shift has its end in a total."""
    ends = {port.name: index for index, port in enumerate(loop.outputs) if port.kind == "total"}
    outputs = [index for index, port in enumerate(loop.outputs) if port.kind == "sequence"]
    states = [
        ends.get(f"call.final.{port.name}", index) for index, port in enumerate(loop.outputs) if port.kind == "state"
    ]
    return outputs, states


def _builder(spec: Any, present: Sequence[bool] = ()) -> Callable[[list[Tensor]], Tree]:
    """From leaves to the user's tree."""
    if not all(present):

        def build(leaves: list[Tensor]) -> Tree:
            waiting = iter(leaves)
            return pytree.tree_unflatten([next(waiting) if there else None for there in present], spec)

        return build
    if spec.is_leaf():
        return lambda leaves: leaves[0]
    flat = all(child.is_leaf() for child in spec.children())
    if flat and spec.type is tuple:
        return tuple
    if flat and pytree.is_namedtuple_class(spec.context):
        kind = spec.context
        return lambda leaves: kind(*leaves)
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


class Single:
    """One form of a single step."""

    def __init__(self, warm: Warm, call: Call, run: Any) -> None:
        (_, sequence), *_ = call.sequences
        self.warm, self.one_step = warm, run
        self.engine, self.gradient = warm.engine, warm.gradient
        self.same, self.values = warm.watch.same, warm.values
        self.features, self.dtype, self.device = sequence.shape[2:], sequence.dtype, call.device
        self.leaves = [(leaf.shape[1:], leaf.dtype) for _, leaf in call.states]
        self.places = warm.plan.plain_places

    @classmethod
    def of(cls, warm: Warm, call: Call) -> Single | None:
        """For a warm call without gradients, if one function does its steps."""
        run = warm.plan.one_step
        return None if run is None else cls(warm, call, run)

    def run(self, x: Any, state: Any) -> tuple[Tree, Tree] | None:
        """Output and next state; None if the call is of another form, or the cell has changed."""
        if type(x) is not Tensor or torch.is_grad_enabled() or torch.is_autocast_enabled(self.device.type):
            return None
        if x.shape[1:] != self.features or x.dtype is not self.dtype or x.device != self.device:
            return None
        batch, warm = len(x), self.warm
        if not batch or type(state) is not warm.form_of_state:
            return None
        leaves = warm.begin(None, batch) if state is None else (state,) if type(state) is Tensor else state
        if leaves is None or len(leaves) != len(self.leaves):
            return None
        for leaf, (shape, dtype) in zip(leaves, self.leaves, strict=True):
            if type(leaf) is not Tensor or leaf.dtype is not dtype or leaf.device != self.device:
                return None
            if not leaf.dim() or leaf.shape[1:] != shape or len(leaf) != batch:
                return None
        with CELL_LOCK:
            if not self.same():
                return None
            values = self.values(x, leaves, 1, batch, None)
        results = self.one_step(batch, *[values[place] for place in self.places])
        return warm.in_trees(results)


@dataclass(frozen=True, eq=False)
class KnownStep:
    """How a step is run, for as long as its input has this form and the network stays as it is.

    asked     the engine, as the network names it
    home      device and dtype of a fresh state
    names     of the state's leaves
    learned   for each of them whether the initial state's has a gradient
    form      of the input; None where it must be looked at every time
    """

    plan: Plan
    carried: CarryingLoop
    asked: str
    home: dict[str, Any]
    batch: int
    names: list[str]
    learned: list[bool]
    form: Hashable
    watch: Watch
    gather: Gathering

    @staticmethod
    def of(cell: nn.Module, call: Call, plan: Plan, carried: CarryingLoop, asked: str, x: Tree) -> KnownStep:
        names, learned = [name for name, _ in call.states], [leaf.requires_grad for _, leaf in call.states]
        home = home_of(cell, call.sequences, call.state)
        form, gather = _form(x, home["device"]), gathering(plan.loop, cell, names)
        return KnownStep(plan, carried, asked, home, call.batch, names, learned, form, Watch(cell), gather)

    def fits(self, x: Tree, asked: str) -> bool:
        """Whether a step with this input is run so too."""
        return (
            self.form is not None
            and self.form == _form(x, self.home["device"])
            and self.asked == asked
            and self.watch.same()
        )


def _form(x: Tree, device: torch.device) -> Hashable:
    if x is None:
        return (autocast_mode(device),)
    if type(x) is not Tensor or x.requires_grad:
        return None
    return (autocast_mode(device), x.shape, x.dtype, x.device)
