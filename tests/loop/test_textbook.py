"""The textbook's view of a step: which values are vertices, what is read for what, and which matrices are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, fx, nn
from torch.nn.functional import mse_loss

import leporello as lp
from leporello.draw.picture import Picture
from leporello.loop.diagram import RESETS, Diagram, held_results
from leporello.loop.graph import results
from leporello.loop.picture import Detail
from leporello.loop.textbook import textbook
from tests.cells.examples import EXAMPLES
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.loop.figures import lines, said, shown
from tests.random_cells import cell_of

X = torch.zeros(2, 3)
SEQUENCE = torch.zeros(5, 2, 3)
NEVER = torch.zeros(5, 2, dtype=torch.bool)

CELLS = {
    "Elman": "x -> h: U; h -> h: W, 1 later; h -> o: V",
    "Jordan": "x -> h: U; o -> h: W, 1 later; h -> o: V",
    "ElmanJordan": "x -> h: U; h -> h: W, 1 later; o -> h: R, 1 later; h -> o: V",
    "RNN": "x -> h: U; h -> h: W, 1 later",
    "RNN identity": "x -> h: U; h -> h: W, 1 later",
    "GRU": "x -> h: U; h -> h: W, 1 later",
    "GRU without bias": "x -> h: U; h -> h: W, 1 later",
    "LSTM": "x -> a: U; h -> a: W, 1 later; a -> c; c -> c: 1 later; a -> h; c -> h",
    "LSTM with projection": "x -> a: U; h -> a: W, 1 later; a -> c; c -> c: 1 later; a -> h: P; c -> h: P",
    "LayerNormLSTM": "x -> from_x: U; h -> from_h: W, 1 later; from_x -> c; from_h -> c; c -> c: 1 later;"
    "from_x -> h; from_h -> h; c -> h",
    "PeepholeLSTM": "x -> c: U; h -> c: W, 1 later; c -> c: 1 later; x -> h: U; h -> h: W, 1 later; c -> h",
    "ZoneoutLSTM": "x -> new_c: U; h -> new_c: W, 1 later; c -> new_c: 1 later; new_c -> c; c -> c: 1 later;"
    "new_c -> h; x -> h: U; h -> h: W, 1 later",
    "IndRNN": "x -> h: U; h -> h: 1 later",
    "MinGRU": "x -> h: Wz, Wh; h -> h: 1 later",
    "Leaky": "x -> h: U; h -> h: W, 1 later; h -> o: V",
    "Leaky current": "x -> h: U; h -> h: W, 1 later; h -> r; r -> o: V",
    "Leaky learned": "x -> h: U; h -> h: W, mask, 1 later; h -> o: V",
    "Perceptron": "x -> h: U; h -> o: V",
    "TimeDelay": "x -> o: K; x -> o: K, 1 later; x -> o: K, 2 later; x -> o: K, 3 later",
    "TimeDelay of two": "x -> o: K; x -> o: K, 1 later",
    "TimeDelay of one": "x -> o: K",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_built_in_cell_looks_like_its_equations(name: str) -> None:
    cell = EXAMPLES[name]()
    assert said(lp.fold(cell, torch.zeros(4, cell.inputs)).picture()) == lines(CELLS[name])


class Written(lp.Cell):
    """A cell from a function of (its matrices A to E, x, state)."""

    def __init__(self, step: Callable[..., Any], **leaves: int) -> None:
        super().__init__(**leaves)
        self.step = step
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(3, 3) for _ in range(5))

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.step(self, x, state)


def drawn(step: Callable[..., Any], x: Any = X, **leaves: int) -> Picture:
    return lp.fold(Written(step, **leaves), x).picture()


class FourStates(lp.Cell):
    """Four states in a row: each reads the one before it, and itself a step ago."""

    def __init__(self) -> None:
        super().__init__(a=3, b=3, c=3, d=3)
        self.A, self.B, self.C, self.D = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        a, b, c, d = state
        a = torch.tanh(self.A(x) + a)
        b = torch.tanh(self.B(a) * b)
        c = torch.tanh(self.C(b) + c)
        d = torch.tanh(self.D(c) - d)
        return d, (a, b, c, d)


def test_a_cell_of_four_states_has_four_delays() -> None:
    picture = lp.fold(FourStates(), X).picture()
    assert shown(picture) == ["x", "a", "b", "c", "d"]
    assert said(picture) == lines(
        "x -> a: A; a -> b: B; b -> c: C; c -> d: D; a -> a: 1 later; b -> b: 1 later; c -> c: 1 later; d -> d: 1 later"
    )


class WithLocals(lp.Cell):
    """e is read by a product, r feeds two values, q only one: q is no vertex."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.U, self.W, self.V, self.Q = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.relu(self.U(x))
        r = torch.sigmoid(self.W(h))
        q = torch.exp(h)
        h = torch.tanh(self.Q(e) + r * q)
        return self.V(h) * r, h


