"""Names that a format might take for something of its own, and pictures that hold them everywhere."""

from __future__ import annotations

from dataclasses import replace

from leporello.draw.picture import Line, Name, Picture, Spot

HOSTILE = {
    "quotes": 'a "quoted" name',
    "quote alone": '"',
    "apostrophe": "h' and ''",
    "backslashes": "\\ \\\\ C:\\new\\table",
    "backslash at the end": "ends with \\",
    "backslash before a quote": '\\"',
    "escapes of labels": "\\N \\G \\l \\r \\n \\E \\T \\H \\L",
    "angle brackets": "<b>bold</b> <script>alert(1)</script>",
    "begins with a bracket": "<",
    "ampersands": "a & b &amp; &lt; &#65; &notanentity;",
    "entities of Mermaid": "#quot; #35; #9829; #",
    "newline": "two\nlines",
    "newlines": "\n\nafter two\n",
    "carriage return": "a\rb",
    "tab": "a\tb",
    "Chinese": "隐藏状态",
    "right to left": "حالة",
    "emoji": "🪗 and 👩🏽‍🔬",
    "accents": "é, e\u0301 and ß",
    "signs of Mermaid's own": "ﬂ°°35¶ß",
    "very long": "a long name " * 200 + "end",
    "one long word": "x" * 3000,
    "end": "end",
    "words of DOT": "digraph graph node edge subgraph strict",
    "words of Mermaid": "subgraph end class classDef style click linkStyle direction TB",
    "arrow": "-->",
    "arrows": "a -> b -.-> c === d ~~~ e --x f",
    "end of CDATA": "]]>",
    "brackets": "[(a)] {b} ((c)) [[d]] >e]",
    "bars": "|a| || |",
    "semicolons": "a; b; };",
    "colons": ":::tint0 a:b style a:#fff;",
    "comments": "%% no comment /* nor this */ // nor that -- <!-- x -->",
    "directive": "%%{init: {'theme': 'dark'}}%%",
    "Markdown": "**bold** _it_ `code` # head",
    "backticks": "`one` ``two`` ```three```",
    "list": "1. first",
    "list in brackets": "12) twelfth",
    "list below": "a\n1. b\n2) c\n- d\n* e",
    "bullet": "- item",
    "plus": "+",
    "spaces": "    indented,  two",
    "space": " ",
    "indented below": "a\n    b",
    "spaces around": " a ",
    "link": "[a](http://b.c) http://d.e www.f.g",
    "front matter": "---\ntitle: b\n---",
    "percent": "100 % {} {0} %s $x ${y}",
    "unicode separators": "a\u2028b\u2029c\u00a0d\u200be",
    "empty": "",
}


def hostile_picture(words: str) -> Picture:
    """A folded picture with these words in every place where words can stand."""
    spots = (
        Spot(words + "circle", Name(words), "a", tooltip=words),
        Spot(words + "box", Name(words, "1", "t"), "b", shape="box", dashed=True, tooltip=words),
        Spot(words + "parameter", Name(words + "."), "c", shape="parameter"),
        Spot(words + "point", Name(words), "d", shape="point"),
        Spot(words + "operator", Name(words), "e", shape="operator", tint=words),
        Spot(words + "target", Name(words), words, above=True),
    )
    lines = (
        Line(words + "circle", words + "box", (Name(words), Name(words)), tooltip=words),
        Line(words + "circle", words + "circle", (Name(words),), delay=2),
        Line(words + "target", words + "box", delay=1, tint=words),
    )
    return Picture(words, words, spots, lines, captions={0: words}, legend={words: words})


def hostile_strip(words: str) -> Picture:
    """The same over three columns, with a gradient."""
    picture = hostile_picture(words)
    spots = tuple(
        replace(spot, id=f"{spot.id}@{column}", column=column) for column in range(3) for spot in picture.spots
    )
    forward = tuple(
        Line(f"{words}circle@{column}", f"{words}circle@{column + 1}", (Name(words),)) for column in range(2)
    )
    back = tuple(Line(line.target, line.source, kind="gradient") for line in forward)
    return replace(picture, spots=spots, lines=(*forward, *back))
