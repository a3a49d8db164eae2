"""`Wiring`: where the inputs of each sweep of a plan come from, as indices, so that a call needs no lookup by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any

from torch import Tensor, fx

from leporello.engine.sweep.placement import read_lagged
from leporello.engine.sweep.program import Program
from leporello.loop.loop import Loop
from leporello.loop.port import Port, PortKey, Role
from leporello.loop.value_classes import is_view
from leporello.rewrite.save import Saved


class Pool(IntEnum):
    """Where a sweep's input comes from: tensors of one of these lists."""

    VALUES = 0  # of the call, in the order of the Loop's inputs
    OUTPUTS = 1  # of the forward sweep
    BEFORES = 2  # states before each step
    KEPT = 3  # saved for the backward sweep
    GRADIENTS = 4  # of the Loop's outputs
    CONSTANTS = 5  # of the backward Loop
    WEIGHTS = 6  # of what each step passes back


PoolIndex = tuple[int, int]  # a pool, and an index into it
Shifted = tuple[int, int, int, bool]  # see `Wiring.lagged`
Pick = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Wiring:
    """The sources of all inputs of a plan's forward and backward sweep.

    forward     for each input of the forward sweep its index among the call's values
    kept        sources of what is saved for the backward sweep: values, outputs of the forward sweep, or states before
                each step
    backward    sources of the inputs of the backward sweep: values, kept, gradients, constants or weights
    constants   of the backward Loop
    results     for each of the call's values the index of its gradient among the backward sweep's outputs, or None
    incoming    indices of the outputs whose gradient the backward sweep reads, with their ports
    fixed       indices of the outputs that have no gradient: those that are not floating
    clip_count  the index of the count of clipped gradients among the backward sweep's outputs, or None
    aliased     indices of the values whose gradient shares memory with an earlier one's, as that of two added biases
    lagged      for each kept sequence of a state that is a shifted input, which the forward sweep may leave out: its
                index among what is kept, those of the input and of the state's initial value among the values, and
                whether the backward sweep reads it without a copy (`Target.in_place`)
    sizes       the number of tensors in each pool, in the order of `Pool`
    """

    forward: tuple[int, ...]
    kept: tuple[PoolIndex, ...]
    backward: tuple[PoolIndex, ...]
    constants: tuple[Tensor, ...]
    results: tuple[int | None, ...]
    incoming: tuple[tuple[int, Port], ...]
    fixed: tuple[int, ...]
    clip_count: int | None
    aliased: tuple[int, ...]
    lagged: tuple[Shifted, ...]
    sizes: tuple[int, ...]

    @cached_property
    def forward_inputs(self) -> Pick:
        """A function from the call's values to the inputs of the forward sweep."""
        return _picking(self.forward)

    def kept_of(self, values: Sequence[Any], outputs: Sequence[Any], befores: Sequence[Any]) -> Sequence[Any]:
        """What is saved for the backward sweep.

        values    of the call
        outputs   of the forward sweep, with what it saves
        befores   the sequences of states before each step that it returns
        """
        return self._pick_kept((*values, *outputs, *befores))

    def backward_inputs(
        self, values: Sequence[Any], kept: Sequence[Any], gradients: Sequence[Any], weight: Tensor | None
    ) -> Sequence[Any]:
        """The inputs of the backward sweep.

        kept        as `kept_of` gives it
        gradients   of the Loop's outputs, as `incoming_gradients` gives them
        weight      of what each step passes back; None where nothing reads it
        """
        return self._pick_backward((*values, *kept, *gradients, *self.constants, weight))

    @cached_property
    def _pick_kept(self) -> Pick:
        return self._picking_from(self.kept, (Pool.VALUES, Pool.OUTPUTS, Pool.BEFORES))

    @cached_property
    def _pick_backward(self) -> Pick:
        return self._picking_from(self.backward, (Pool.VALUES, Pool.KEPT, Pool.GRADIENTS, Pool.CONSTANTS, Pool.WEIGHTS))

    def _picking_from(self, sources: Sequence[PoolIndex], pools: Sequence[Pool]) -> Pick:
        """A function that takes the sources from one sequence, which holds these pools one behind the other."""
        begins = dict(zip(pools, accumulate((self.sizes[pool] for pool in pools), initial=0), strict=False))
        return _picking([begins[Pool(pool)] + index for pool, index in sources])


