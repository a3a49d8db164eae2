"""Machines to try: each a function that makes one."""

from __future__ import annotations

from itertools import product

from leporello.turing.machine import Machine


def unary_increment() -> Machine:
    """111 -> 1111."""
    return Machine(
        states=["run", "end"],
        alphabet="1",
        start="run",
        halt={"end"},
        transitions={("run", "1"): ("run", "1", 1), ("run", "_"): ("end", "1", 0)},
    )


def binary_increment() -> Machine:
    """1011 -> 1100: go to the last digit, then carry to the left."""
    return Machine(
        states=["last", "carry", "end"],
        alphabet="01",
        start="last",
        halt={"end"},
        transitions={
            ("last", "0"): ("last", "0", 1),
            ("last", "1"): ("last", "1", 1),
            ("last", "_"): ("carry", "_", -1),
            ("carry", "1"): ("carry", "0", -1),
            ("carry", "0"): ("end", "1", 0),
            ("carry", "_"): ("end", "1", 0),
        },
    )


def palindrome() -> Machine:
    """Halts in `yes` if the input reads the same from both ends, else in `no`; it removes a letter at each end."""
    transitions = {("first", "_"): ("yes", "_", 0), ("back", "_"): ("first", "_", 1)}
    for letter, other in (("a", "b"), ("b", "a")):
        last, compare = f"last {letter}", f"compare {letter}"
        transitions |= {
            ("first", letter): (last, "_", 1),
            (last, "a"): (last, "a", 1),
            (last, "b"): (last, "b", 1),
            (last, "_"): (compare, "_", -1),
            (compare, letter): ("back", "_", -1),
            (compare, other): ("no", other, 0),
            (compare, "_"): ("yes", "_", 0),
            ("back", letter): ("back", letter, -1),
        }
    states = ["first", "last a", "last b", "compare a", "compare b", "back", "yes", "no"]
    return Machine(states=states, alphabet="ab", start="first", halt={"yes", "no"}, transitions=transitions)


def balanced_brackets() -> Machine:
    """Halts in `yes` if every bracket has its partner, else in `no`; pairs that are found become x."""
    return Machine(
        states=["close", "open", "check", "yes", "no"],
        alphabet="()x",
        start="close",
        halt={"yes", "no"},
        transitions={
            ("close", "("): ("close", "(", 1),
            ("close", "x"): ("close", "x", 1),
            ("close", ")"): ("open", "x", -1),
            ("close", "_"): ("check", "_", -1),
            ("open", "x"): ("open", "x", -1),
            ("open", "("): ("close", "x", 1),
            ("open", "_"): ("no", "_", 0),
            ("check", "x"): ("check", "x", -1),
            ("check", "("): ("no", "(", 0),
            ("check", "_"): ("yes", "_", 0),
        },
    )


def binary_addition() -> Machine:
    """101+11 -> 1000: the second number is counted down, and the first one up, until the second is 0."""
    transitions: dict[tuple[str, str], tuple[str, str, int]] = {
        ("right", "_"): ("down", "_", -1),
        ("down", "0"): ("down", "1", -1),
        ("down", "1"): ("left", "0", -1),
        ("down", "+"): ("clear", "_", 1),
        ("left", "+"): ("up", "+", -1),
        ("up", "1"): ("up", "0", -1),
        ("up", "0"): ("right", "1", 1),
        ("up", "_"): ("right", "1", 1),
        ("clear", "1"): ("clear", "_", 1),
        ("clear", "_"): ("end", "_", 0),
    }
    for symbol in "01+":
        transitions["right", symbol] = ("right", symbol, 1)
    for symbol in "01":
        transitions["left", symbol] = ("left", symbol, -1)
    states = ["right", "down", "left", "up", "clear", "end"]
    return Machine(states=states, alphabet="01+", start="right", halt={"end"}, transitions=transitions)


def busy_beaver() -> Machine:
    """Four states, two symbols: 107 steps from an empty tape, and 13 ones at the end, the most that any can write."""
    return Machine(
        states="ABCDH",
        alphabet="1",
        start="A",
        halt={"H"},
        transitions={
            ("A", "_"): ("B", "1", 1),
            ("A", "1"): ("B", "1", -1),
            ("B", "_"): ("A", "1", -1),
            ("B", "1"): ("C", "_", -1),
            ("C", "_"): ("H", "1", 1),
            ("C", "1"): ("D", "1", -1),
            ("D", "_"): ("D", "1", 1),
            ("D", "1"): ("A", "_", 1),
        },
    )


def copy() -> Machine:
    """abba -> abba=abba: each letter is marked with a capital while it is carried over."""
    transitions: dict[tuple[str, str], tuple[str, str, int]] = {
        ("mark", "_"): ("back", "=", -1),
        ("take", "="): ("end", "=", 0),
        ("home", "_"): ("take", "_", 1),
        ("back", "_"): ("take", "_", 1),
    }
    for letter in "ab":
        capital, carry = letter.upper(), f"carry {letter}"
        transitions |= {
            ("mark", letter): ("mark", letter, 1),
            ("back", letter): ("back", letter, -1),
            ("take", letter): (carry, capital, 1),
            (carry, "a"): (carry, "a", 1),
            (carry, "b"): (carry, "b", 1),
            (carry, "="): (carry, "=", 1),
            (carry, "_"): ("home", letter, -1),
            ("home", letter): ("home", letter, -1),
            ("home", capital): ("take", letter, 1),
        }
    transitions["home", "="] = ("home", "=", -1)
    states = ["mark", "back", "take", "carry a", "carry b", "home", "end"]
    return Machine(states=states, alphabet="abAB=", start="mark", halt={"end"}, transitions=transitions)


def zigzag() -> Machine:
    """Goes to and fro over what it has written, and adds a 1 at each end: it never halts, and its tape grows."""
    return Machine(
        states=["right", "left"],
        alphabet="1",
        start="right",
        halt=set(),
        transitions={
            ("right", "1"): ("right", "1", 1),
            ("right", "_"): ("left", "1", -1),
            ("left", "1"): ("left", "1", -1),
            ("left", "_"): ("right", "1", 1),
        },
    )


MACHINES = {
    "unary increment": (unary_increment, "1"),
    "binary increment": (binary_increment, "01"),
    "palindrome": (palindrome, "ab"),
    "balanced brackets": (balanced_brackets, "()"),
    "binary addition": (binary_addition, "01+"),
    "busy beaver": (busy_beaver, "1"),
    "copy": (copy, "ab"),
}  # those that halt, each with the letters of its inputs


def inputs_up_to(letters: str, length: int) -> list[str]:
    """All words of some letters, the empty one first, up to a length.

    >>> inputs_up_to("ab", 2)
    ['', 'a', 'b', 'aa', 'ab', 'ba', 'bb']
    """
    return ["".join(word) for size in range(length + 1) for word in product(letters, repeat=size)]