def test_a_local_is_drawn_where_a_product_reads_it_or_several_values_do() -> None:
    assert said(lp.fold(WithLocals(), X).picture()) == lines(
        "x -> e: U; e -> h: Q; h -> r: W, 1 later; h -> h: 1 later; r -> h; r -> o; h -> o: V"
    )


def test_a_product_with_a_gain_makes_no_vertex() -> None:
    class Gained(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Linear(3, 3)
            self.gain, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            s = torch.exp(x)
            h = torch.tanh(self.gain * s + self.W(h) + self.bias)
            return h, h

    assert said(lp.fold(Gained(), X).picture()) == lines("x -> h; h -> h: W, 1 later")


def test_biases_and_gains_are_not_written() -> None:
    written = " ".join(said(lp.fold(lp.LayerNormLSTM(3, 5), X).picture()))
    assert ("b" in written.split(), "gain" in written) == (False, False)


def test_more_than_three_matrices_are_counted_and_their_names_told() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(m.A(x) * m.B(x) + m.C(x) * m.D(x) + m.E(h))
        return h, h

    picture = drawn(step, h=3)
    assert said(picture) == lines("x -> h: 4 matrices; h -> h: E, 1 later")
    assert {line.tooltip for line in picture.lines} == {"A.weight, B.weight, C.weight, D.weight", "E.weight"}


def test_three_matrices_are_written_in_the_order_of_the_step() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        h = torch.tanh(m.C(torch.relu(m.B(torch.relu(m.A(x))))) + m.E(h))
        return h, h

    assert said(drawn(step, h=3)) == lines("x -> h: A, B, C; h -> h: E, 1 later")


def test_a_state_that_no_step_changes_goes_round_by_itself() -> None:
    assert said(drawn(lambda m, x, k: (m.A(x * k), k), k=3)) == lines("x -> o: A; k -> o: A; k -> k: 1 later")


def test_two_states_that_swap_cross() -> None:
    swapped = drawn(lambda m, x, s: (m.A(x * s[0]), (s[1], s[0])), a=3, b=3)
    assert said(swapped) == lines("x -> o: A; a -> o: A; a -> b: 1 later; b -> a: 1 later")


def test_three_states_in_a_ring_are_a_ring() -> None:
    ring = drawn(lambda m, x, s: (x * s[0], (s[1], s[2], s[0])), a=3, b=3, c=3)
    assert said(ring) == lines("x -> o; a -> o; b -> a: 1 later; c -> b: 1 later; a -> c: 1 later")


def test_a_state_that_is_the_input_is_the_input_a_step_ago() -> None:
    assert said(drawn(lambda m, x, h: (m.A(x) - m.B(h), x), h=3)) == lines("x -> o: A; x -> o: B, 1 later")


def test_a_state_handed_on_twice_waits_for_two_steps() -> None:
    shifted = drawn(lambda m, x, s: (m.A(s[1]), (torch.tanh(x), s[0])), a=3, b=3)
    assert said(shifted) == lines("x -> a; a -> o: A, 2 later")


def test_an_output_that_is_the_input_is_the_input() -> None:
    def step(m: Written, x: Tensor, h: Tensor) -> Any:
        return x, torch.tanh(m.A(x) + m.B(h))

    picture = drawn(step, h=3)
    assert shown(picture) == ["x", "h"]
    assert said(picture) == lines("x -> h: A; h -> h: B, 1 later")


def test_an_output_that_is_the_state_before_the_step_reads_it_late() -> None:
    picture = drawn(lambda m, x, h: (h, torch.tanh(m.A(x) + m.B(h))), h=3)
    assert said(picture) == lines("x -> h: A; h -> h: B, 1 later; h -> o: 1 later")


def test_two_states_that_hand_on_one_value_are_one_vertex() -> None:
    def step(m: Written, x: Tensor, state: Any) -> Any:
        h = torch.tanh(m.A(state.a) + m.B(state.b) + x)
        return h, (h, h)

    assert said(drawn(step, a=3, b=3)) == lines("x -> a; a -> a: A, B, 1 later")


def test_a_stack_has_an_index_for_each_layer() -> None:
    loop = lp.fold(lp.Stack(lp.Elman(3, 5, 4), lp.Elman(4, 5, 2)), X)
    assert said(loop.picture()) == lines(
        "x -> h0: U0; h0 -> h0: W0, 1 later; h0 -> x1: V0; x1 -> h1: U1; h1 -> h1: W1, 1 later; h1 -> o: V1"
    )


def test_a_stack_of_lstms_keeps_the_states_of_its_layers_apart() -> None:
    layer = "h{0} -> a{0}: W{0}, 1 later; a{0} -> c{0}; c{0} -> c{0}: 1 later; a{0} -> h{0}; c{0} -> h{0};"
    loop = lp.fold(lp.Stack(lp.LSTM(3, 5), lp.LSTM(5, 5)), X)
    assert said(loop.picture()) == lines(f"x -> a0: U0; h0 -> a1: U1; {layer.format(0)} {layer.format(1)}")


def test_matrices_that_would_look_the_same_keep_their_dots() -> None:
    class Twice(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.first, self.second = nn.Module(), nn.Module()
            self.first.W, self.second.W, self.second.U = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.first.W(h) + self.second.W(self.second.U(x)))
            return h, h

    assert said(lp.fold(Twice(), X).picture()) == lines("x -> h: second.W, U; h -> h: first.W, 1 later")


def test_layers_of_a_sequential_are_indices() -> None:
    class Deep(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.net(torch.cat([x, h], -1)))
            return h, h

    assert said(lp.fold(Deep(), X).picture()) == lines("x -> h: net0, net2; h -> h: net0, net2, 1 later")


def test_a_state_called_like_the_input_gets_a_prime() -> None:
    picture = lp.fold(Written(lambda m, x, h: (m.A(h), torch.tanh(m.B(h) + x)), x=3), X).picture()
    assert said(picture) == lines("x -> x'; x' -> x': B, 1 later; x' -> o: A, 1 later")


def test_an_input_called_like_a_state_or_an_output_is_another_vertex() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(x["state"]["h"] + x["output"]["o"] + m.A(h))
        return m.B(h), h

    picture = drawn(step, {"state": {"h": X}, "output": {"o": X}}, h=3)
    assert len({spot.id for spot in picture.spots}) == len(picture.spots) == 4
    assert len(set(shown(picture))) == 4


def test_inputs_in_a_dict_and_several_outputs_have_their_own_names() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(m.A(x["left"]) + m.B(h) + x["right"])
        return {"mean": m.C(h), "spread": h.exp()}, h

    picture = drawn(step, {"left": X, "right": X}, h=3)
    assert said(picture) == lines("left -> h: A; right -> h; h -> h: B, 1 later; h -> mean: C; h -> spread")


def test_an_input_called_y_is_an_input_where_there_is_no_loss() -> None:
    def step(m: Written, x: Any, h: Tensor) -> Any:
        h = torch.tanh(m.A(x["y"]) + m.B(h))
        return h, h

    loop = lp.fold(Written(step, h=3), {"y": X})
    for detail in ("textbook", "function"):
        (spot,) = (spot for spot in loop.picture(detail).spots if spot.name.base == "y")
        assert not spot.above


def test_a_loss_reads_the_output_and_the_target() -> None:
    picture = lp.fold(lp.Elman(3, 5, 2), X, loss=mse_loss).picture()
    assert said(picture) == lines("x -> h: U; h -> h: W, 1 later; h -> o: V; o -> L; y -> L")
    assert [str(spot.name) for spot in picture.spots if spot.above] == ["y"]


def test_a_state_that_reads_nothing_is_still_drawn() -> None:
    picture = drawn(lambda m, x, h: (m.A(h) + x, torch.zeros_like(h)), h=3)
    assert said(picture) == lines("x -> o; h -> o: A, 1 later")


@pytest.mark.parametrize(
    "options",
    [{"resets": NEVER}, {"lengths": torch.tensor([5, 2])}, {"resets": NEVER, "lengths": torch.tensor([5, 2])}],
)
def test_resets_and_lengths_leave_the_picture_as_it_is(options: dict[str, Tensor]) -> None:
    for cell in (lp.Elman(3, 5, 2), lp.LSTM(3, 5), lp.TimeDelay(3, 2, 3), lp.Elman(3, 5, 2, learned=True)):
        loop = lp.fold(lp.Recurrent(cell), SEQUENCE, **options)
        assert said(loop.picture()) == said(lp.fold(cell, X).picture())


def test_a_coin_puts_what_is_fed_back_between_output_and_target() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2), forcing=NEVER)
    assert said(loop.picture()) == lines("x -> h: U; o' -> h: W, 1 later; h -> o: V; o -> o'; y -> o'")


