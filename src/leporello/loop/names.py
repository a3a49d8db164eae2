"""Labels: the user's names on a graph's values.

Knows what was heard while a step ran; knows nothing of how it was heard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from leporello.loop.port import Port


def label_all(
    graph: fx.Graph, inputs: Sequence[Port], placeholders: Sequence[fx.Node], heard: Mapping[str, fx.Node]
) -> None:
    """Give inputs their ports' names and named values the user's; an unnamed value keeps its operator's."""
    for port, node in zip(inputs, placeholders, strict=True):
        node.meta["label"] = port.name
    for name, node in heard.items():
        if node.op != "placeholder":
            node.meta["label"] = name
    taken: set[str] = set()
    for node in graph.nodes:
        if node.op != "output":
            wish = _identifier(node.meta.get("label") or node.name)
            node.name = _free(wish if node.op != "placeholder" or node.meta.get("label") else "rows", taken)


def _identifier(name: str) -> str:
    spelt = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    return spelt if spelt[:1].isalpha() or spelt[:1] == "_" else f"v{spelt}"


def _free(wish: str, taken: set[str]) -> str:
    name, count = wish, 1
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name
