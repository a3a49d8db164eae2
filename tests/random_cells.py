"""Random small cells: a `Program` is a step as a list of operators over the values of one row; a `RandomCell` runs it.

`tests/random_programs.py` draws programs. A leaf whose name begins with z holds complex numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.loop.state import leaves_of, state_of
from tests.random_operators import OPERATORS, Operator, Shape
from tests.wild.kinds import KINDS

EVERY: dict[str, Operator] = OPERATORS | {name: row for rows in KINDS.values() for name, row in rows.items()}

INPUTS: dict[str, dict[str, Shape | None]] = {  # the form of the input -> its leaves; None is an integer per row
    "x": {"x": (3,)},
    "one feature": {"x": (1,)},
    "matrix": {"x": (2, 3)},
    "integers": {"x": None},
    "tuple": {"x0": (3,), "x1": (1,)},
    "dict": {"x": (5,), "y": None},
    "dict with None": {"x": (3,)},
    "nest": {"x": (3,), "y": (5,)},
    "none": {},
    "complex": {"zx": (3,)},
}


@dataclass(frozen=True)
class Line:
    """name = operator(operands; parameters)."""

    name: str
    operator: str
    operands: tuple[str, ...]
    parameters: tuple[str, ...]
    number: int

    def __str__(self) -> str:
        number = f", {self.number}" if self.number else ""
        return f"{self.name} = {self.operator} ({', '.join([*self.operands, *self.parameters])}{number})"


@dataclass(frozen=True)
class Program:
    """A step: what it reads, its lines, what it gives."""

    form: str
    states: tuple[tuple[str, Shape], ...]
    parameters: tuple[tuple[str, Shape], ...]
    lines: tuple[Line, ...]
    output_form: str
    outputs: tuple[str, ...]
    following: tuple[str, ...]  # the value each state leaf hands on
    feedback: bool = False  # the leaf "o" is fed back
    fed: bool = False  # and the cell says how
    learned: bool = False
    context: tuple[str, ...] = ()  # its leaves

    @property
    def inputs(self) -> dict[str, Shape | None]:
        return INPUTS[self.form]

    def uses(self, *operators: str) -> bool:
        return any(line.operator in operators for line in self.lines)

    @property
    def draws(self) -> bool:
        return any(EVERY[line.operator].draws for line in self.lines)

    @property
    def refused(self) -> bool:
        """Whether some line is none that kernels cover."""
        return any(EVERY[line.operator].refused for line in self.lines)

    @property
    def used(self) -> set[str]:
        """Names of the parameters that some line mentions."""
        return {name for line in self.lines for name in line.parameters}

    def __repr__(self) -> str:
        states = ", ".join(f"{name} {list(shape)}" for name, shape in self.states)
        notes = [
            word for word, said in (("feedback o", self.feedback), ("fed", self.fed), ("learned", self.learned)) if said
        ]
        notes += [f"context {' '.join(self.context)}"] * bool(self.context)
        handed = ", ".join(f"{name} = {value}" for (name, _), value in zip(self.states, self.following, strict=True))
        return "\n".join(
            [
                f"Program: input {self.form} {self.inputs}, state {states or 'none'}"
                + "".join(f", {n}" for n in notes),
                *(f"    {line}" for line in self.lines),
                f"    output {self.output_form} of {', '.join(self.outputs)}; hands on {handed or 'nothing'}",
            ]
        )


class RandomCell(lp.Cell):
    """A program as a cell, in float64."""

    def __init__(self, program: Program) -> None:
        super().__init__(learned=program.learned, **dict(program.states))
        self.program = program
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(weight(index, shape)) for index, (name, shape) in enumerate(program.parameters)}
        )
        if program.feedback:
            self.feedback = "o"
        self.double()
        for index, initial in enumerate(self.initial.values()):
            initial.data.copy_(weight(100 + index, initial.shape))

    def initial_state(self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
        if not any(map(is_complex, self.state_names())):
            return super().initial_state(batch, device=device, dtype=dtype)
        state = super().initial_state(batch, device=device, dtype=torch.float64)
        leaves = zip(self.state_names(), leaves_of(state), strict=True)
        made = [leaf.to(torch.complex128) if is_complex(name) else leaf for name, leaf in leaves]
        return state_of(self.state_names(), made)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.run(x, state, {})

    def run(self, x: Any, state: Any, context: dict[str, Tensor]) -> tuple[Any, Any]:
        values = context | dict(zip(self.program.inputs, unpacked(x), strict=True))
        values |= dict(zip(self.state_names(), leaves_of(state) if self.program.states else [], strict=True))
        for line in self.program.lines:
            operands = [values[name] for name in line.operands]
            parameters = [self.weights[name] for name in line.parameters]
            values[line.name] = lp.named(EVERY[line.operator].run(operands, parameters, line.number), line.name)
        output = _formed(self.program.output_form, [values[name] for name in self.program.outputs])
        after = tuple(values[name] for name in self.program.following)
        return output, after[0] if len(after) == 1 else after


class FedCell(RandomCell):
    """A random cell that says what is fed back."""

    def feed(self, output: Any) -> Tensor:
        return torch.tanh(2 * next(leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)))


class ReadingCell(RandomCell):
    """A random cell that reads a context."""

    def forward(self, x: Any, state: Any, context: dict[str, Tensor]) -> tuple[Any, Any]:  # type: ignore[override]
        return self.run(x, state, context)


def cell_of(program: Program) -> RandomCell:
    if program.context:
        return ReadingCell(program)
    return FedCell(program) if program.fed else RandomCell(program)


def is_complex(name: str) -> bool:
    """Whether an input or a state of this name holds complex numbers."""
    return name.startswith("z")


def weight(index: int, shape: Sequence[Any]) -> Tensor:
    """A parameter's values: rows of matrices have an absolute sum below 1, vectors are small.

    A shape that ends in the word "complex" is that of a complex parameter.
    """
    if shape and shape[-1] == "complex":
        return torch.complex(weight(index, shape[:-1]), weight(index + 50, shape[:-1]))
    numbers = torch.Generator().manual_seed(index)
    drawn = torch.rand(tuple(shape), generator=numbers, dtype=torch.float64) * 2 - 1
    return drawn * 0.3 if len(shape) < 2 else drawn / drawn.abs().sum(-1, keepdim=True).clamp(min=1)


def packed(form: str, leaves: Sequence[Any]) -> Any:
    """Leaves in the form of the input."""
    if form == "tuple":
        return tuple(leaves)
    if form == "dict":
        return dict(zip("xh", leaves, strict=True))  # with the name of a state leaf
    if form == "dict with None":
        return {"none": None, "x": leaves[0]}
    if form == "nest":
        return {"x": leaves[0], "rest": [leaves[1]]}
    return leaves[0] if leaves else None


def unpacked(x: Any) -> list[Any]:
    return [leaf for leaf in leaves_of(x) if leaf is not None]


def _formed(form: str, leaves: Sequence[Any]) -> Any:
    """Values in the form of the output."""
    if form == "None":
        return None
    if form == "bare":
        return leaves[0]
    if form == "dict":
        return {f"o{index}": leaf for index, leaf in enumerate(leaves)}
    if form == "nest":
        return {"first": leaves[0], "rest": tuple(leaves[1:])}
    return (*leaves, None) if form == "tuple with None" else tuple(leaves)