def test_a_forced_net_reads_the_target_a_step_later() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(net, SEQUENCE, targets=torch.zeros(5, 2, 2))
    assert said(loop.picture()) == lines("x -> h: U; y -> h: W, 1 later; h -> o: V")


def test_a_target_fed_back_and_another_compared_with_are_two() -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2))
    loop = lp.fold(
        net,
        SEQUENCE,
        targets=torch.zeros(5, 2, 2),
        loss=nn.functional.cross_entropy,
        target=torch.zeros(2, dtype=torch.int64),
    )
    picture = loop.picture()
    assert len({spot.id for spot in picture.spots}) == len(picture.spots)
    assert said(picture) == lines("x -> h: U; y -> h: W, 1 later; h -> o: V; o -> L; y' -> L")


def ended(loop: lp.Loop) -> set[str]:
    view = textbook(loop)
    return {str(vertex.name) for vertex in view.vertices if vertex.key in view.ended}


def test_a_summary_asks_for_its_output_at_the_end_alone() -> None:
    head = nn.Linear(4, 2)
    assert ended(lp.fold(lp.Summary(lp.RNN(3, 4), head), SEQUENCE, loss=mse_loss)) == {"o", "L", "y"}
    assert ended(lp.fold(lp.Elman(3, 4, 2), X, loss=mse_loss)) == set()


