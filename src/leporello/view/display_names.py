"""Names as pictures show them: short, without what goes without saying, and no two alike.

`labels` finds what a value is called: the name of its port, or that of the step's local variable where the port has
only a position, as the leaves of `((h, c), M)` have. `display_names` makes short names of these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from leporello.draw.picture import Name
from leporello.loop.cell import Cell
from leporello.loop.loop import Loop
from leporello.loop.state import leaf_names
from leporello.loop.step import state_argument

MAX_LETTERS = 18  # longer names are shortened


def display_names(names: Iterable[str]) -> dict[str, Name]:
    """Names of parameters, states and values as pictures show them.

    `U.weight` is U, `rnn.weight_ih` is rnn_ih, `cells.0.U` is U with 0 below, `state0.1` is state with 0,1 below. Names
    that would look the same keep as much of their path as tells them apart. Of a long name the first and last words are
    left, and more of them where two would look the same.
    """
    wholes = list(dict.fromkeys(names))
    looks = _distinct(wholes, _with_path)
    bases = _distinct(list(dict.fromkeys(look.base for look in looks.values())), _shortened)
    return {name: replace(looks[name], base=bases[looks[name].base]) for name in wholes}


def _distinct(names: list[str], looks: Callable[[str], Iterator[Any]]) -> dict[str, Any]:
    """The first look of each name; where it is that of several names, the next, until no two are the same."""
    remaining = {name: looks(name) for name in names}
    shown = {name: next(looks) for name, looks in remaining.items()}
    while True:
        count = Counter(shown.values())
        more = {name: next(remaining[name], None) for name, look in shown.items() if count[look] > 1}
        if not any(more.values()):
            return shown
        shown |= {name: look for name, look in more.items() if look is not None}


def _with_path(name: str) -> Iterator[Name]:
    """A name without its path, then with one part of it more each time."""
    words: list[str] = []
    indices: list[str] = []
    for part in _without_weight(name.split(".")):
        if part.isdigit() and (words or part != name):
            indices.append(part)
        else:
            words.append(part)
    if not words:
        words, indices = [name], []
    elif own := re.fullmatch(r"(.*[^\W\d_])(\d+)", words[-1]):  # the digits of `state0` are an index too
        words[-1] = own[1]
        indices = [own[2], *indices] if name.rpartition(".")[2].isdigit() else [*indices, own[2]]
    for first in range(len(words) - 1, -1, -1):
        yield Name(".".join(words[first:]), ",".join(indices))
    yield Name(name)


def _without_weight(parts: list[str]) -> list[str]:
    """The parts of a parameter's name without the word weight: it belongs to its module, `rnn.weight_ih` to rnn."""
    *path, last = parts
    rest = "_".join(word for word in last.split("_") if word != "weight")
    if not path or rest == last:
        return parts
    if not rest or not last.startswith("weight"):
        return [*path, rest] if rest else path
    owner = max((index for index, part in enumerate(path) if not part.isdigit()), default=None)
    if owner is None:
        return parts
    return [*path[:owner], f"{path[owner]}_{rest}", *path[owner + 1 :]]


def _shortened(name: str) -> Iterator[str]:
    """The first word of a long name and the last ones that fit, then one more of the first each time, then all."""
    words = re.findall(r"[^_.\s]+[_.\s]*|[_.\s]+", name)
    if len(name) > MAX_LETTERS:
        fitting = [last for last in range(1, len(words) - 1) if len(_ends(words, 1, last)) <= MAX_LETTERS]
        yield _ends(words, 1, max(fitting)) if fitting else _cut(name)
        for first in range(2, len(words) - 1):
            yield _ends(words, first, 1)
    yield name


def _ends(words: list[str], first: int, last: int) -> str:
    """The first and the last words of a name."""
    return "".join(words[:first]).rstrip("_. ") + "…" + "".join(words[-last:])


def _cut(name: str) -> str:
    half = (MAX_LETTERS - 1) // 2
    return name[: MAX_LETTERS - 1 - half] + "…" + name[-half:]


def labels(loop: Loop) -> dict[tuple[str, str], str]:
    """What the ports of a user's loop are called in its pictures: by ("input", "state" or "output", name of the port).

    A leaf of a tuple or list has the name of its local variable, where all such leaves of the state (the inputs, the
    outputs) have one; that of the argument with indices else.
    """
    inputs = list(zip(loop.inputs, loop.placeholders, strict=True))
    results = list(zip(loop.outputs, loop.results, strict=True))
    called = {("input", port.name): port.name for port, _ in inputs if port.kind == "sequence"}
    called |= {("state", port.name): port.name for port, _ in inputs if port.kind == "state"}
    called |= {("output", port.name): port.name for port, _ in results if port.kind == "sequence"}
    signature = loop.signature
    if signature is None:
        return called
    read = {(port.kind, port.name): _local(node) for port, node in inputs}
    made = {(port.kind, port.name): _local(node) for port, node in results}
    sequences = {name: local for (kind, name), local in read.items() if kind == "sequence"}
    states = {name: local or made.get(("state", name)) for (kind, name), local in read.items() if kind == "state"}
    outputs = {name: local for (kind, name), local in made.items() if kind == "sequence"}
    module = signature.module
    found = [("input", _positional(signature.inputs, "x"), sequences)]
    if module is not None and not isinstance(module, Cell):
        found.append(("state", _positional(signature.state, state_argument(module)), states))
    found.append(("output", _positional(signature.outputs, "o"), outputs))
    for word, leaves, locals_ in found:
        called |= {(word, leaf): name for leaf, name in _named(leaves, locals_).items()}
    return called


def _local(node: fx.Node) -> str | None:
    """The local variable of the step that held a value when the step returned."""
    name = node.meta.get("local" if node.op == "placeholder" else "label")
    return None if name is None else str(name)


def _positional(spec: Any, root: str) -> list[str]:
    """The names of those leaves of a tree that have a position in a tuple or list, no key and no field."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    names = zip(leaf_names(tree, root), paths, strict=True)
    return [name for name, path in names if path and isinstance(path[-1], pytree.SequenceKey)]


def _named(leaves: list[str], locals_: Mapping[str, str | None]) -> dict[str, str]:
    """The local variable of each leaf; none where one of the leaves has no variable, or two have the same."""
    found = {leaf: local for leaf in leaves if (local := locals_.get(leaf)) is not None}
    return found if len(found) == len(leaves) == len(set(found.values())) else {}
