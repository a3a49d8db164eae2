"""Mermaid says what the picture says, whatever names are in it: every line is one of a few forms, and reads back."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from leporello.draw.mermaid import STYLES, TINTS, mermaid
from leporello.draw.picture import Line, Name, Numbers, Picture, Spot
from tests.draw.hostile import HOSTILE, hostile_picture, hostile_strip

LABEL = r'"([^"]*)"'
NODE = re.compile(rf"([ndcl][0-9]+)(\(\(|\[){LABEL}(\)\)|\])(?::::(\w+))?")
ARROW = re.compile(rf"([ndc][0-9]+) (-->|-\.->|-\.-x|---|~~~)(?:\|{LABEL}\|)? ([ndc][0-9]+)")
PLAIN = re.compile(r"(?:#[0-9]+;|[^\x00-\x7f]|[A-Za-z0-9 (),.+_-])*")
MARKDOWN = re.compile(r"\s*(?:[-+*>](?:\s|$)|[0-9]+[.)](?:\s|$)|\s{4}|www\.|_|#\s)")  # what would make a line no text
COUNTERPARTS = {"((": "))", "[": "]"}


@dataclass
class Chart:
    """A flowchart, read."""

    direction: str = ""
    title: str = ""
    told: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name: bracket, label
    arrows: list[tuple[str, str, str, str]] = field(default_factory=list)  # source, arrow, label, target
    looks: dict[str, str] = field(default_factory=dict)  # of classes
    classes: dict[str, list[str]] = field(default_factory=dict)
    pens: list[str] = field(default_factory=list)

    def contracted(self) -> list[tuple[str, str, str, int, str]]:
        """Arrows between spots: source, arrow, label, squares on the way, target."""
        before = {target: source for source, arrow, _, target in self.arrows if arrow == "---"}
        found = []
        for source, arrow, label, target in self.arrows:
            if arrow in ("---", "~~~"):
                continue
            squares = 0
            while source.startswith("d"):
                source, squares = before[source], squares + 1
            found.append((source, arrow, label, squares, target))
        return found


def shown(written: str) -> str:
    """What Mermaid shows for a text in its quotes; fails on any sign that it might not show as it is."""
    assert written, "quotes with nothing in them are an error"
    lines = written.split("<br>")
    lines = [re.sub("<sub>([^<>]+)</sub>", r"\1", line) for line in lines]
    for line in lines:
        assert PLAIN.fullmatch(line), line
        assert not MARKDOWN.match(line), line
        assert "°" not in line
        assert "¶" not in line
    return "\n".join(re.sub(r"#([0-9]+);", lambda match: chr(int(match[1])), line) for line in lines)


def title_of(line: str) -> str:
    """A YAML string in double quotes, made of plain signs and numbered ones."""
    match = re.fullmatch(r'title: "((?:\\U[0-9a-f]{8}|[\w (),.+-])*)"', line)
    assert match, line
    return re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), match[1])


def read(text: str) -> Chart:
    """Line by line; a line of no known form is a failure."""
    chart = Chart()
    lines = text.removesuffix("\n").split("\n")
    if lines[0] == "---":
        assert lines[2] == "---"
        chart.title, lines = title_of(lines[1]), lines[3:]
    kind, chart.direction = lines[0].split(" ")
    assert (kind, chart.direction in ("LR", "BT")) == ("flowchart", True)
    for line in lines[1:]:
        assert line.startswith("  ")
        _take(chart, line[2:])
    known = set(chart.nodes)
    assert {end for source, _, _, target in chart.arrows for end in (source, target)} <= known
    assert {member for members in chart.classes.values() for member in members} <= known
    assert set(chart.classes) <= set(chart.looks)
    return chart


def _take(chart: Chart, line: str) -> None:
    key, _, rest = line.partition(" ")
    if node := NODE.fullmatch(line):
        assert COUNTERPARTS[node[2]] == node[4]
        assert node[1] not in chart.nodes
        chart.nodes[node[1]] = (node[2], shown(node[3]))
        if node[5]:
            chart.classes.setdefault(node[5], []).append(node[1])
    elif arrow := ARROW.fullmatch(line):
        chart.arrows.append((arrow[1], arrow[2], shown(arrow[3]) if arrow[3] is not None else "", arrow[4]))
    elif key in ("accTitle:", "accDescr:"):
        assert "<" not in rest
        chart.told[key[:-1]] = shown(rest)
    elif key == "classDef":
        name, look = rest.split(" ", 1)
        chart.looks[name] = look
    elif key == "class":
        members, name = rest.split(" ")
        chart.classes.setdefault(name, []).extend(members.split(","))
    else:
        assert re.fullmatch(r"linkStyle [0-9,]+ stroke-width:[0-9]px", line), line
        chart.pens.append(rest)


def circle(name: str, **options: object) -> Spot:
    return Spot(name, Name(name), name, **options)  # type: ignore[arg-type]


def picture(*lines: Line, **options: object) -> Picture:
    ends = dict.fromkeys(end for line in lines for end in (line.source, line.target))
    return Picture("title", "", tuple(map(circle, ends)), lines, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("made", [hostile_picture, hostile_strip])
def test_hostile_words_come_back_exactly(made, words: str) -> None:  # type: ignore[no-untyped-def]
    meant = made(words)
    chart = read(mermaid(meant))
    names = {spot.id: f"n{index}" for index, spot in enumerate(meant.spots)}
    for spot in meant.spots:
        assert chart.nodes[names[spot.id]][1] == (str(spot.name) or " ")
    arrows = {"forward": "-->", "gradient": "-.->", "cut": "-.-x"}
    assert Counter(chart.contracted()) == Counter(
        (
            names[line.source],
            arrows[line.kind],
            (line.label or " ") if line.names else "",
            line.delay,
            names[line.target],
        )
        for line in meant.lines
    )
    assert chart.title == words
    assert chart.nodes["c0"] == ("[", words or " ")
    assert chart.nodes["l0"] == ("[", words or " ")


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_words_are_told_on_one_line(words: str) -> None:
    told = read(mermaid(hostile_picture(words))).told
    expected = words.replace("\n", " ")
    assert told == ({"accTitle": expected, "accDescr": expected} if words.strip() else {})


@pytest.mark.parametrize("name", ["h(t-1)", "h(t+1)", "x(...)", "from_x", "隐藏", "σ", "new state", "a, b"])
def test_ordinary_names_stay_readable(name: str) -> None:
    assert f'n0(("{name}"))' in mermaid(Picture("", "", (circle(name),), ()))


INDEXED = {
    Name("W_xh"): "W<sub>xh</sub>",
    Name("h_t'", time="t-1"): "h#39;<sub>t</sub>(t-1)",
    Name("h", "1", "t"): "h<sub>1</sub>(t)",
    Name("W_h", "2"): "W<sub>h,2</sub>",
    Name("<b>", "1"): "#60;b#62;<sub>1</sub>",
    Name("a\nb", "1"): "a<br>b1",
}


@pytest.mark.parametrize(("name", "label"), INDEXED.items(), ids=map(str, INDEXED))
def test_an_index_is_set_below(name: Name, label: str) -> None:
    assert f'n0(("{label}"))' in mermaid(Picture("", "", (Spot("a", name, "a"),), ()))


def test_indices_of_matrices_are_set_below() -> None:
    both = picture(Line("x", "h", (Name("W_xh"), Name("U"), Name("b_h"))))
    assert 'n0 -->|"W<sub>xh</sub>, U, b<sub>h</sub>"| n1' in mermaid(both)


def test_an_index_stands_above_numbers_too() -> None:
    numbers = (Numbers((("0.5",), ("1",)), ((1,), (1,)), Name("∂L/∂h_t")),)
    text = mermaid(Picture("", "", (Spot("h", Name("h_t"), "h", shape="card", numbers=numbers, caption="ab"),), ()))
    assert 'n0("h<sub>t</sub><br>∂L#47;∂h<sub>t</sub><br>0#46;5<br>#32;#32;1<br>ab")' in text


def test_a_delay_is_one_black_square_on_the_line() -> None:
    chart = read(mermaid(picture(Line("h", "h", (Name("W"),), delay=1))))
    assert chart.arrows == [("n0", "---", "", "d0"), ("d0", "-->", "W", "n0")]
    assert chart.nodes["d0"] == ("[", " ")
    assert chart.classes["delay"] == ["d0"]
    assert "fill:#000" in chart.looks["delay"]


def test_lines_that_wait_for_longer_pass_through_the_same_squares() -> None:
    chart = read(mermaid(picture(*(Line("x", "o", (Name(f"K{delay}"),), delay) for delay in (3, 1, 0, 2)))))
    assert [name for name in chart.nodes if name.startswith("d")] == ["d0", "d1", "d2"]
    assert {squares: label for _, _, label, squares, _ in chart.contracted()} == {0: "K0", 1: "K1", 2: "K2", 3: "K3"}


def test_shapes_have_their_brackets() -> None:
    shapes = ("circle", "box", "parameter", "operator", "point")
    spots = tuple(Spot(shape, Name(shape), shape, shape=shape) for shape in shapes)  # type: ignore[arg-type]
    chart = read(mermaid(Picture("", "", spots, ())))
    assert {label: bracket for bracket, label in chart.nodes.values()} == {
        "circle": "((",
        "box": "[",
        "parameter": "[",
        "operator": "((",
        "point": "((",
    }
    assert (chart.classes["parameter"], chart.classes["point"]) == (["n2"], ["n4"])


def test_dashed_spots_are_dashed_and_gradients_dotted() -> None:
    lines = (Line("a", "b"), Line("b", "a", kind="gradient"), Line("b", "a", kind="cut"))
    chart = read(mermaid(Picture("", "", (circle("a", dashed=True), circle("b", column=1)), lines)))
    assert [arrow for _, arrow, _, _ in chart.arrows] == ["-->", "-.->", "-.-x"]
    assert chart.classes["dashed"] == ["n0"]
    assert "stroke-dasharray" in chart.looks["dashed"]


def test_folded_runs_upwards_and_a_strip_to_the_right() -> None:
    assert read(mermaid(picture(Line("x", "h")))).direction == "BT"
    strip = Picture("", "", (circle("a"), circle("b", column=1)), (Line("a", "b"),))
    assert read(mermaid(strip)).direction == "LR"


def test_tints_differ_without_colour_and_only_with_a_legend() -> None:
    tinted = Picture(
        "",
        "",
        (circle("a", tint="one"), circle("b", tint="two"), circle("p", tint="one", shape="parameter")),
        (Line("a", "a", delay=1, tint="one"), Line("a", "b", tint="two")),
        legend={"one": "1st", "two": "2nd"},
    )
    chart = read(mermaid(tinted))
    assert chart.classes["tint0"] == ["l0", "n0"]
    assert chart.classes["tint1"] == ["l1", "n1"]
    assert chart.classes["parameter"] == ["n2"]
    widths = [re.findall(r"stroke-width:\d+px", chart.looks[name]) for name in ("tint0", "tint1")]
    assert widths[0] != widths[1]
    assert chart.pens == [f"1 {widths[0][0]}", f"2 {widths[1][0]}"]  # the arrow through the square is the first
    plain = read(mermaid(replace(tinted, legend={})))
    assert set(plain.classes) == {"delay", "parameter"}


def test_a_caption_is_tied_to_its_column() -> None:
    strip = Picture("", "", (circle("a"), circle("b", column=1)), (Line("a", "b"),), captions={1: "… 94 steps …"})
    chart = read(mermaid(strip))
    assert chart.nodes["c0"] == ("[", "… 94 steps …")
    assert ("c0", "~~~", "", "n1") in chart.arrows


@pytest.mark.parametrize(
    "line", ['  n0(("a#b"))', '  n0(("<b>"))', '  n0(("1. a"))', '  n0((""))', "  end", '  h(("h"))']
)
def test_the_reader_is_strict(line: str) -> None:
    with pytest.raises(AssertionError):
        read(f"flowchart LR\n{line}\n")


def test_what_is_filled_brings_its_own_ink() -> None:
    """Mermaid's letters are white on a dark page."""
    for look in (*STYLES.values(), *TINTS):
        fill = re.search(r"fill:(#\w+)", look)
        if fill is not None:
            assert "stroke:#888" in look if fill[1] == "#000" else "color:#000" in look, look
