"""`Wiring`: where each sweep of a plan finds its inputs, as numbers, so that a call looks nothing up by name.

Knows the names that rewrites give to what passes between the sweeps; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from leporello.loop.port import Port
from leporello.rewrite.clip import CLIPPED

if TYPE_CHECKING:
    from leporello.engine.plan import Plan

WEIGHT = ("sequence", "call.weight")  # as the rewrite `weigh` names it
Key = tuple[str, str]  # kind and name of a port
VALUES, OUTPUTS, BEFORES, KEPT, GRADIENTS, CONSTANTS, WEIGHTS = range(7)
Source = tuple[int, int]  # one of these pools, and a place in it


@dataclass(frozen=True)
class Wiring:
    """Of one plan that is differentiated.

    forward    for each input of the forward sweep its place among the call's values
    kept       for each sequence that is handed over: among values, outputs of the forward sweep, or states before
    backward   for each input of the backward sweep: among values, kept, gradients, constants, weights
    results    for each of the call's values the place of its gradient among the backward sweep's outputs, or None
    heard      outputs whose gradient the backward sweep reads
    fixed      outputs that have no gradient
    clipped    the place of the count of clipped gradients among the backward sweep's outputs, or None
    """

    forward: tuple[int, ...]
    kept: tuple[Source, ...]
    backward: tuple[Source, ...]
    constants: tuple[Tensor, ...]
    results: tuple[int | None, ...]
    heard: tuple[tuple[int, Port], ...]
    fixed: tuple[int, ...]
    clipped: int | None


def forward_places(inputs: Sequence[Key], ports: Sequence[Port]) -> tuple[int, ...]:
    """For each input of a sweep its place among the values of a loop."""
    places: dict[Key, int] = {(port.kind, port.name): index for index, port in enumerate(ports)}
    return tuple(places[key] for key in inputs)


def wiring(plan: Plan) -> Wiring:
    """The wiring of a plan."""
    values = {(port.kind, port.name): index for index, port in enumerate(plan.loop.inputs)}
    outputs = {(port.kind, port.name): index for index, port in enumerate(plan.forward.loop.outputs)}
    befores = {name: index for index, name in enumerate(plan.saved.befores)}
    names, kept = [], []
    for port in plan.saved.backward.inputs:
        if port.kind != "sequence" or port.name.startswith("grad.") or (port.kind, port.name) == WEIGHT:
            continue
        prefix, _, name = port.name.partition(".")
        if prefix == "before":
            kept.append((BEFORES, befores[name]))
        elif prefix in ("input", "draw"):
            kept.append((VALUES, values["sequence" if prefix == "input" else "draw", name]))
        else:
            kept.append((OUTPUTS, outputs["sequence", name if prefix == "output" else port.name]))
        names.append(port.name)
    gradients = {arriving(port): index for index, port in enumerate(plan.loop.outputs) if floats(port)}
    constants = list(plan.gradient.constants.items())
    sources: dict[Key, Source] = {("invariant", name): (CONSTANTS, index) for index, (name, _) in enumerate(constants)}
    sources |= {key: (GRADIENTS, index) for key, index in gradients.items()}
    sources |= {("sequence", name): (KEPT, index) for index, name in enumerate(names)}
    sources |= {key: (VALUES, index) for key, index in values.items() if key[0] == "invariant"}
    sources[WEIGHT] = (WEIGHTS, 0)
    backward = tuple(sources[key] for key in plan.backward.inputs)
    heard = {place for pool, place in backward if pool == GRADIENTS}
    made = {(port.kind, port.name): index for index, port in enumerate(plan.backward.loop.outputs)}
    return Wiring(
        forward=forward_places(plan.forward.inputs, plan.loop.inputs),
        kept=tuple(kept),
        backward=backward,
        constants=tuple(value for _, value in constants),
        results=tuple(
            made.get(("total" if port.kind == "invariant" else port.kind, port.name)) if wanted else None
            for port, wanted in zip(plan.loop.inputs, plan.wanted, strict=True)
        ),
        heard=tuple((index, plan.loop.outputs[index]) for index in sorted(heard)),
        fixed=tuple(index for index, port in enumerate(plan.loop.outputs) if not floats(port)),
        clipped=made.get(("total", CLIPPED)),
    )


def floats(port: Port) -> bool:
    return port.dtype.is_floating_point or port.dtype.is_complex


def arriving(port: Port) -> Key:
    """How the backward loop names the gradient of an output."""
    if port.kind == "state":
        return ("state", port.name)
    return ("sequence" if port.kind == "sequence" else "invariant", f"grad.{port.name}")


def taken(sources: Sequence[Source], pools: Sequence[Sequence[Any]]) -> list[Any]:
    """What the sources name."""
    return [pools[pool][place] for pool, place in sources]
