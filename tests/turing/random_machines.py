"""Random machines with inputs, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from leporello.turing import Machine


@st.composite
def machines_and_inputs(draw: st.DrawFn, symbols: int = 4) -> tuple[Machine, str]:
    """A machine of up to four states and so many symbols, some transitions missing, and a tape that may hold blanks."""
    states = "ABCD"[: draw(st.integers(1, 4))] + "H"
    alphabet = "_xyz"[: draw(st.integers(1, symbols))]
    results = st.tuples(st.sampled_from(states), st.sampled_from(alphabet), st.sampled_from((-1, 0, 1)))
    keys = [(state, symbol) for state in states for symbol in alphabet]
    rules = {key: draw(results) for key in keys if draw(st.integers(0, 9))}
    machine = Machine(states=states, alphabet=alphabet, transitions=rules, start="A", halt={"H"})
    return machine, draw(st.text(alphabet, max_size=6))
