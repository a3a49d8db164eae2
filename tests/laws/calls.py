"""A call of a random cell: its arguments as plain data, its tensors, its results by the plain loop and by engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.loop.context import plain_context
from leporello.loop.state import leaf_names, leaves_of, map_leaves, state_of
from leporello.nets.plain_loop import plain_loop
from tests.random_cells import Program, RandomCell, is_complex, packed
from tests.random_operators import CLASSES
from tests.random_programs import SIZE, Numbers, program_of
from tests.wild.contexts import FEATURES

LENGTHS = (2, 7, 1)
BATCHES = (3, 1)


@dataclass(frozen=True)
class Arguments:
    """Which arguments a call has; their numbers follow from `seed`.

    forcing   "": no targets; "always"; "mask"
    loss      what the loss is made of: "both", "outputs" or "final"; "sum" is a plain sum, whose gradient is one number
    frozen    what gets no gradient: "nothing", "inputs", "state", "parameters" or "every other parameter"
    """

    length: int
    batch: int
    seed: int
    state: bool = True
    lengths: bool = False
    resets: bool = False
    forcing: str = ""
    loss: str = "both"
    frozen: str = "nothing"
    window: int = 1024
    strided: bool = False  # inputs and state lie in memory with their axes exchanged
    begin: str = ""  # the number of the first step: "": 0; "number"; "rows": one per row
    sizes: tuple[int, int] = (4, 5)  # lengths of the memory and of the table of a context


@dataclass(frozen=True)
class Case:
    """A program and a call of it."""

    program: Program
    arguments: Arguments

    def __repr__(self) -> str:
        return f"Case(\n{self.program},\n{self.arguments})"


@st.composite
def cases(draw: Any, **options: Any) -> Case:
    """A random step and a random call of it; options as for `program_of`."""
    return case_of(Numbers(draw(st.binary(min_size=SIZE + 10, max_size=SIZE + 10))), **options)


def case_of(numbers: Numbers, **options: Any) -> Case:
    """The case that a string of bytes stands for."""
    chosen = Arguments(
        length=numbers.among(LENGTHS),
        batch=numbers.among(BATCHES),
        seed=numbers.below(16),
        state=bool(numbers.below(2)),
        lengths=bool(numbers.below(2)),
        resets=bool(numbers.below(2)),
        forcing=numbers.among(("", "mask", "always")),
        loss=numbers.among(("both", "outputs", "final", "sum")),
        frozen=numbers.among(("nothing", "nothing", "inputs", "state", "parameters", "every other parameter")),
        window=numbers.among((1024, 3, 6)),
        strided=numbers.below(4) == 3,
    )
    if "kinds" in options:
        sizes = (numbers.among((4, 1, 7, 2)), numbers.among((5, 3, 1, 8)))
        chosen = replace(chosen, begin=numbers.among(("", "number", "rows")), sizes=sizes)
    program = program_of(numbers, **options)
    if program.uses("neighbours"):  # a single element has none
        chosen = replace(chosen, sizes=(max(2, chosen.sizes[0]), chosen.sizes[1]))
    return Case(program, chosen if program.feedback else replace(chosen, forcing=""))


@dataclass(frozen=True)
class Tensors:
    """The tensors of a call."""

    inputs: Any
    state: Any
    options: dict[str, Any]

    def leaves(self, cell: RandomCell) -> dict[str, Tensor]:
        """What may get a gradient, by name."""
        found = {f"input {n}": v for n, v in zip(leaf_names(self.inputs, "x"), leaves_of(self.inputs), strict=True)}
        found |= {f"state {n}": v for n, v in zip(cell.state_names(), leaves_of(self.state), strict=False)}
        found |= {"targets": self.options["targets"]} if "targets" in self.options else {}
        found |= {f"context {n}": v for n, v in plain_context(self.options.get("context", {})).items()}
        found |= dict(cell.named_parameters())
        return {name: v for name, v in found.items() if isinstance(v, Tensor) and v.requires_grad}


@dataclass(frozen=True)
class Results:
    """Outputs, final states and gradients by name."""

    values: dict[str, Tensor | None]
    gradients: dict[str, Tensor | None]


def tensors_of(case: Case, cell: RandomCell) -> Tensors:
    """Fresh leaves with the numbers of a case; floats past a row's end are NaN, integers are no class at all."""
    program, arguments = case.program, case.arguments
    numbers = torch.Generator().manual_seed(arguments.seed)
    length, batch = arguments.length, arguments.batch
    lengths = torch.randint(1, length + 1, (batch,), generator=numbers)
    past = torch.arange(length).unsqueeze(1) >= lengths if arguments.lengths else torch.zeros(length, batch).bool()

    def floats(*shape: int) -> Tensor:
        return torch.rand(shape, generator=numbers, dtype=torch.float64) * 2 - 1

    def leaf(name: str, *shape: int) -> Tensor:
        return torch.complex(floats(*shape), floats(*shape)) / 2 if is_complex(name) else floats(*shape)

    def spoilt(value: Tensor) -> Tensor:
        anything = float("nan") if value.is_floating_point() or value.is_complex() else 10**6
        return value.masked_fill(past.reshape(length, batch, *[1] * (value.dim() - 2)), anything)

    leaves = [
        torch.randint(0, CLASSES, (length, batch), generator=numbers)
        if shape is None
        else leaf(name, length, batch, *shape)
        for name, shape in program.inputs.items()
    ]
    states = [leaf(name, batch, *shape) for name, shape in program.states]
    inputs = packed(program.form, [spoilt(leaf) for leaf in leaves])
    state = state_of([name for name, _ in program.states], states)
    options: dict[str, Any] = {}
    if arguments.lengths:
        options["lengths"] = lengths
    if arguments.resets:
        options["resets"] = torch.rand(length, batch, generator=numbers) < 0.4
    if arguments.forcing:
        options["targets"] = _wanted(spoilt(floats(length, batch, 3)), arguments.frozen != "inputs")
    if arguments.forcing == "mask":
        options["forcing"] = torch.rand(length, batch, generator=numbers) < 0.5
    if not leaves:
        options["steps"] = length
    if program.context:
        options["context"] = _context(arguments, floats, arguments.frozen != "inputs")
    if arguments.begin:
        first = torch.randint(0, 9, (batch,), generator=numbers)
        options["time"] = first if arguments.begin == "rows" else int(first[0])
    told = any(value.is_floating_point() for value in (*leaves, *cell.parameters()))  # in which precision to begin
    given = arguments.state or not leaves or not told  # without inputs the state alone tells the batch
    for index, parameter in enumerate(cell.parameters()):
        frozen = arguments.frozen == "parameters" or (arguments.frozen == "every other parameter" and index % 2 == 1)
        parameter.requires_grad_(not frozen)
    return Tensors(
        map_leaves(lambda leaf: _wanted(leaf, arguments.frozen != "inputs", arguments.strided), inputs),
        map_leaves(lambda leaf: _wanted(leaf, arguments.frozen != "state", arguments.strided), state)
        if given
        else None,
        options,
    )


