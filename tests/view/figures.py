"""Figures of the textbook and of its summary as data, pictures in words, and a strict reader of the DOT that we write.

A figure is its nodes by label and its edges as (source, target, label), both counted; squares on delays are
contracted before anything is compared, and counted apart.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from leporello.draw.picture import Picture

Edge = tuple[str, str, str]


@dataclass(frozen=True)
class Figure:
    """Labels of nodes, edges between them, and the nodes that are drawn dashed."""

    nodes: Counter[str]
    edges: Counter[Edge]
    dashed: Counter[str]


def figure(nodes: str, edges: str, dashed: str = "") -> Figure:
    """From words: nodes apart by spaces, edges as `x -> h U`, apart by semicolons; dashed nodes are nodes too."""
    found: Counter[Edge] = Counter()
    for edge in filter(None, (part.strip() for part in edges.split(";"))):
        source, target, *label = edge.replace("->", " ").split()
        found[source, target, " ".join(label)] += 1
    hints = Counter(dashed.split())
    return Figure(Counter(nodes.split()) + hints, found, hints)


# The seven graphs of the summary, in its order.
SUMMARY = {
    "a state through f": figure("h x", "h -> h; x -> h f"),
    "a state through f, unfolded": figure(
        "h(t-1) h(t) h(t+1) x(t-1) x(t) x(t+1)",
        "h(...) -> h(t-1) f; h(t-1) -> h(t) f; h(t) -> h(t+1) f; h(t+1) -> h(...) f;"
        "x(t-1) -> h(t-1); x(t) -> h(t); x(t+1) -> h(t+1)",
        dashed="h(...) h(...)",
    ),
    "hidden units recur": figure("x h o L y", "x -> h U; h -> h W; h -> o V; o -> L; y -> L"),
    "the output recurs": figure("x h o L y", "x -> h U; h -> o V; o -> h W; o -> L; y -> L"),
    "one output at the end": figure(
        "... h(t-3) h(...) h(t) x(t-3) x(...) x(t) o(t) L(t) y(t)",
        "... -> h(t-3) W; h(t-3) -> h(...) W; h(...) -> h(t) W; h(t) -> o(t) V; o(t) -> L(t);"
        "x(t-3) -> h(t-3) U; x(...) -> h(...) U; x(t) -> h(t) U; y(t) -> L(t)",
    ),
    "forced by the teacher": figure(
        "y(t-1) y(t) L(t-1) L(t) o(t-1) o(t) h(t-1) h(t) x(t-1) x(t)",
        "x(t-1) -> h(t-1) U; x(t) -> h(t) U; h(t) -> o(t) V; h(t-1) -> o(t-1) V; o(t) -> L(t); o(t-1) -> L(t-1);"
        "y(t) -> L(t); y(t-1) -> L(t-1); y(t-1) -> h(t) W",
    ),
    "running free": figure(
        "o(t-1) o(t) h(t-1) h(t) x(t-1) x(t)",
        "x(t-1) -> h(t-1) U; x(t) -> h(t) U; h(t) -> o(t) V; h(t-1) -> o(t-1) V; o(t-1) -> h(t) W",
    ),
}

# Figures 10.1 to 10.5 of the textbook.
TEXTBOOK = {
    "10.1": figure(
        "s(t-1) s(t) s(t+1)",
        "s(...) -> s(t-1) f; s(t-1) -> s(t) f; s(t) -> s(t+1) f; s(t+1) -> s(...) f",
        dashed="s(...) s(...)",
    ),
    "10.2 folded": SUMMARY["a state through f"],
    "10.2 unfolded": SUMMARY["a state through f, unfolded"],
    "10.3 folded": SUMMARY["hidden units recur"],
    "10.3 unfolded": figure(
        "x(t-1) h(t-1) o(t-1) L(t-1) y(t-1) x(t) h(t) o(t) L(t) y(t) x(t+1) h(t+1) o(t+1) L(t+1) y(t+1)",
        "x(t-1) -> h(t-1) U; h(t-1) -> o(t-1) V; o(t-1) -> L(t-1); y(t-1) -> L(t-1);"
        "x(t) -> h(t) U; h(t) -> o(t) V; o(t) -> L(t); y(t) -> L(t);"
        "x(t+1) -> h(t+1) U; h(t+1) -> o(t+1) V; o(t+1) -> L(t+1); y(t+1) -> L(t+1);"
        "h(...) -> h(t-1) W; h(t-1) -> h(t) W; h(t) -> h(t+1) W; h(t+1) -> h(...) W",
        dashed="h(...) h(...)",
    ),
    "10.4 folded": SUMMARY["the output recurs"],
    "10.4 unfolded": figure(
        "x(t-1) h(t-1) o(t-1) L(t-1) y(t-1) x(t) h(t) o(t) L(t) y(t) x(t+1) h(t+1) o(t+1) L(t+1) y(t+1)",
        "x(t-1) -> h(t-1) U; h(t-1) -> o(t-1) V; o(t-1) -> L(t-1); y(t-1) -> L(t-1);"
        "x(t) -> h(t) U; h(t) -> o(t) V; o(t) -> L(t); y(t) -> L(t);"
        "x(t+1) -> h(t+1) U; h(t+1) -> o(t+1) V; o(t+1) -> L(t+1); y(t+1) -> L(t+1);"
        "o(...) -> h(t-1) W; o(t-1) -> h(t) W; o(t) -> h(t+1) W; o(t+1) -> h(...) W",
        dashed="o(...) h(...)",
    ),
    "10.5": figure(
        "x(t-2) h(t-2) x(t-1) h(t-1) x(t) h(t) o(t) L(t) y(t)",
        "h(...) -> h(t-2) W; h(t-2) -> h(t-1) W; h(t-1) -> h(t) W;"
        "x(t-2) -> h(t-2) U; x(t-1) -> h(t-1) U; x(t) -> h(t) U;"
        "h(t) -> o(t) V; o(t) -> L(t); y(t) -> L(t)",
        dashed="h(...)",
    ),
}


def said(picture: Picture) -> Counter[str]:
    """The lines of a picture in words: `x -> h: U`, `h -> h: W, 1 later`; gradients `o ~> h`, cut ones `o ~/ h`."""
    names = {spot.id: str(spot.name) for spot in picture.spots}
    arrows = {"forward": "->", "gradient": "~>", "cut": "~/"}
    found: Counter[str] = Counter()
    for line in picture.lines:
        along = [*([line.label] if line.names else []), *([f"{line.delay} later"] if line.delay else [])]
        ends = f"{names[line.source]} {arrows[line.kind]} {names[line.target]}"
        found[f"{ends}: {', '.join(along)}" if along else ends] += 1
    return found


def lines(words: str) -> Counter[str]:
    """What `said` gives, written with semicolons."""
    return Counter(part.strip() for part in words.split(";") if part.strip())


def shown(picture: Picture) -> list[str]:
    """The names of the spots, in order."""
    return [str(spot.name) for spot in picture.spots]


@dataclass(frozen=True)
class Graph:
    """A DOT text, read: attributes of the graph, of nodes by identifier, of edges one by one; sets of one rank."""

    attributes: dict[str, str]
    nodes: dict[str, dict[str, str]]
    edges: list[tuple[str, str, dict[str, str]]]
    ranks: list[tuple[str, list[str]]]

    @property
    def squares(self) -> list[str]:
        return [id for id, attributes in self.nodes.items() if attributes.get("shape") == "square"]

    @property
    def seen(self) -> list[tuple[str, str, dict[str, str]]]:
        """The edges that are drawn."""
        return [edge for edge in self.edges if edge[2].get("style") != "invis"]

    def source(self, id: str) -> str:
        """What stands before a chain of squares."""
        squares = set(self.squares)
        while id in squares:
            (id,) = (source for source, target, _ in self.seen if target == id)
        return id

    def delay(self, id: str) -> int:
        """How many squares a line has passed when it leaves a node."""
        if id not in self.squares:
            return 0
        (before,) = (source for source, target, _ in self.seen if target == id)
        return 1 + self.delay(before)

    def name(self, id: str) -> str:
        attributes = self.nodes[id]
        return attributes["xlabel"] if attributes.get("shape") == "point" else attributes["label"]

    def lines(self) -> list[tuple[str, str, dict[str, str]]]:
        """The edges with their squares contracted."""
        squares = set(self.squares)
        return [(self.source(one), two, attributes) for one, two, attributes in self.seen if two not in squares]

    def figure(self) -> Figure:
        """Without squares and captions."""
        spots = [id for id in self.nodes if self.nodes[id].get("shape") not in ("square", "plaintext")]
        edges = Counter(
            (self.name(one), self.name(two), attributes.get("label", "")) for one, two, attributes in self.lines()
        )
        dashed = [id for id in spots if "dashed" in self.nodes[id].get("style", "")]
        return Figure(Counter(map(self.name, spots)), edges, Counter(map(self.name, dashed)))


HTML = r"<(?:[^<>\n]|</?SUB>|<BR/>)+>"
TOKEN = re.compile(rf'\s*(?:("(?:[^"\\\n]|\\.)*"|{HTML})|(->|[{{}}\[\];,=])|([A-Za-z_]\w*|-?[0-9]+(?:\.[0-9]+)?))')
ENTITY = re.compile(r"&(amp|lt|gt|quot|#[0-9]+|[A-Za-z][A-Za-z0-9]*);")
TEXTS = ("label", "xlabel", "tooltip")


def read(text: str) -> Graph:
    """A DOT text as a graph; anything that Graphviz could take otherwise than we mean it is a failure."""
    return _Reader(text).graph()


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = TOKEN.match(text, at)
            assert match, f"no token of DOT at {text[at : at + 40]!r}"
            self.tokens.append(match[0].strip())
            at = match.end()
        self.tokens.reverse()
        self.read = Graph({}, {}, [], [])

    def take(self, expected: str | None = None) -> str:
        token = self.tokens.pop()
        assert expected in (None, token), f"{expected} expected, {token} came"
        return token

    def graph(self) -> Graph:
        self.take("digraph")
        self.take("{")
        while self.tokens[-1] != "}":
            self.statement()
        self.take("}")
        assert not self.tokens
        unknown = {id for one, two, _ in self.read.edges for id in (one, two)} - set(self.read.nodes)
        assert not unknown, f"edges between nodes that are not there: {unknown}"
        return self.read

    def statement(self) -> None:
        if self.tokens[-1] == "{":
            self.same_rank()
            return
        first = self.take()
        if first in ("graph", "node", "edge"):
            found = self.attributes()
            if first == "graph":
                self.read.attributes.update(found)
        elif self.tokens[-1] == "->":
            self.take("->")
            self.read.edges.append((identifier(first), identifier(self.take()), self.attributes()))
        else:
            assert identifier(first) not in self.read.nodes, f"twice: {first}"
            self.read.nodes[identifier(first)] = self.attributes()
        self.take(";")

    def same_rank(self) -> None:
        self.take("{")
        self.take("rank")
        self.take("=")
        rank, members = self.take(), []
        self.take(";")
        while self.tokens[-1] != "}":
            members.append(identifier(self.take()))
            self.take(";")
        self.take("}")
        assert rank in ("same", "sink", "source")
        self.read.ranks.append((rank, members))

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.tokens[-1] != "[":
            return found
        self.take("[")
        while self.tokens[-1] != "]":
            key = self.take()
            assert key.isidentifier(), key
            assert key not in found, key
            self.take("=")
            value = self.take()
            found[key] = words(value) if key in TEXTS else identifier(value)
            if self.tokens[-1] != "]":
                self.take(",")
        self.take("]")
        return found


def identifier(token: str) -> str:
    """A name, or a value that is no text; a backslash is doubled, or stands before a quote or for a line's end."""
    if not token.startswith('"'):
        return token
    return re.sub(r"\\(.)", lambda match: {"n": "\n", '"': '"', "\\": "\\"}[match[1]], token[1:-1])


def words(token: str) -> str:
    """A label as Graphviz shows it: of its entities we write one only, of HTML indices and line breaks."""
    if token.startswith("<"):
        assert "\\" not in token, "Graphviz replaces escapes in HTML too"
        text = re.sub("<SUB>([^<>]+)</SUB>", r"\1", token[1:-1].replace("<BR/>", "\n"))
        assert not re.search("[<>]", text), token
        entities = {"amp": "&", "lt": "<", "gt": ">"}
        return ENTITY.sub(lambda match: entities[match[1]], text)
    assert token.startswith('"'), f"a text without quotes: {token}"
    return identifier(ENTITY.sub(lambda match: {"amp": "&"}[match[1]], token))
