"""Random small cells: a step as a list of operators over the values of one row, drawn by hypothesis.

A drawn recipe (plain numbers) is resolved into a `Program` (readable lines), which a `RandomCell` runs. Every recipe
resolves: numbers choose among the operators and values that fit. So recipes shrink well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import leporello as lp
from leporello.loop.state import leaves_of
from tests.random_operators import CLASSES, OPERATORS, Operator, Shape

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
}
STATES: list[dict[str, Shape]] = [
    {"h": (3,)},
    {"h": (1,)},
    {"h": (5,), "c": (3,)},
    {"m": (2, 3)},
    {"h": (3,), "m": (2, 3)},
    {"a": (3,), "b": (3,), "c": (1,)},
    {},
]
OUTPUTS = ("bare", "tuple", "dict", "nest", "None", "tuple with None")
LARGEST = 24  # values of one row


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

    @property
    def inputs(self) -> dict[str, Shape | None]:
        return INPUTS[self.form]

    def uses(self, *operators: str) -> bool:
        return any(line.operator in operators for line in self.lines)

    @property
    def draws(self) -> bool:
        return any(OPERATORS[line.operator].draws for line in self.lines)

    @property
    def used(self) -> set[str]:
        """Names of the parameters that some line mentions."""
        return {name for line in self.lines for name in line.parameters}

    def __repr__(self) -> str:
        states = ", ".join(f"{name} {list(shape)}" for name, shape in self.states)
        notes = [
            word for word, said in (("feedback o", self.feedback), ("fed", self.fed), ("learned", self.learned)) if said
        ]
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

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        values = dict(zip(self.program.inputs, unpacked(x), strict=True))
        values |= dict(zip(self.state_names(), leaves_of(state) if self.program.states else [], strict=True))
        for line in self.program.lines:
            operands = [values[name] for name in line.operands]
            parameters = [self.weights[name] for name in line.parameters]
            values[line.name] = lp.named(OPERATORS[line.operator].run(operands, parameters, line.number), line.name)
        output = _formed(self.program.output_form, [values[name] for name in self.program.outputs])
        after = tuple(values[name] for name in self.program.following)
        return output, after[0] if len(after) == 1 else after


class FedCell(RandomCell):
    """A random cell that says what is fed back."""

    def feed(self, output: Any) -> Tensor:
        return torch.tanh(2 * next(leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)))


def cell_of(program: Program) -> RandomCell:
    return FedCell(program) if program.fed else RandomCell(program)


def weight(index: int, shape: Sequence[int]) -> Tensor:
    """A parameter's values: rows of matrices have an absolute sum below 1, vectors are small."""
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


@dataclass
class _Value:
    name: str
    sample: Tensor  # two rows
    bound: float

    @property
    def shape(self) -> Shape:
        return tuple(self.sample.shape[1:])

    @property
    def integers(self) -> bool:
        return not self.sample.is_floating_point()


class _Resolver:
    """Turns numbers into lines, one after another; the values made so far are what later lines choose among."""

    def __init__(self, inputs: dict[str, Shape | None], states: dict[str, Shape]) -> None:
        self.values: list[_Value] = []
        self.lines: list[Line] = []
        self.parameters: dict[str, Shape] = {}
        for name, shape in inputs.items():
            sample = torch.zeros(2, dtype=torch.int64) if shape is None else torch.rand(2, *shape, dtype=torch.float64)
            self.values.append(_Value(name, sample, CLASSES - 1 if shape is None else 1.0))
        for name, shape in states.items():
            self.values.append(_Value(name, torch.rand(2, *shape, dtype=torch.float64), 1.0))

    def possible(self, name: str) -> bool:
        return all(any(_fits(letter, value, []) for value in self.values) for letter in OPERATORS[name].takes)

    def line(self, name: str, choices: Sequence[int], number: int) -> None:
        """Add a line, unless its result would be too large."""
        operands = self._operands(OPERATORS[name], choices)
        if OPERATORS[name].fits(*(value.shape for value in operands)):
            self._add(name, operands, number)

    def _operands(self, operator: Operator, choices: Sequence[int]) -> list[_Value]:
        chosen: list[_Value] = []
        for letter, choice in zip(operator.takes, choices, strict=False):
            fitting = [value for value in self.values if _fits(letter, value, chosen)]
            chosen.append(fitting[-1 - choice % len(fitting)])
        return chosen

    def _add(self, name: str, operands: list[_Value], number: int) -> _Value | None:
        operator = OPERATORS[name]
        shapes = operator.weights([value.shape for value in operands], number)
        parameters = self._parameters(shapes, number)
        samples = [weight(0, shape) for shape in shapes]
        made = operator.run([value.sample for value in operands], samples, number)
        bound = operator.bound(*(value.bound for value in operands))
        if not 0 < made[0].numel() <= LARGEST or bound > 1e3:
            return None
        self.parameters.update(zip(parameters, shapes, strict=True))
        self.lines.append(
            Line(f"v{len(self.lines)}", name, tuple(value.name for value in operands), tuple(parameters), number)
        )
        self.values.append(_Value(self.lines[-1].name, made, bound))
        return self.values[-1]

    def _parameters(self, shapes: Sequence[Shape], number: int) -> list[str]:
        """Names of parameters of these shapes: every other time one that is there already."""
        names: list[str] = []
        for shape in shapes:
            there = [name for name, found in self.parameters.items() if found == shape and name not in names]
            fresh = len({*self.parameters, *names})
            names.append(there[-1] if there and number % 2 else f"P{fresh}")
        return names

    def handed_on(self, shape: Shape, choice: int) -> str:
        """A value that fits a state leaf, squashed or projected if need be."""
        fitting = [value for value in self.values if value.shape == shape and not value.integers]
        value = fitting[-1 - choice % len(fitting)] if fitting else self._projected(shape, choice)
        if value.bound > 1:
            squashed = self._add("tanh", [value], 0)
            assert squashed is not None
            value = squashed
        return value.name

    def _projected(self, shape: Shape, choice: int) -> _Value:
        """Some value through a linear map to this shape."""
        size = 6 if len(shape) == 2 else shape[0]
        vectors = [value for value in self.values if len(value.shape) == 1 and not value.integers]
        if not vectors:
            matrices = [value for value in self.values if len(value.shape) == 2]
            flat = self._add("flatten", matrices[-1:], 0) if matrices else self._add("one hot", [self._integer()], 0)
            assert flat is not None
            vectors = [flat]
        width = {3: 0, 1: 1, 5: 2, 6: 3}[size]
        made = self._add("linear", [vectors[-1 - choice % len(vectors)]], width)
        assert made is not None
        if len(shape) == 2:
            made = self._add("as matrix", [made], 0)
            assert made is not None
        return made

    def _integer(self) -> _Value:
        return next(value for value in self.values if value.integers and value.bound < CLASSES)

    def given_out(self, choices: Sequence[int]) -> list[str]:
        return [self.values[-1 - choice % len(self.values)].name for choice in choices]


