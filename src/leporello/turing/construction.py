"""From a machine to units: two layers of saturated-linear units that make one step of the machine in two of the net.

σ(z) = clamp(z, 0, 1). Between two steps of the machine the configuration is in these units:

    state, s        1 in the machine's state, 0 elsewhere
    right, move     the stack of the cells from the head on, in the unit of the last move; the other two are 0
    left, move      the stack of the cells before the head, likewise

The first layer reads. `top` units say which symbol is on top of a stack (see stack_code.py), and

    reading, s, i   σ(B right - 2 i + B (state s - 1)):   in state s, and the symbol under the head is at least i

so that "in state s on symbol i", the case of a transition, is the difference of two units. The second layer acts. Each
stack has a unit for every move, σ(the stack after that move + gate - 1), with gate 1 where the machine makes that move
and 0 elsewhere: a stack after a move is a linear map of what the first layer holds, in [0, 1), and the gate lets one
of three pass.

While one layer works, the other one is zero, and zeros stay zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leporello.turing.machine import MOVES, Machine, State
from leporello.turing.stack_code import base_of
from leporello.turing.units import Name, Sum, Units, total, unit

REWIND, EMIT, DONE, END, READY, PLACE = "rewind", "emit", "done", "end", "ready", "place"


@dataclass(frozen=True)
class Case:
    """What the net does in one case.

    when         1 in that case and 0 in all others, while the second layer works
    next_state   the name of the unit of the next state
    change       index of the symbol that is written, minus that of the symbol it replaces
    halts_in     the machine's state, where it halts
    """

    when: Sum
    next_state: Name
    change: int
    move: int
    halts_in: State = None
    halts: bool = False


def construct(machine: Machine, *, serial: bool) -> Units:
    """The units of a network that simulates the machine.

    serial   with units that read the tape one symbol a step before, and write it behind
    """
    size = len(machine.alphabet)
    base = base_of(size)
    units = Units(inputs=[*(("in", place) for place in range(size)), END] if serial else [])
    right = total(unit(("right", source)) for source in (*MOVES, *([READY] if serial else [])))
    left = total(unit(("left", move)) for move in MOVES)

    held = {"right": units.saturate("right", right), "left": units.saturate("left", left)}
    top = {
        name: [units.saturate((name, "top", place), base * stack - 2 * place) for place in range(size)]
        for name, stack in (("right", right), ("left", left))
    }
    cases = list(_transitions(machine, units, base, right, serial))
    if serial:
        cases += _output(units, size, base, right, left)
    _move(units, base, held, top, cases)
    started = _input(units, size, base) if serial else Sum()
    for name in [*(("state", state) for state in machine.states), *([REWIND, EMIT] if serial else [])]:
        entered = total(case.when for case in cases if case.next_state == name)
        units.saturate(name, entered + started if name == ("state", machine.start) else entered)
    for state in machine.states:
        halted = total(case.when for case in cases if case.halts and case.halts_in == state)
        units.outputs["halted", state] = halted
    return units


def _transitions(machine: Machine, units: Units, base: int, right: Sum, serial: bool) -> Iterator[Case]:
    """The cases of each state; neighbouring symbols that are treated alike are one case."""
    index = {symbol: place for place, symbol in enumerate(machine.alphabet)}
    for state in machine.states:
        here = unit(("state", state))
        kinds: list[tuple[Name, int, int, bool]] = []
        for symbol in machine.alphabet:
            if machine.halts(state, symbol):
                kinds.append((REWIND if serial else ("state", state), 0, 0, True))
            else:
                following, written, move = machine.transitions[state, symbol]
                kinds.append((("state", following), index[written] - index[symbol], move, False))
        first = [place for place, kind in enumerate(kinds) if place == 0 or kind != kinds[place - 1]]
        reached = [units.saturate(("reading", state, 0), here)]
        for place in first[1:]:
            argument = base * right - 2 * place + base * (here - 1)
            reached.append(units.saturate(("reading", state, place), argument))
        for place, one, beyond in zip(first, reached, [*reached[1:], Sum()], strict=True):
            following_unit, change, move, halts = kinds[place]
            yield Case(one - beyond, following_unit, change, move, state if halts else None, halts)


def _move(units: Units, base: int, held: dict[str, Sum], top: dict[str, list[Sum]], cases: list[Case]) -> None:
    """Both stacks after each move, gated. A symbol i is the digit 2 i + 1; on an empty stack is a blank, i = 0."""
    right, left = held["right"], held["left"]
    gate = {move: total(case.when for case in cases if case.move == move) for move in MOVES}
    change = {move: total(2 * case.change * case.when for case in cases if case.move == move) for move in MOVES}
    popped = {name: found[0] + 2 * total(found[1:]) for name, found in top.items()}  # 0 from an empty stack
    digit = {name: 1 + 2 * total(found[1:]) for name, found in top.items()}
    filled = right + (1 - top["right"][0]) / base  # with a blank on top where it is empty

    units.saturate(("right", -1), (filled + change[-1] / base) / base + digit["left"] / base + gate[-1] - 1)
    units.saturate(("right", 0), filled + change[0] / base + gate[0] - 1)
    units.saturate(("right", 1), base * right - popped["right"] + gate[1] - 1)
    units.saturate(("left", -1), base * left - popped["left"] + gate[-1] - 1)
    units.saturate(("left", 0), left + gate[0] - 1)
    units.saturate(("left", 1), (left + digit["right"] + change[1]) / base + gate[1] - 1)


def _input(units: Units, size: int, base: int) -> Sum:
    """Units that write what comes in, symbol by symbol, into a number; 1 in the step in which the machine starts.

    place     1/B, 1/B^2, ...: the value of the next digit, in one unit or the other as a symbol has just come or not; 0
              from the end mark on, 1/B again when the output is done
    digit     the digit that came in, times its place
    written   the number so far
    """
    place, written, ended = unit(PLACE) + unit("next place"), unit("written"), unit("ended")
    comes = total(unit(("in", index)) for index in range(size))
    units.saturate(PLACE, place - comes - unit(END) + units.outputs[DONE] / base)
    units.saturate("next place", place / base + comes - 1)
    for index in range(size):
        units.saturate(("digit", index), (2 * index + 1) * place + unit(("in", index)) - 1)
    units.saturate("written", written + total(unit(("digit", index)) for index in range(size)) - ended)
    units.saturate("ended", unit(END))
    units.saturate(("right", READY), written + ended - 1)
    return ended


def _output(units: Units, size: int, base: int, right: Sum, left: Sum) -> list[Case]:
    """Once the machine has halted: go to the left end of what it has visited; then right, giving symbol by symbol."""
    rewinding, emitting = unit(REWIND), unit(EMIT)
    at_end = units.saturate((REWIND, "reading"), rewinding)
    not_at_end = units.saturate((REWIND, "not at end"), base * left + base * (rewinding - 1))
    last = units.saturate((EMIT, "reading"), emitting)
    reached = [units.saturate((EMIT, place), base * right - 2 * place + base * (emitting - 1)) for place in range(size)]
    for place, (one, beyond) in enumerate(zip(reached, [*reached[1:], Sum()], strict=True)):
        units.outputs["out", place] = one - beyond
    units.outputs[DONE] = last - reached[0]
    return [
        Case(not_at_end, REWIND, 0, -1),
        Case(at_end - not_at_end, EMIT, 0, 0),
        Case(reached[0], EMIT, 0, 1),
    ]