def _context(arguments: Arguments, floats: Callable[..., Tensor], wanted: bool) -> dict[str, Any]:
    """A memory with its mask, a table that all rows share, and a vector per row."""
    batch, (memory, table) = arguments.batch, arguments.sizes
    there = floats(batch, memory) < 0.4
    there[:, 0] = True
    return {
        "memory": floats(batch, memory, FEATURES).requires_grad_(wanted),
        "there": there,
        "table": lp.shared(floats(table, FEATURES).requires_grad_(wanted)),
        "gain": floats(batch, FEATURES).requires_grad_(wanted),
    }


def _wanted(leaf: Any, wanted: bool, strided: bool = False) -> Any:
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    leaf = leaf.detach().clone()
    if strided:
        leaf = leaf.transpose(0, -1).contiguous().transpose(0, -1)
    return leaf.requires_grad_(wanted)


def draws_of(net: lp.Recurrent, tensors: Tensors) -> list[Tensor]:
    return net.draw(tensors.inputs, tensors.state, **tensors.options)


def by_plain_loop(cell: RandomCell, tensors: Tensors, draws: Sequence[Tensor]) -> tuple[Any, Any]:
    """What the call means."""
    call = checked_call(cell, tensors.inputs, tensors.state, **tensors.options)
    return plain_loop(cell, call, draws)


def named(outputs: Any, final: Any, cell: RandomCell) -> dict[str, Tensor | None]:
    """The leaves of a result by name."""
    values = {f"output {n}": v for n, v in zip(leaf_names(outputs, "o"), leaves_of(outputs), strict=True)}
    return values | {f"final {n}": v for n, v in zip(cell.state_names(), leaves_of(final), strict=True)}


def results(
    case: Case, cell: RandomCell, tensors: Tensors, run: Callable[[], tuple[Any, Any]], twice: bool = False
) -> Results:
    """Values, and the gradients of a random weighting of them; with `twice` those of a weighting of these too."""
    values = named(*run(), cell)
    sources = tensors.leaves(cell)
    heard = {"outputs": "output", "final": "final"}.get(case.arguments.loss, "")
    weighed = _ones if case.arguments.loss == "sum" else random_weights
    first = gradients(
        [v for n, v in values.items() if n.startswith(heard)], list(sources.values()), weighed, again=twice
    )
    found = dict(zip(sources, first, strict=True))
    if twice:
        second = gradients(first, list(sources.values()), random_weights)
        found |= {f"second {name}": value for name, value in zip(sources, second, strict=True)}
    return Results(
        {name: value if value is None else value.detach() for name, value in values.items()},
        {name: value if value is None else value.detach() for name, value in found.items()},
    )


def gradients(
    values: Sequence[Tensor | None], sources: Sequence[Tensor], weighed: Callable[..., Tensor], again: bool = False
) -> Sequence[Tensor | None]:
    """Gradients of a weighting of the values that have any."""
    weighted = [
        (value, weighed(value, index))
        for index, value in enumerate(values)
        if isinstance(value, Tensor) and value.requires_grad
    ]
    if not weighted or not sources:
        return [None] * len(sources)
    heard, weights = zip(*weighted, strict=True)
    return torch.autograd.grad(heard, sources, weights, allow_unused=True, create_graph=again)


def random_weights(value: Tensor, seed: int) -> Tensor:
    """The same numbers in every precision and on every device."""
    kind = torch.complex128 if value.is_complex() else torch.float64
    numbers = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=kind)
    return numbers.to(value)


def _ones(value: Tensor, seed: int) -> Tensor:
    return torch.ones((), dtype=value.dtype).expand(value.shape)