def test_an_output_that_every_step_reads_does_not_stand_at_the_end_alone() -> None:
    loop = lp.fold(lp.ElmanJordan(3, 4, 2), X)
    apart = loop.replace(ended=("o",))
    assert said(apart.unfold(3).picture(times="around")) == said(loop.unfold(3).picture())


def test_what_must_run_step_by_step_is_marked() -> None:
    view = textbook(lp.fold(lp.Elman(3, 5, 2), X))
    assert {str(vertex.name) for vertex in view.vertices if vertex.stepwise} == {"h"}
    assert {edge.names[0].base for edge in view.edges if edge.stepwise} == {"W"}


def test_the_sizes_of_values_are_told() -> None:
    picture = lp.fold(lp.Elman(3, 5, 2), X, loss=mse_loss).picture()
    told = {str(spot.name): spot.tooltip for spot in picture.spots}
    assert (told["x"], told["h"], told["L"]) == ("3 values per row", "5 values per row", "one value per row")


def _plain(case: Case) -> Case:
    arguments = dataclasses.replace(case.arguments, lengths=False, resets=False, forcing="")
    return dataclasses.replace(case, arguments=arguments)


def _folded(case: Case) -> lp.Loop:
    cell = cell_of(case.program)
    tensors = tensors_of(case, cell)
    return lp.Recurrent(cell).fold(tensors.inputs, tensors.state, **tensors.options)


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_a_diagram_is_one_step_of_its_loop(case: Case) -> None:
    loop = _folded(case)
    view = textbook(loop)
    keys = [vertex.key for vertex in view.vertices]
    assert len(set(keys)) == len(keys)
    assert len({vertex.name for vertex in view.vertices}) == len(keys)
    assert {end for edge in view.edges for end in (edge.source, edge.target)} <= set(keys)
    assert _is_acyclic(view)
    handed_on = list(zip(loop.outputs, held_results(loop, RESETS), strict=True))
    for port, node in handed_on:
        if port.kind == "state" and node.op == "call_function":
            assert {f"state.{other.name}" for other, same in handed_on if same is node} & set(keys), port.name


