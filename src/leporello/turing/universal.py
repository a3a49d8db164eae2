"""A universal machine: it reads the description of a machine and its tape, and does what that machine does.

The described machine has two symbols, the blank, written 0, and one other, written 1. On the tape of the universal
machine stand a block for each state, then the cells of the tape:

    !:0-+1:...;:...:...;0001A01

    ; or !   begins a block; ! the block of the present state. The last block is empty: there the machine halts
    : or *   begins an instruction, the first of a block for reading 0 and the second for 1; * is the one being executed
    + -      as many blocks to the right or to the left: the next state. p and n while they are counted
    0 1      what is written
    - 0 +    the move
    A B      0 and 1 on the cell under the described machine's head

So the program is an input. It is not in the weights.
"""

from __future__ import annotations

from collections.abc import Iterable

from leporello.errors import ArgumentError
from leporello.turing.machine import Machine, Symbol

ALPHABET = "_01AB-+np:*;!"
MARKED = {"0": "A", "1": "B"}


def universal_machine() -> Machine:
    """The machine that runs `description(machine, input)`."""
    rules: dict[tuple[str, str], tuple[str, str, int]] = {}

    def scan(state: str, move: int, found: dict[str, tuple[str, str, int]], over: str = ALPHABET[1:]) -> None:
        """In a state, go over some symbols in one direction, until one of those to be found."""
        rules.update({(state, symbol): (state, symbol, move) for symbol in over if symbol not in found})
        rules.update({(state, symbol): result for symbol, result in found.items()})

    # Which instruction: the state's block, and in it the one for the symbol under the head.
    scan("fetch", 1, {"A": ("block 0", "A", -1), "B": ("block 1", "B", -1)})
    scan("block 0", -1, {"!": ("first", "!", 1)})
    scan("block 1", -1, {"!": ("skip", "!", 1)})
    halts = {cell: ("halt", cell, 0) for cell in "01AB"}  # the empty block, and the tape behind it
    scan("first", 1, {":": ("jump", "*", 1), **halts}, over="")
    scan("skip", 1, {":": ("instruction", ":", 1), **halts}, over="")
    scan("instruction", 1, {":": ("jump", "*", 1)}, over="+-01")
    # The next state: for each + or - the mark ! goes to the next block on that side.
    scan("jump", 1, {"+": ("up", "p", -1), "-": ("down", "n", -1), "0": ("restore", "0", -1)}, over="np")
    rules["jump", "1"] = ("restore", "1", -1)
    scan("up", -1, {"!": ("set up", ";", 1), "_": ("find up", "_", 1)})
    scan("find up", 1, {"!": ("set up", ";", 1)})
    scan("set up", 1, {";": ("return", "!", -1)})
    scan("down", -1, {"!": ("set down", ";", -1), "_": ("find down", "_", 1)})
    scan("find down", 1, {"!": ("set down", ";", -1)})
    scan("set down", -1, {";": ("return", "!", -1)})
    scan("return", -1, {"*": ("jump", "*", 1), "_": ("return right", "_", 1)})
    scan("return right", 1, {"*": ("jump", "*", 1)})
    scan("restore", -1, {"p": ("restore", "+", -1), "n": ("restore", "-", -1), "*": ("write", ":", 1)}, over="")
    # Write and move: the symbol and the move are carried to the head.
    scan("write", 1, {bit: (f"write {bit}", bit, 1) for bit in "01"}, over="+-")
    for bit in "01":
        moves = {"-": -1, "0": 0, "+": 1}
        scan(f"write {bit}", 1, {sign: (f"write {bit}{sign}", sign, 1) for sign in moves}, over="")
        for sign, move in moves.items():
            stays = (f"block {bit}", MARKED[bit], -1)
            scan(f"write {bit}{sign}", 1, dict.fromkeys("AB", ("mark", bit, move) if move else stays))
    for cell, bit in (("0", "0"), ("_", "0"), ("1", "1")):
        rules["mark", cell] = (f"block {bit}", MARKED[bit], -1)
    # Where the head leaves the tape on the left, it is on a block's mark: there is no rule, and the machine halts.
    states = dict.fromkeys([*(key[0] for key in rules), "halt"])
    return Machine(states=states, alphabet=ALPHABET, transitions=rules, start="fetch", halt={"halt"})


def description(machine: Machine, input: Iterable[Symbol] = (), *, room: int = 0) -> str:
    """A machine of two symbols and its input, as the input of the universal machine.

    room   blank cells to the left of the input; the head may go so far. To the right the tape is infinite
    """
    if len(machine.alphabet) != 2:
        raise ArgumentError(
            "the universal machine runs machines of two symbols.",
            came=", ".join(map(repr, machine.alphabet)),
            expected="the blank and one more",
        )
    bit = {symbol: str(place) for place, symbol in enumerate(machine.alphabet)}
    order = [machine.start, *(state for state in machine.states if state not in (machine.start, *machine.halt))]
    if machine.start in machine.halt:
        order = []
    place = {state: index for index, state in enumerate(order)}
    blocks = []
    for state in order:
        block = ""
        for symbol in machine.alphabet:
            following, written, move = machine.transitions.get((state, symbol), (None, symbol, 0))
            distance = place.get(following, len(order)) - place[state]
            block += f":{'+' * distance}{'-' * -distance}{bit[written]}{'-0+'[move + 1]}"
        blocks.append(block)
    cells = [*"0" * room, *(bit[symbol] for symbol in machine.symbols(input))]
    cells += ["0"] * (room + 1 - len(cells))
    cells[room] = MARKED[cells[room]]
    return "!" + ";".join([*blocks, ""]) + "".join(cells)


def described_tape(machine: Machine, tape: str) -> str:
    """What the described machine has on its tape, of the tape that the universal machine leaves."""
    cells = tape.rpartition("!")[2].translate(str.maketrans("AB", "01"))
    return str(machine.tape([machine.alphabet[int(cell)] for cell in cells]))
