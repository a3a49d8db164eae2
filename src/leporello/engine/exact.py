"""The engine `exact`: the whole graph of a Loop, one step at a time, on rational numbers without rounding.

Parameters and inputs are finite floats, hence rationals with a power of two below; they are converted exactly. The
operators are those of `rational.py`; others are refused by name. There are no gradients. Numbers grow as they must: a
state may need more digits at every step.

`steps` and `run` take and give rational numbers. Behind `engine="exact"` a call takes tensors and gives tensors: all
that it gives is rounded once, at the end, and the state between two calls too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from leporello.engine.rational import OPERATORS, Exact
from leporello.engine.target import Target
from leporello.errors import ArgumentError, EngineRefusal
from leporello.loop.loop import Loop


def steps(
    loop: Loop,
    state: Mapping[str, Exact],
    inputs: Iterable[Mapping[str, Exact]],
    invariants: Mapping[str, Exact] | None = None,
) -> Iterator[tuple[dict[str, Exact], dict[str, Exact]]]:
    """Run the Loop step by step: yields the outputs and the states after each step, by name.

    state        the first state, by leaf: [rows, ...]
    inputs       for each step what the sequences of the Loop are, by name; empty mappings for a Loop without inputs
    invariants   by name; by default the present parameters of the cell
    """
    reason = refusal(loop)
    if reason is not None:
        raise reason
    if invariants is None:
        invariants = {port.name: _present(loop, port.name) for port in loop.inputs if port.kind == "invariant"}
    rows = next((leaf.shape[0] for leaf in state.values()), 1)
    fixed = _fixed(loop, invariants, rows)
    for given in inputs:
        results = _one_step(loop, fixed, {**given, **state}, rows)
        named = list(zip(loop.outputs, results, strict=True))
        state = {port.name: value for port, value in named if port.kind == "state"}
        yield {port.name: value for port, value in named if port.kind == "sequence"}, dict(state)


def run(
    loop: Loop,
    state: Mapping[str, Exact],
    inputs: Sequence[Mapping[str, Exact]] | None = None,
    *,
    length: int = 0,
    invariants: Mapping[str, Exact] | None = None,
) -> tuple[list[dict[str, Exact]], dict[str, Exact]]:
    """The outputs of all steps and the last state, by name; `length` is the number of steps without inputs."""
    taken = list(steps(loop, state, [{}] * length if inputs is None else inputs, invariants))
    return [outputs for outputs, _ in taken], taken[-1][1] if taken else dict(state)


def refusal(loop: Loop) -> EngineRefusal | None:
    """Why this engine cannot run a Loop, naming what it does not cover; None if it can."""
    for port in (*loop.inputs, *loop.outputs):
        if port.kind in ("draw", "total") or port.dtype.is_complex or loop.reverse:
            return EngineRefusal(
                f"the engine 'exact' does not run '{port.name}'.",
                cell=loop.name,
                came="complex numbers" if port.dtype.is_complex else f"a {port.kind}",
                expected="sequences, parameters and states of real numbers",
                tries='engine="auto"',
            )
    for node in loop.nodes:
        if node.target not in OPERATORS:
            return EngineRefusal(
                f"the engine 'exact' does not cover the operator {node.target}.",
                cell=loop.name,
                line=node.meta.get("line"),
                expected=", ".join(sorted({str(one).split(".")[1] for one in OPERATORS})),
                tries='engine="auto"',
            )
    return None


def _present(loop: Loop, name: str) -> Exact:
    value = loop.invariant(name)
    if value is None:
        raise ArgumentError(f"the invariant '{name}' has no value.", tries="fold the cell, and pass that Loop")
    return Exact.of(value, name)


def _fixed(loop: Loop, invariants: Mapping[str, Exact], rows: int) -> dict[fx.Node, Any]:
    """The values that are the same at every step: the number of rows, invariants, and what depends on them alone."""
    first = next(iter(loop.graph.nodes))
    fixed: dict[fx.Node, Any] = {first: rows}
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.name in invariants and port.kind == "invariant":
            fixed[node] = invariants[port.name]
    for node in loop.nodes:
        if all(read in fixed for read in node.all_input_nodes):
            fixed[node] = _apply(node, fixed)
    return fixed


def _one_step(loop: Loop, fixed: Mapping[fx.Node, Any], given: Mapping[str, Exact], rows: int) -> list[Exact]:
    values = dict(fixed)
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        if port.kind != "invariant":
            if port.name not in given or given[port.name].shape != port.shape_of(0, rows)[-1 - len(port.shape) :]:
                raise ArgumentError(
                    f"the engine 'exact' needs a value for the {port.kind} '{port.name}'.",
                    came=f"shape {list(given[port.name].shape)}" if port.name in given else "nothing",
                    expected=f"shape {[rows, *port.shape]}",
                )
            values[node] = given[port.name]
    for node in loop.nodes:
        if node not in values:
            values[node] = _apply(node, values)
    return [values[node] for node in loop.results]


def _apply(node: fx.Node, values: Mapping[fx.Node, Any]) -> Exact:
    arguments, options = fx.node.map_arg((node.args, node.kwargs), lambda read: values[read])
    result: Exact = OPERATORS[node.target](*arguments, **options)
    return result


# ---- as an engine of a call


def _interpreted(loop: Loop) -> Callable[..., tuple[list[Tensor], list[Tensor]]]:
    """A sweep: (length, batch, *inputs) -> the outputs, and no states before each step."""

    def sweep(length: int, batch: int, *values: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        given = {
            port.key: Exact.zeros((batch, *port.shape)) if value is None else Exact.of(value, port.name)
            for port, value in zip(loop.inputs, values, strict=True)
        }
        named = {kind: {name: value for (of, name), value in given.items() if of == kind} for kind, _ in given}
        inputs = [
            {name: value.part(step) for name, value in named.get("sequence", {}).items()} for step in range(length)
        ]
        outputs, last = run(loop, named.get("state", {}), inputs, invariants=named.get("invariant", {}))
        results = []
        for port in loop.outputs:
            value = last[port.name] if port.kind == "state" else Exact.stack([step[port.name] for step in outputs])
            results.append(value.tensor(port.dtype).to(port.device))
        return results, []

    sweep.text = "# the engine 'exact' interprets the graph: nothing is generated\n"  # type: ignore[attr-defined]
    return sweep


EXACT = Target(name="exact", refuse=refusal, interpret=_interpreted)