def _is_acyclic(view: Diagram) -> bool:
    """Whether what one step does can be done in some order."""
    left = {vertex.key for vertex in view.vertices}
    waiting = {(edge.source, edge.target) for edge in view.edges if not edge.delay}
    while ready := left - {target for _, target in waiting}:
        left -= ready
        waiting = {(source, target) for source, target in waiting if source in left}
    return not left


@pytest.mark.timeout(3600)
@cells(0.05)
@given(cases())
def test_an_input_reaches_an_output_in_the_drawing_where_it_does_in_the_graph(case: Case) -> None:
    steps = 3
    loop = _folded(_plain(case))
    strip = loop.unfold(steps)
    found = iter(results(strip.graph))
    outputs = {
        (port.name, time): next(found)
        for time in range(1, steps + 1)
        for port in loop.outputs
        if port.kind == "sequence"
    }
    graph = [(source, node) for node in strip.graph.nodes for source in node.all_input_nodes]
    details: list[tuple[Detail, str]] = [("textbook", "input"), ("operators", "sequence")]
    for detail, kind in details:
        picture = strip.picture(detail, times="numbers")
        drawn = [(line.source, line.target) for line in picture.lines]
        places = {spot.place for spot in picture.spots}
        ids = {(spot.place, spot.name.time): spot.id for spot in picture.spots}
        for node in strip.graph.nodes:
            if node.op == "placeholder" and node.meta.get("time") and node.meta["port"] is not None:
                port = loop.inputs[node.meta["port"]]
                if port.kind != "sequence":
                    continue
                in_graph = _reached(graph, node)
                in_drawing = _reached(drawn, ids.get((f"{kind}.{port.name}", str(node.meta["time"]))))
                for (name, time), output in outputs.items():
                    place = _place(loop, name, places)
                    if place:
                        assert (output in in_graph) == (ids[place, str(time)] in in_drawing), (detail, port.name, name)


def _place(loop: lp.Loop, output: str, places: set[str]) -> str | None:
    """Where an output is drawn: as itself, or as the state or the other output that it is."""
    named: list[tuple[str, str, fx.Node]] = [
        (port.kind, port.name, node) for port, node in zip(loop.outputs, held_results(loop), strict=True)
    ]
    own = next(node for kind, name, node in named if (kind, name) == ("sequence", output))
    words = {"state": "state", "sequence": "output"}
    others = [f"{words[kind]}.{name}" for kind, name, node in named if node is own]
    return next((place for place in [f"output.{output}", *others] if place in places), None)


def _reached(edges: Iterable[tuple[Any, Any]], start: Any) -> set[Any]:
    out: dict[Any, list[Any]] = {}
    for source, target in edges:
        out.setdefault(source, []).append(target)
    found, waiting = set(), [start]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += out.get(here, ())
    return found