def _picking(indices: Sequence[int]) -> Pick:
    """A function from a sequence to its items at these indices (`itemgetter` of one index would not give a tuple)."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda items: tuple(items[index] for index in indices)


def places_of(inputs: Sequence[Port], ports: Sequence[Port]) -> tuple[int, ...]:
    """For each input of a sweep its index among the inputs of a Loop."""
    places = {port.key: index for index, port in enumerate(ports)}
    return tuple(places[port.key] for port in inputs)


def wiring_of(
    loop: Loop,
    wanted: Sequence[bool],
    saved: Saved,
    forward_inputs: Sequence[Port],
    backward: Program,
    gradient: Loop,
) -> Wiring:
    """The wiring of a plan's sweeps.

    loop, wanted     of the plan
    saved            the pair of Loops that is run, with what passes between them
    forward_inputs   of the forward sweep
    backward         the program of the backward sweep
    gradient         the backward Loop before `save`, which holds the constants
    """
    values = {port.key: index for index, port in enumerate(loop.inputs)}
    outputs = {port.key: index for index, port in enumerate(saved.forward.outputs)}
    befores = {name: index for index, name in enumerate(saved.befores)}
    constants = list(gradient.constants.items())
    sources: dict[PortKey, PoolIndex] = {
        ("invariant", name): (Pool.CONSTANTS, index) for index, (name, _) in enumerate(constants)
    }
    sources |= {incoming_key(port): (Pool.GRADIENTS, i) for i, port in enumerate(loop.outputs) if port.is_floating}
    kept: list[PoolIndex] = []
    for port in saved.backward.inputs:
        source = _saved_source(port, values, outputs, befores)
        if source is not None:
            sources[port.key] = (Pool.KEPT, len(kept))
            kept.append(source)
        elif port.role is Role.WEIGHT:
            sources[port.key] = (Pool.WEIGHTS, 0)
    sources |= {key: (Pool.VALUES, index) for key, index in values.items() if key[0] == "invariant"}
    reads = tuple(sources[port.key] for port in backward.split.loop.inputs)
    incoming = {index for pool, index in reads if pool == Pool.GRADIENTS}
    gradients = {port.key: index for index, port in enumerate(saved.backward.outputs)}
    results = tuple(
        gradients.get(gradient_key(port)) if has_gradient else None
        for port, has_gradient in zip(loop.inputs, wanted, strict=True)
    )
    return Wiring(
        forward=places_of(forward_inputs, loop.inputs),
        kept=tuple(kept),
        backward=reads,
        constants=tuple(value for _, value in constants),
        results=results,
        incoming=tuple((index, loop.outputs[index]) for index in sorted(incoming)),
        fixed=tuple(index for index, port in enumerate(loop.outputs) if not port.is_floating),
        clip_count=next((i for i, port in enumerate(saved.backward.outputs) if port.role is Role.CLIP_COUNT), None),
        aliased=_aliased(results, [node for _, node in backward.outputs]),
        lagged=_lagged(saved, values, kept, backward),
        sizes=(len(values), len(outputs), len(befores), len(kept), len(loop.outputs), len(constants), 1),
    )


def _aliased(results: Sequence[int | None], outputs: Sequence[fx.Node]) -> tuple[int, ...]:
    """Indices of the call's values whose gradient is the same node as an earlier one's, or a view of the same.

    results   for each of the call's values the index of its gradient among `outputs`, or None
    outputs   of the backward program
    """
    seen: set[fx.Node] = set()
    aliased = []
    for index, place in enumerate(results):
        if place is not None:
            node = outputs[place]
            while is_view(node):
                node = node.all_input_nodes[0]
            if node in seen:
                aliased.append(index)
            seen.add(node)
    return tuple(aliased)


def _lagged(
    saved: Saved, values: dict[PortKey, int], kept: Sequence[PoolIndex], backward: Program
) -> tuple[Shifted, ...]:
    """`Wiring.lagged`, of the kept sequences of states before each step."""
    in_place = read_lagged(backward, {})
    inputs = zip(backward.split.loop.inputs, backward.inputs, strict=True)
    able = {port.of.name for port, node in inputs if port.role is Role.STATE_BEFORE and port.of and node in in_place}
    forward, states = saved.forward, list(saved.befores)
    ports = dict(zip(forward.placeholders, forward.inputs, strict=True))
    outputs = dict(zip([port.name for port in forward.outputs], forward.results, strict=True))
    found = []
    for place, (pool, index) in enumerate(kept):
        source = ports.get(outputs[saved.befores[states[index]]]) if pool == Pool.BEFORES else None
        if source is not None:
            initial = values["state", states[index]]
            found.append((place, values[source.key], initial, states[index] in able))
    return tuple(found)


def _saved_source(
    port: Port, values: dict[PortKey, int], outputs: dict[PortKey, int], befores: dict[str, int]
) -> PoolIndex | None:
    """The source of an input of the backward Loop that is a value of the forward sweep; None for other inputs."""
    if port.role is Role.SAVED:
        return (Pool.OUTPUTS, outputs[port.key])
    if port.of is None:
        return None
    if port.role is Role.STATE_BEFORE:
        return (Pool.BEFORES, befores[port.of.name])
    if port.role in (Role.FORWARD_INPUT, Role.FORWARD_DRAW):
        return (Pool.VALUES, values[port.of.key])
    if port.role is Role.FORWARD_OUTPUT:
        return (Pool.OUTPUTS, outputs[port.of.key])
    return None


def incoming_key(port: Port) -> PortKey:
    """Kind and name of the backward Loop's input that is the gradient of an output."""
    if port.kind == "state":
        return ("state", port.name)
    return ("sequence" if port.kind == "sequence" else "invariant", f"grad.{port.name}")


def gradient_key(port: Port) -> PortKey:
    """Kind and name of the backward Loop's output that is the gradient of an input: an invariant's is a total."""
    return ("total" if port.kind == "invariant" else port.kind, port.name)