def _fits(letter: str, value: _Value, chosen: list[_Value]) -> bool:
    if letter == "i":
        return value.integers and value.shape == () and value.bound < CLASSES
    if value.integers:
        return False
    axes = {"v": 1, "m": 2}.get(letter)
    if letter == "s" and chosen:
        return value.shape == chosen[0].shape
    return axes is None or len(value.shape) == axes


class Numbers:
    """Bytes as choices, one after another; zeros when they are spent."""

    def __init__(self, given: bytes) -> None:
        self.waiting = iter(given)

    def below(self, count: int) -> int:
        return next(self.waiting, 0) % count

    def among(self, things: Sequence[Any]) -> Any:
        return things[self.below(len(things))]

    def recent(self) -> int:
        """How far back to look for a value: mostly not far, so that most lines matter."""
        return self.among((0, 0, 0, 1, 1, 2, 3, 5))


SIZE = 64  # bytes: enough for ten lines and all that stands around them


@st.composite
def programs(draw: Any, **options: Any) -> Program:
    """A random step; options as for `program_of`.

    Drawn as one string of bytes: where many things are drawn, hypothesis repeats parts of earlier examples.
    """
    return program_of(Numbers(draw(st.binary(min_size=SIZE, max_size=SIZE))), **options)


def program_of(
    numbers: Numbers,
    *,
    draws: bool = True,
    smooth: bool = False,
    feedback: bool | None = None,
    without: Sequence[str] = (),
    most: int = 9,
) -> Program:
    """The step that a string of bytes stands for.

    draws      whether random numbers may be drawn in it
    smooth     whether it must be differentiable everywhere
    feedback   whether it has a feedback delay (None: sometimes)
    without    operators it must not hold
    most       lines at most
    """
    operators = [
        name
        for name, operator in OPERATORS.items()
        if (draws or not operator.draws) and (operator.smooth or not smooth) and name not in without
    ]
    forms = [form for form in INPUTS if not smooth or all(shape is not None for shape in INPUTS[form].values())]
    has_feedback = numbers.below(4) == 3 if feedback is None else feedback
    form = numbers.among(forms)
    states = dict(numbers.among([s for s in STATES if s or INPUTS[form] or has_feedback]))
    if has_feedback:
        states["o"] = (3,)
    resolver = _Resolver(INPUTS[form], states)
    for _ in range(1 + numbers.below(most)):
        name = numbers.among([name for name in operators if resolver.possible(name)])
        resolver.line(name, (numbers.recent(), numbers.below(8)), numbers.below(8))
    following = [resolver.handed_on(shape, numbers.recent()) for shape in states.values()]
    output_form = numbers.among(OUTPUTS[:4] if has_feedback else OUTPUTS)
    outputs = resolver.given_out([numbers.recent() for _ in range({"None": 0, "bare": 1}.get(output_form, 2))])
    fed = has_feedback and bool(numbers.below(2))
    if fed:
        outputs[0] = following[-1]
    if numbers.below(2):
        resolver.parameters["unused"] = (2,)
    return Program(
        form,
        tuple(states.items()),
        tuple(resolver.parameters.items()),
        tuple(resolver.lines),
        output_form,
        tuple(outputs),
        tuple(following),
        feedback=has_feedback,
        fed=fed,
        learned=numbers.below(4) == 3,
    )
