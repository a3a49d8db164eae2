"""Random programs, drawn by hypothesis.

A drawn recipe (plain numbers) is resolved into a `Program` (readable lines). Every recipe resolves: numbers choose
among the operators and values that fit. So recipes shrink well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import leporello as lp
from tests.random_cells import EVERY, INPUTS, Line, Program, is_complex, weight
from tests.random_operators import CLASSES, OPERATORS, Operator, Shape
from tests.wild.contexts import CONTEXT, FEATURES
from tests.wild.kinds import KINDS

STATES: list[dict[str, Shape]] = [
    {"h": (3,)},
    {"h": (1,)},
    {"h": (5,), "c": (3,)},
    {"m": (2, 3)},
    {"h": (3,), "m": (2, 3)},
    {"a": (3,), "b": (3,), "c": (1,)},
    {},
]
WITH_MATRICES: list[dict[str, Shape]] = [
    {"h": (3,), "m": (2, 3)},
    {"m": (2, 3)},
    {"h": (5,), "c": (3,), "m": (2, 3)},
]
STATES_OF_KIND = {
    "convolutions": WITH_MATRICES,
    "products": WITH_MATRICES,
    "complex": [*STATES, *2 * [{"z": (3,)}, {"h": (3,), "z": (3,)}, {"z": (2, 3)}]],
}
OUTPUTS = ("bare", "tuple", "dict", "nest", "None", "tuple with None")
LARGEST = 24  # values of one row


@dataclass
class _Value:
    name: str
    sample: Tensor  # two rows
    bound: float
    letter: str = ""  # the only one that takes it

    @property
    def shape(self) -> Shape:
        return tuple(self.sample.shape if self.letter == "t" else self.sample.shape[1:])

    @property
    def is_complex(self) -> bool:
        return self.sample.is_complex()

    @property
    def integers(self) -> bool:
        return not self.sample.is_floating_point() and not self.is_complex

    @property
    def real(self) -> bool:
        """Whether it is some real numbers per row, as many in every call."""
        return self.sample.is_floating_point() and not self.letter


class _Resolver:
    """Turns numbers into lines, one after another; the values made so far are what later lines choose among."""

    def __init__(self, inputs: dict[str, Shape | None], states: dict[str, Shape], context: Sequence[str] = ()) -> None:
        self.values: list[_Value] = []
        self.lines: list[Line] = []
        self.parameters: dict[str, Shape] = {}
        for name in context:
            self.values.append(_context(name))
        for name, shape in (*inputs.items(), *states.items()):
            kind = torch.complex128 if is_complex(name) else torch.float64
            sample = torch.zeros(2, dtype=torch.int64) if shape is None else torch.rand(2, *shape, dtype=kind)
            self.values.append(_Value(name, sample, CLASSES - 1 if shape is None else 1.0))

    def possible(self, name: str) -> bool:
        return all(any(_fits(letter, value, []) for value in self.values) for letter in EVERY[name].takes)

    def line(self, name: str, choices: Sequence[int], number: int) -> None:
        """Add a line, unless no values fit or its result would be too large."""
        operands = self._operands(EVERY[name], choices)
        if operands is not None:
            self._add(name, operands, number)

    def _operands(self, operator: Operator, choices: Sequence[int]) -> list[_Value] | None:
        """The chosen values, or the nearest ones that fit together; None where none do."""

        def completed(chosen: list[_Value]) -> list[_Value] | None:
            place = len(chosen)
            if place == len(operator.takes):
                return chosen if operator.fits(*(value.shape for value in chosen)) else None
            fitting = [value for value in self.values if _fits(operator.takes[place], value, chosen)][::-1]
            first = choices[place] % len(fitting) if fitting else 0
            found = (completed([*chosen, value]) for value in fitting[first:] + fitting[:first])
            return next((one for one in found if one is not None), None)

        return completed([])

    def _add(self, name: str, operands: list[_Value], number: int) -> _Value | None:
        operator = EVERY[name]
        shapes = operator.weights([value.shape for value in operands], number)
        parameters = self._parameters(shapes, number)
        samples = [weight(0, shape) for shape in shapes]
        with lp.time.at(0):
            made = operator.run([value.sample for value in operands], samples, number)
        bound = operator.bound(*(value.bound for value in operands))
        if not 0 < made[0].numel() <= LARGEST or bound > 1e3:
            return None
        self.parameters.update(zip(parameters, shapes, strict=True))
        self.lines.append(
            Line(f"v{len(self.lines)}", name, tuple(value.name for value in operands), tuple(parameters), number)
        )
        self.values.append(_Value(self.lines[-1].name, made, bound, operator.gives))
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
        fitting = [value for value in self.values if value.shape == shape and value.real]
        value = fitting[-1 - choice % len(fitting)] if fitting else self._projected(shape, choice)
        return value.name if value.bound <= 1 else self._tanh(value)

    def _tanh(self, value: _Value) -> str:
        squashed = self._add("tanh", [value], 0)
        assert squashed is not None
        return squashed.name

    def complex_handed_on(self, shape: Shape, choice: int) -> str:
        """A complex value that fits a state leaf, squashed if need be; else one whose angle is a real value."""
        fitting = [value for value in self.values if value.shape == shape and value.is_complex]
        if fitting:
            value = fitting[-1 - choice % len(fitting)]
            squashed = self._add("squashed", [value], 0) if value.bound > 1 else value
        else:
            angle = next(value for value in self.values if value.name == self.handed_on(shape, choice))
            squashed = self._add("on the circle", [angle], 0)
        assert squashed is not None
        return squashed.name

    def projected(self, names: Sequence[str], shape: Shape) -> str | None:
        """The last value of one of these operators, through a linear map to this shape; None without one."""
        made = [line.name for line in self.lines if line.operator in names]
        found = [value for value in self.values if value.name in made and not value.integers and not value.letter]
        if not found:
            return None
        value = found[-1]
        if value.is_complex or len(value.shape) == 2:
            flat = self._add("both parts" if value.is_complex else "flatten", [value], 0)
            if flat is None:
                return None
            value = flat
        made_of = self._projected(shape, 0, [value])
        return made_of.name if made_of.bound <= 1 else self._tanh(made_of)

    def _projected(self, shape: Shape, choice: int, vectors: Sequence[_Value] = ()) -> _Value:
        """Some value, one of `vectors` where there are some, through a linear map to this shape."""
        size = 6 if len(shape) == 2 else shape[0]
        vectors = vectors or [value for value in self.values if len(value.shape) == 1 and value.real]
        if not vectors:
            matrices = [value for value in self.values if len(value.shape) == 2 and value.real]
            if matrices:
                flat = self._add("flatten", matrices[-1:], 0)
            elif planes := [value for value in self.values if value.is_complex]:
                flat = self._add("both parts", planes[-1:], 0)
            else:
                flat = self._add("one hot", [self._integer()], 0)
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
        possible = [value for value in self.values if not value.letter]
        return [possible[-1 - choice % len(possible)].name for choice in choices]


def _context(name: str) -> _Value:
    """A leaf of the context; memory and table have a length of their own in every call."""
    shapes = {"memory": (2, 4, FEATURES), "there": (2, 4), "table": (5, FEATURES), "gain": (2, FEATURES)}
    sample = torch.rand(shapes[name], dtype=torch.float64)
    letter = CONTEXT[name]
    return _Value(name, sample < 0.5 if letter == "b" else sample, 1.0, "" if letter == "v" else letter)


def _fits(letter: str, value: _Value, chosen: list[_Value]) -> bool:
    if value.letter or letter in "cbt":
        return letter == value.letter
    if value.is_complex or letter in "zy":
        return value.is_complex and (
            letter == "z" or (letter == "y" and (not chosen or value.shape == chosen[0].shape))
        )
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
    kinds: Sequence[str] = (),
) -> Program:
    """The step that a string of bytes stands for.

    draws      whether random numbers may be drawn in it
    smooth     whether it must be differentiable everywhere
    feedback   whether it has a feedback delay (None: sometimes)
    without    operators it must not hold
    most       lines at most
    kinds      of `tests/wild/kinds.py`: half of the lines, and the first of them, are of one of these, and mostly the
               first state leaf is made of the last one
    """
    kind = numbers.among(kinds) if kinds else ""
    operators = [
        name
        for name, operator in OPERATORS.items()
        if (draws or not operator.draws) and (operator.smooth or not smooth) and name not in without
    ]
    own = [name for name, operator in KINDS.get(kind, {}).items() if draws or not operator.draws]
    forms = [form for form in INPUTS if not smooth or all(shape is not None for shape in INPUTS[form].values())]
    forms = [form for form in forms if form != "complex" or kind == "complex"]
    has_feedback = numbers.below(4) == 3 if feedback is None else feedback
    form = numbers.among(forms)
    states = dict(numbers.among([s for s in STATES_OF_KIND.get(kind, STATES) if s or INPUTS[form] or has_feedback]))
    context = tuple(CONTEXT) if kind == "contexts" else ()
    if has_feedback:
        states["o"] = (3,)
    resolver = _Resolver(INPUTS[form], states, context)
    for index in range(1 + numbers.below(most)):
        wild = [name for name in own if resolver.possible(name)] if kind and (not index or numbers.below(2)) else []
        ordinary = [name for name in operators if resolver.possible(name)]
        if not wild and not ordinary:  # complex numbers alone
            continue
        name = numbers.among(wild or ordinary)
        resolver.line(
            name, [numbers.recent(), *(numbers.below(8) for _ in EVERY[name].takes[1:] or "1")], numbers.below(8)
        )
    following = []
    for name, shape in states.items():
        made = resolver.projected(own, shape) if kind and not following and numbers.below(4) else None
        if made is None or is_complex(name):
            made = (resolver.complex_handed_on if is_complex(name) else resolver.handed_on)(shape, numbers.recent())
        following.append(made)
    output_form = numbers.among(OUTPUTS[:4] if has_feedback else OUTPUTS)
    outputs = resolver.given_out([numbers.recent() for _ in range({"None": 0, "bare": 1}.get(output_form, 2))])
    fed = has_feedback and not context and bool(numbers.below(2))
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
        context=context,
    )
