"""`Machine`: a Turing machine with one tape, and its direct interpreter.

The interpreter is what a compiled network is compared with. The tape is infinite in both directions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from leporello.errors import ArgumentError

State = Hashable
Symbol = Hashable
Transitions = Mapping[tuple[Any, Any], tuple[Any, Any, int]]  # (state, symbol) -> (state, symbol to write, move)
Tape = str | tuple[Any, ...]
MOVES = (-1, 0, 1)
MAX_STEPS = 10_000


@dataclass(frozen=True)
class Outcome:
    """What a machine did with an input.

    state    the state it is in
    tape     what is on the tape, blanks at both ends cut: a string, or a tuple where symbols are not single letters
    steps    how many steps it made
    halted   False where it was stopped after `max_steps`
    """

    state: State
    tape: Tape
    steps: int
    halted: bool = True


@dataclass(frozen=True)
class Configuration:
    """A machine between two steps.

    left    the symbols to the left of the head, the nearest first
    right   the symbol under the head, then those to the right of it

    Beyond both are blanks.
    """

    state: State
    left: tuple[Symbol, ...]
    right: tuple[Symbol, ...]


class Machine:
    """A Turing machine with one tape.

    states        all states, halting ones too
    alphabet      all symbols; the blank may be left out
    transitions   (state, symbol) -> (state, symbol to write, move), move -1 for left, 0 or 1 for right
    start         the state it starts in, with its head on the first symbol of the input
    halt          the states it halts in; transitions out of them are never taken
    blank         what is on all other cells of the tape

    Where there is no transition for a state and a symbol, the machine halts too, in that state: a machine that accepts
    and rejects needs no transitions for what it rejects.

    >>> machine = Machine(states={"on", "off"}, alphabet="1", start="on", halt={"off"},
    ...                   transitions={("on", "1"): ("on", "1", 1), ("on", "_"): ("off", "1", 0)})
    >>> machine.run("111")
    Outcome(state='off', tape='1111', steps=4, halted=True)
    """

    def __init__(
        self,
        *,
        states: Iterable[State],
        alphabet: Iterable[Symbol],
        transitions: Transitions,
        start: State,
        halt: Iterable[State],
        blank: Symbol = "_",
    ) -> None:
        self.states = _distinct("states", states)
        self.alphabet = (blank, *(symbol for symbol in _distinct("alphabet", alphabet) if symbol != blank))
        self.blank = blank
        self.start = start
        if isinstance(halt, str) and halt in self.states:  # not its letters
            halt = {halt}
        self.halt = frozenset(_distinct("halt", halt))
        self.transitions = dict(transitions)
        self._validate()

    def _validate(self) -> None:
        _refuse_unknown("start", [self.start], self.states, "state", "states")
        _refuse_unknown("halt", self.halt, self.states, "state", "states")
        for key, result in self.transitions.items():
            if not (isinstance(key, tuple) and len(key) == 2 and isinstance(result, tuple) and len(result) == 3):
                raise ArgumentError(
                    "the argument 'transitions' has an entry of another form.",
                    came=f"{key!r}: {result!r}",
                    expected="(state, symbol): (state, symbol to write, move)",
                )
            where = f"{key!r}: {result!r}"
            _refuse_unknown("transitions", [key[0], result[0]], self.states, "state", "states", where)
            _refuse_unknown("transitions", [key[1], result[1]], self.alphabet, "symbol", "alphabet", where)
            if isinstance(result[2], bool) or result[2] not in MOVES:
                raise ArgumentError(
                    "a transition moves the head by one cell at most.",
                    transition=where,
                    came=repr(result[2]),
                    expected="-1 for left, 0 or 1 for right",
                )

    def halts(self, state: State, symbol: Symbol) -> bool:
        """Whether the machine makes no step in that state on that symbol."""
        return state in self.halt or (state, symbol) not in self.transitions

    def symbols(self, given: Iterable[Symbol]) -> tuple[Symbol, ...]:
        """An input, checked: its symbols in order."""
        given = tuple(given)
        _refuse_unknown("input", given, self.alphabet, "symbol", "alphabet")
        return given

    def tape(self, symbols: Sequence[Symbol]) -> Tape:
        """The content of a tape, with blanks at both ends cut."""
        written = [place for place, symbol in enumerate(symbols) if symbol != self.blank]
        cut = tuple(symbols[written[0] : written[-1] + 1]) if written else ()
        letters = all(isinstance(symbol, str) and len(symbol) == 1 for symbol in self.alphabet)
        return "".join(map(str, cut)) if letters else cut

    def configurations(self, input: Iterable[Symbol] = ()) -> Iterator[Configuration]:
        """All configurations, from the start to the one the machine halts in; without an end if it does not halt."""
        state = self.start
        left: list[Symbol] = []  # the top of a stack is its last item
        right = list(reversed(self.symbols(input)))
        while True:
            yield Configuration(state, tuple(reversed(left)), tuple(reversed(right)))
            symbol = right.pop() if right else self.blank
            if self.halts(state, symbol):
                return
            state, written, move = self.transitions[state, symbol]
            right.append(written)
            if move == 1:
                left.append(right.pop())
            elif move == -1:
                right.append(left.pop() if left else self.blank)

    def run(self, input: Iterable[Symbol] = (), *, max_steps: int = MAX_STEPS) -> Outcome:
        """Run on an input until it halts, at most `max_steps` steps."""
        refuse_steps(max_steps)
        steps, last, halted = -1, Configuration(self.start, (), ()), True
        for last in self.configurations(input):
            steps += 1
            if steps == max_steps:
                halted = self.halts(last.state, last.right[0] if last.right else self.blank)
                break
        return self.outcome(last, steps, halted)

    def outcome(self, configuration: Configuration, steps: int, halted: bool) -> Outcome:
        tape = self.tape((*reversed(configuration.left), *configuration.right))
        return Outcome(configuration.state, tape, steps, halted)

    def __repr__(self) -> str:
        return f"<Machine: {len(self.states)} states, {len(self.alphabet)} symbols>"


def refuse_steps(max_steps: int) -> None:
    """Raise for a number of steps that is none."""
    if not isinstance(max_steps, int) or max_steps < 0:
        raise ArgumentError(
            "the argument 'max_steps' is no number of steps.", came=repr(max_steps), expected="an integer from 0 on"
        )


def _distinct(argument: str, given: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The items once each, in their order; those of a set in the order of their text, so that it is always the same."""
    try:
        items = tuple(sorted(given, key=repr) if isinstance(given, Set) else given)
        return tuple(dict.fromkeys(items))
    except TypeError as error:
        raise ArgumentError(
            f"the argument '{argument}' is no collection of hashable values.",
            came=repr(given),
            expected="a set, a list or a string of names",
        ) from error


def _refuse_unknown(
    argument: str,
    given: Iterable[Hashable],
    known: Iterable[Hashable],
    kind: str,
    source: str,
    transition: str | None = None,
) -> None:
    known = tuple(known)
    unknown = [item for item in given if item not in known]
    if unknown:
        raise ArgumentError(
            f"the argument '{argument}' has a {kind} that '{source}' does not list.",
            transition=transition,
            came=repr(unknown[0]),
            expected=", ".join(map(repr, known)),
        )
