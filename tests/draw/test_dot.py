"""DOT says what the picture says, whatever names are in it: read back by a strict reader, not by eye."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from leporello.draw.dot import dot
from leporello.draw.picture import Line, Name, Numbers, Picture, Spot
from tests.draw.hostile import HOSTILE, hostile_picture, hostile_strip
from tests.view.figures import Graph, read

SHAPES = {"circle": "circle", "box": "box", "parameter": "box", "operator": "circle", "point": "point"}


def spots(*names: str, **options: object) -> tuple[Spot, ...]:
    return tuple(Spot(name, Name(name), name, **options) for name in names)  # type: ignore[arg-type]


def picture(*lines: Line, **options: object) -> Picture:
    """Folded, with a circle for every end of a line."""
    ends = dict.fromkeys(end for line in lines for end in (line.source, line.target))
    return Picture("title", "", spots(*ends), lines, **options)  # type: ignore[arg-type]


def strip(columns: int, *lines: Line) -> Picture:
    """Circles `a@0`, `b@0` and so on, for the letters that lines speak of."""
    places = dict.fromkeys(end.split("@")[0] for line in lines for end in (line.source, line.target))
    found = tuple(
        Spot(f"{place}@{column}", Name(place, time=str(column)), place, column)
        for column in range(columns)
        for place in places
    )
    return Picture("title", "", found, lines)


def drawn(picture: Picture) -> Graph:
    return read(dot(picture))


def edge(graph: Graph, source: str, target: str) -> dict[str, str]:
    (found,) = [attributes for one, two, attributes in graph.seen if (one, two) == (source, target)]
    return found


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("made", [hostile_picture, hostile_strip])
def test_hostile_words_come_back_exactly(made, words: str) -> None:  # type: ignore[no-untyped-def]
    meant = made(words)
    graph = drawn(meant)
    assert graph.attributes["label"] == words
    assert {spot.id for spot in meant.spots} <= set(graph.nodes)
    for spot in meant.spots:
        assert graph.name(spot.id) == str(spot.name)
        assert graph.nodes[spot.id].get("tooltip", "") == spot.tooltip
        assert graph.nodes[spot.id]["shape"] == SHAPES[spot.shape]
    told = Counter(
        (
            *((target, source) if attributes.get("dir") == "back" else (source, target)),
            attributes.get("label", ""),
            attributes.get("tooltip", ""),
        )
        for source, target, attributes in graph.lines()
    )
    assert told == Counter((line.source, line.target, line.label, line.tooltip) for line in meant.lines)


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_captions_and_legends_come_back_exactly(words: str) -> None:
    graph = drawn(hostile_picture(words))
    rest = [attributes for id, attributes in graph.nodes.items() if id not in graph.squares][-2:]
    assert [attributes["label"] for attributes in rest] == [words, words]


def test_a_delay_is_one_black_square_on_the_line() -> None:
    graph = drawn(picture(Line("h", "h", (Name("W"),), delay=1)))
    (square,) = graph.squares
    looks = graph.nodes[square]
    assert (looks["label"], looks["fillcolor"], looks["style"], looks["fixedsize"]) == ("", "black", "filled", "true")
    assert edge(graph, "h", square)["arrowhead"] == "none"
    assert "label" not in edge(graph, "h", square)
    assert edge(graph, square, "h")["label"] == "W"
    assert "arrowhead" not in edge(graph, square, "h")


def test_lines_that_wait_for_longer_pass_through_the_same_squares() -> None:
    lines = [Line("x", "o", (Name(f"K{delay}"),), delay) for delay in (3, 1, 0, 2)]
    graph = drawn(picture(*lines))
    assert len(graph.squares) == 3
    waited = {graph.delay(source): attributes["label"] for source, target, attributes in graph.seen if target == "o"}
    assert waited == {0: "K0", 1: "K1", 2: "K2", 3: "K3"}


def test_two_lines_that_wait_for_as_long_share_their_square() -> None:
    graph = drawn(picture(Line("h", "a", delay=1), Line("h", "b", delay=1), Line("g", "b", delay=1)))
    assert Counter(graph.source(square) for square in graph.squares) == {"h": 1, "g": 1}


def test_a_spot_called_like_a_square_is_another_node() -> None:
    graph = drawn(picture(Line("h", "h delay 1", delay=1), Line("h delay 1", "caption 0"), captions={0: "words"}))
    assert len(graph.nodes) == 3 + 1 + 1
    assert [(source, target) for source, target, _ in graph.lines()] == [("h", "h delay 1"), ("h delay 1", "caption 0")]


def test_squares_stand_beside_their_source() -> None:
    graph = drawn(picture(Line("x", "h"), Line("h", "h", delay=2)))
    assert ("same", ["h", *graph.squares]) in graph.ranks


def test_what_waits_or_crosses_columns_lifts_nothing() -> None:
    folded = drawn(picture(Line("x", "h"), Line("o", "h", delay=1), Line("h", "o")))
    assert edge(folded, folded.squares[0], "h")["constraint"] == "false"
    assert "constraint" not in edge(folded, "h", "o")
    graph = drawn(strip(2, Line("x@0", "h@0"), Line("h@0", "h@1"), Line("x@0", "h@1")))
    assert edge(graph, "x@0", "h@1")["constraint"] == "false"
    assert "constraint" not in edge(graph, "x@0", "h@0")


def test_time_runs_up_the_columns_and_to_the_right() -> None:
    graph = drawn(strip(3, Line("x@0", "h@0"), Line("h@0", "h@1"), Line("h@1", "h@2")))
    assert graph.attributes["rankdir"] == "BT"
    assert graph.ranks == [("same", ["x@0", "x@1", "x@2"]), ("same", ["h@0", "h@1", "h@2"])]
    unseen = [(one, two) for one, two, attributes in graph.edges if attributes.get("style") == "invis"]
    assert unseen == [("x@0", "x@1"), ("x@1", "x@2")]  # the row of h is held by its own arrows
    for pair in (("h@0", "h@1"), ("h@1", "h@2")):
        assert "constraint" not in edge(graph, *pair)  # without it Graphviz would put h@0 anywhere, often to the right


def test_gradients_hold_no_row() -> None:
    graph = drawn(strip(2, Line("x@0", "h@0"), Line("h@0", "h@1", kind="gradient")))
    unseen = [(one, two) for one, two, attributes in graph.edges if attributes.get("style") == "invis"]
    assert ("h@0", "h@1") in unseen


def test_arrows_against_the_order_of_their_row_do_not_turn_it_round() -> None:
    graph = drawn(strip(2, Line("h@1", "h@0"), Line("x@1", "h@1")))
    assert edge(graph, "h@1", "h@0")["weight"] == "0"
    assert ("h@0", "h@1") in [(one, two) for one, two, attributes in graph.edges if attributes.get("style") == "invis"]


def test_a_target_stands_at_the_top() -> None:
    graph = drawn(Picture("", "", (*spots("o", "L"), *spots("y", above=True)), (Line("o", "L"), Line("y", "L"))))
    assert graph.ranks == [("sink", ["y"])]
    assert edge(graph, "y", "L") == {"constraint": "false"}


def test_gradients_are_dashed_and_cut_ones_dotted() -> None:
    graph = drawn(strip(3, Line("h@1", "h@0", kind="gradient"), Line("h@2", "h@1", kind="cut"), Line("x@0", "h@0")))
    assert edge(graph, "h@0", "h@1") == {"dir": "back", "style": "dashed", "constraint": "false"}
    assert edge(graph, "h@1", "h@2")["style"] == "dotted"
    assert edge(graph, "h@1", "h@2")["dir"] == "back"
    assert "grey" in edge(graph, "h@1", "h@2")["color"]
    assert "style" not in edge(graph, "x@0", "h@0")


def test_a_tint_without_a_legend_is_not_drawn() -> None:
    tinted = Picture("", "", spots("a", tint="one"), (), legend={"two": "other"})
    assert drawn(tinted).nodes["a"] == {"label": "a", "shape": "circle"}


def test_tints_differ_without_colour_too() -> None:
    ends = (*spots("a", tint="one"), *spots("b", tint="two"))
    lines = (Line("a", "b", tint="one"), Line("b", "a", delay=1, tint="two"))
    graph = drawn(Picture("", "", ends, lines, legend={"one": "1st", "two": "2nd"}))
    assert graph.nodes["a"]["fillcolor"] != graph.nodes["b"]["fillcolor"]
    assert graph.nodes["a"]["penwidth"] != graph.nodes["b"]["penwidth"]
    assert edge(graph, "a", "b")["penwidth"] == graph.nodes["a"]["penwidth"]
    keys = {attributes["label"]: attributes["fillcolor"] for id, attributes in graph.nodes.items() if "legend" in id}
    assert keys == {"1st": graph.nodes["a"]["fillcolor"], "2nd": graph.nodes["b"]["fillcolor"]}


def test_a_dashed_spot_keeps_its_fill() -> None:
    dashed = Picture("", "", spots("a", dashed=True, tint="one", shape="box"), (), legend={"one": "1st"})
    assert drawn(dashed).nodes["a"]["style"] == "filled,dashed"
    assert drawn(replace(dashed, legend={})).nodes["a"]["style"] == "dashed"


def test_a_caption_stands_below_its_column() -> None:
    graph = drawn(replace(strip(3, Line("x@1", "h@1")), captions={1: "… 94 steps …"}))
    (caption,) = (id for id, attributes in graph.nodes.items() if attributes["label"] == "… 94 steps …")
    assert graph.nodes[caption]["shape"] == "plaintext"
    assert ("source", [caption]) in graph.ranks
    assert (caption, "x@1", {"style": "invis"}) in graph.edges


def test_an_empty_picture_is_a_graph_too() -> None:
    assert drawn(Picture("", "", (), ())) == Graph({"label": "", "labelloc": "t", "rankdir": "BT"}, {}, [], [])


def test_the_same_picture_gives_the_same_text() -> None:
    assert dot(hostile_strip("h")) == dot(hostile_strip("h"))


INDEXED = {
    Name("W_xh"): "<W<SUB>xh</SUB>>",
    Name("h_t'", time="t-1"): "<h'<SUB>t</SUB>(t-1)>",
    Name("h", "1", "t"): "<h<SUB>1</SUB>(t)>",
    Name("W_h", "2"): "<W<SUB>h,2</SUB>>",
    Name("a<b & c", "1"): "<a&lt;b &amp; c<SUB>1</SUB>>",
    Name("new_state"): '"new_state"',
    Name("\\N", "1"): '"\\\\N1"',  # Graphviz would put the node's name there
    Name("a\nb", "1"): '"a\\nb1"',
}


@pytest.mark.parametrize(("name", "label"), INDEXED.items(), ids=map(str, INDEXED))
def test_an_index_is_set_below(name: Name, label: str) -> None:
    text = dot(Picture("", "", (Spot("a", name, "a"), Spot("p", name, "p", shape="point")), ()))
    assert f'"a" [label={label}, ' in text
    assert f'"p" [xlabel={label}, ' in text


def test_indices_of_matrices_are_set_below() -> None:
    both = picture(Line("x", "h", (Name("W_xh"), Name("U"), Name("b_h"))))
    assert '"x" -> "h" [label=<W<SUB>xh</SUB>, U, b<SUB>h</SUB>>];' in dot(both)


def test_an_index_stands_above_numbers_too() -> None:
    numbers = (Numbers((("0.5",), ("-1",)), ((1,), (-1,)), Name("∂L/∂h_t")),)
    text = dot(Picture("", "", (Spot("h", Name("h_t"), "h", shape="card", numbers=numbers, caption="a<b"),), ()))
    assert "label=<h<SUB>t</SUB><BR/>∂L/∂h<SUB>t</SUB><BR/>0.5<BR/> -1<BR/>a&lt;b>" in text


@pytest.mark.parametrize(
    "text",
    [
        'digraph { "a" [label=a]; }',
        'digraph { "a" [label=<a<B>1</B>>]; }',
        'digraph { "a" [label=<\\N<SUB>1</SUB>>]; }',
        'digraph { "a" [label="\\N"]; }',
        'digraph { "a" [label="&lt;"]; }',
        'digraph { "a" [label="two\nlines"]; }',
        'digraph { "a" -> "b"; }',
        'digraph { "a" [label="a"]; "a" [label="a"]; }',
        'digraph { "a" [label="a"] }',
    ],
)
def test_the_reader_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        read(text)
