"""`VIEWS`: how ATen's operators on shapes and places are written in ONNX: views, parts, joins, choices by index.

Rules as in `onnx_operators`. Sizes come from the fake tensors of the graph: numbers, and the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import EngineRefusal
from leporello.loop.graph import operator_name
from leporello.nets.export.onnx_operators import chosen
from leporello.nets.export.onnx_step import Rule, StepWriter

Arguments = Mapping[str, Any]


def _value_of(node: fx.Node, index: int = 0) -> Tensor:
    """The fake tensor of an operator's argument."""
    argument: Any = node.args[index]
    value: Tensor = argument.meta["val"]
    return value


def _same(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.value(node.args[0])


def _item(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    several, index = node.args
    assert isinstance(several, fx.Node)
    assert isinstance(index, int)
    return at.part(several, index)


def _count(kind: str) -> Rule:
    """Arithmetic on sizes."""
    return lambda at, node, a: at.graph(kind, *(at.graph.sizes(at.size(size)) for size in node.args), name="rows")


def _size(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.graph.sizes(at.size(_value_of(node).shape[a["dim"]]))


# ---- shapes


def _reshaped(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    sizes = [at.size(size) for size in node.meta["val"].shape]
    if sum(isinstance(size, str) for size in sizes) == 1 and 0 not in sizes:
        sizes = [-1 if isinstance(size, str) else size for size in sizes]
    return at.graph.reshape(at.value(node.args[0]), *sizes)


def _permuted(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    count = _value_of(node).dim()
    return at.graph.transpose(at.value(a["self"]), *(axis % count for axis in a["dims"]))


def _transposed(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    count = _value_of(node).dim()
    order = list(range(count))
    if count > 1:  # a vector is its own transpose
        one, other = (a["dim0"], a["dim1"]) if "dim0" in a else (0, 1)
        order[one], order[other] = order[other], order[one]
    return at.graph.transpose(at.value(a["self"]), *order)


def _expanded(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.expand(at.value(node.args[0]), node.meta["val"])


def _repeated(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    value, repeats = at.value(a["self"]), [at.size(times) for times in a["repeats"]]
    new = len(repeats) - _value_of(node).dim()
    if new:
        value = at.graph("Unsqueeze", value, at.graph.ints(*range(new)))
    return at.graph("Tile", value, at.graph.sizes(*repeats))


def _filled(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """A shape full of one number."""
    number = a.get("fill_value", a.get("value", int("ones" in operator_name(node))))
    return at.expand(at.value(number, at.result(node)), node.meta["val"])


# ---- parts


def _selected(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.graph("Gather", at.value(a["self"]), at.graph.constant(a["index"], torch.int64), axis=a["dim"])


def _sliced(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    start, end = (default if a[name] is None else a[name] for name, default in (("start", 0), ("end", 2**63 - 1)))
    bounds = [at.graph.sizes(at.size(bound)) for bound in (start, end)]
    return at.graph("Slice", at.value(a["self"]), *bounds, at.graph.ints(a["dim"]), at.graph.ints(a["step"]))


def _parts(at: StepWriter, node: fx.Node, a: Arguments) -> tuple[str, ...]:
    axis = a.get("dim", 0)
    sizes = [part.shape[axis] for part in node.meta["val"]]
    if len(sizes) == 1:
        return (at.value(node.args[0]),)
    names = [at.graph.label or "part"] * len(sizes)
    lengths = at.graph.sizes(*(at.size(size) for size in sizes))
    return tuple(at.graph.several("Split", at.value(node.args[0]), lengths, names=names, axis=axis))


def _unbound(at: StepWriter, node: fx.Node, a: Arguments) -> tuple[str, ...]:
    value, axis = at.value(a["self"]), a["dim"]
    count = len(node.meta["val"])
    return tuple(at.graph("Gather", value, at.graph.constant(index, torch.int64), axis=axis) for index in range(count))


def _fixed_size(node: fx.Node, axis: int) -> int:
    """The size of an axis that is no row axis."""
    size = _value_of(node).shape[axis]
    if not isinstance(size, int):
        raise EngineRefusal(
            f"the operator {node.target} cannot be exported to ONNX along the axis of rows.",
            line=node.meta.get("line"),
            expected="rows that do not depend on each other",
        )
    return size


def _picked(at: StepWriter, value: str, places: Tensor | Sequence[int], axis: int) -> str:
    """Some places along an axis, by constants."""
    return at.graph("Gather", value, at.graph.constant(torch.as_tensor(places, dtype=torch.int64)), axis=axis)


def _flipped(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    value = at.value(a["self"])
    for axis in a["dims"]:
        value = _picked(at, value, list(range(_fixed_size(node, axis)))[::-1], axis)
    return value


def _rolled(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    shifts, axes = ([one] if isinstance(one, int) else list(one) for one in (a["shifts"], a["dims"]))
    value, whole = at.value(a["self"]), node.meta["val"]
    if not axes:
        value, axes = at.graph.reshape(value, -1), [0]
        size = _fixed_count(node)
        return at.graph("Reshape", _picked(at, value, _turned(size, shifts[0]), 0), at.shape(whole))
    for shift, axis in zip(shifts, axes, strict=True):
        value = _picked(at, value, _turned(_fixed_size(node, axis), shift), axis)
    return value


def _turned(size: int, shift: int) -> list[int]:
    return [(place - shift) % size for place in range(size)]


def _fixed_count(node: fx.Node) -> int:
    count = 1
    for axis in range(_value_of(node).dim()):
        count *= _fixed_size(node, axis)
    return count


def _windows(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    axis = a["dimension"] % _value_of(node).dim()
    count = node.meta["val"].shape[axis]
    places = torch.arange(count).unsqueeze(1) * a["step"] + torch.arange(a["size"])
    windows = _picked(at, at.value(a["self"]), places, axis)  # [..., windows, size, ...]
    axes = list(range(node.meta["val"].dim()))
    return at.graph.transpose(windows, *axes[: axis + 1], *axes[axis + 2 :], axis + 1)


def _triangle(upper: int) -> Rule:
    def rule(at: StepWriter, node: fx.Node, a: Arguments) -> str:
        return at.graph("Trilu", at.value(a["self"]), at.graph.constant(a["diagonal"], torch.int64), upper=upper)

    return rule


# ---- parts replaced


def _put(at: StepWriter, node: fx.Node, part: str, places: Sequence[int], axis: int) -> str:
    """A value with what is at some places along an axis replaced by the parts of another, in their order.

    Read at the place of each part, and at any other place where there is none, the parts have the value's shape.
    """
    whole = _value_of(node)
    size, axis = _fixed_size(node, axis), axis % whole.dim()
    source = {place: index for index, place in enumerate(places)}
    spread = _picked(at, part, [source.get(place, 0) for place in range(size)], axis)
    replaced = torch.tensor([place in source for place in range(size)])
    mask = replaced.reshape(size, *[1] * (whole.dim() - axis - 1))
    return chosen(at, at.graph.constant(mask), spread, at.value(node.args[0]), whole.dtype)


def _part_replaced(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    part = at.graph("Unsqueeze", at.value(a["src"], at.result(node)), at.graph.ints(a["dim"]))
    return _put(at, node, part, [a["index"] % _fixed_size(node, a["dim"])], a["dim"])


def _slice_replaced(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    size = _value_of(node).shape[a["dim"]]
    bounds = slice(a["start"], a["end"], a["step"])
    source = at.value(a["src"], at.result(node))
    if not isinstance(size, int):
        if (a["start"] or 0, a["step"]) == (0, 1) and isinstance(a["end"], int) and a["end"] >= 2**62:
            return source  # all rows
        _fixed_size(node, a["dim"])
    places = list(range(size))[bounds]
    return _put(at, node, source, places, a["dim"]) if places else at.value(node.args[0])


# ---- joins


def _shifted(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """A sequence one step later: the initial value, then all steps but the last."""
    value, initial = (at.value(argument) for argument in node.args[:2])
    batch = at.graph.size_of(initial, 0)
    before = at.graph("Slice", value, at.graph.ints(0), at.graph("Neg", batch), at.graph.ints(0))
    return at.graph("Concat", initial, before, axis=0)


def _joined(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    parts = [part for part in a["tensors"] if tuple(part.meta["val"].shape) != (0,)]  # torch leaves these out
    names = [at.value(part, dtype) for part in parts]
    return names[0] if len(names) == 1 else at.graph("Concat", *names, axis=a["dim"])


def _stacked(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype = at.result(node)
    axis = a["dim"] % node.meta["val"].dim()
    parts = [at.graph("Unsqueeze", at.value(part, dtype), at.graph.ints(axis)) for part in a["tensors"]]
    return at.graph("Concat", *parts, axis=axis)


def _padded(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    pads, count = a["pad"], _value_of(node).dim()
    before, behind = [0] * count, [0] * count
    for index in range(len(pads) // 2):  # the last axis comes first
        before[count - 1 - index], behind[count - 1 - index] = pads[2 * index], pads[2 * index + 1]
    value = at.value(a["value"], at.result(node))
    return at.graph("Pad", at.value(a["self"]), at.graph.ints(*before, *behind), value)


# ---- by index


def _embedded(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.graph("Gather", at.value(a["weight"]), at.value(a["indices"]), axis=0)


def _gathered(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    return at.graph("GatherElements", at.value(a["self"]), at.value(a["index"]), axis=a["dim"])


def _indexed(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    """value[:, i] with one list of places: a Gather; with several beside each other, one of the axes joined."""
    value: Any = a["self"]
    found = [(axis, index) for axis, index in enumerate(a["indices"]) if index is not None]
    axes = [axis for axis, _ in found]
    shape = value.meta["val"].shape
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    if any(index.meta["val"].dtype in (torch.bool, torch.uint8) for _, index in found) or not together:
        raise EngineRefusal(
            f"the operator {node.target} cannot be exported to ONNX for such places.",
            line=node.meta.get("line"),
            expected="integers, for axes beside each other",
        )
    name = at.value(value)
    if len(found) == 1:
        return at.graph("Gather", name, at.value(found[0][1], torch.int64), axis=axes[0])
    place: str | None = None
    for axis, index in found:
        size = at.graph.sizes(at.size(shape[axis]))
        own = at.value(index, torch.int64)
        counted = at.graph("Where", at.graph("Less", own, at.graph.ints(0)), at.graph("Add", own, size), own)
        place = counted if place is None else at.graph("Add", at.graph("Mul", place, size), counted)
    rest = [at.size(size) for size in (*shape[: axes[0]], -1, *shape[axes[-1] + 1 :])]
    assert place is not None
    return at.graph("Gather", at.graph.reshape(name, *rest), place, axis=axes[0])


def _scattered(at: StepWriter, node: fx.Node, a: Arguments) -> str:
    dtype, index = at.result(node), a["index"]
    if "src" not in a:
        source = at.expand(at.value(a["value"], dtype), index.meta["val"])
    else:
        source = at.value(a["src"], dtype)
        for axis, (wide, narrow) in enumerate(zip(a["src"].meta["val"].shape, index.meta["val"].shape, strict=True)):
            if isinstance(wide, int) and isinstance(narrow, int) and wide != narrow:
                source = _picked(at, source, range(narrow), axis)
    options = {"reduction": "add"} if "scatter_add" in str(node.target) else {}
    return at.graph("ScatterElements", at.value(a["self"]), at.value(index), source, axis=a["dim"], **options)


VIEWS: dict[str, Rule] = {
    # several results, sizes
    "operator.getitem": _item,
    "operator.mul": _count("Mul"),
    "sym_size": _size,
    # what changes nothing
    "stop": _same,
    "alias": _same,
    "clone": _same,
    "detach": _same,
    # shapes
    "view": _reshaped,
    "_unsafe_view": _reshaped,
    "unsqueeze": _reshaped,
    "squeeze": _reshaped,
    "t": _transposed,
    "transpose": _transposed,
    "permute": _permuted,
    "expand": _expanded,
    "expand_as": _expanded,
    "repeat": _repeated,
    "full": _filled,
    "full_like": _filled,
    "fill": _filled,
    "new_full": _filled,
    "new_ones": _filled,
    "new_zeros": _filled,
    "ones": _filled,
    "ones_like": _filled,
    "zeros": _filled,
    "zeros_like": _filled,
    # parts
    "select": _selected,
    "slice": _sliced,
    "split": _parts,
    "split_with_sizes": _parts,
    "unsafe_split": _parts,
    "unbind": _unbound,
    "flip": _flipped,
    "roll": _rolled,
    "unfold": _windows,
    "tril": _triangle(0),
    "triu": _triangle(1),
    "select_scatter": _part_replaced,
    "slice_scatter": _slice_replaced,
    # joins
    "shift": _shifted,
    "cat": _joined,
    "stack": _stacked,
    "constant_pad_nd": _padded,
    # by index
    "embedding": _embedded,
    "gather": _gathered,
    "index": _indexed,
    "scatter": _scattered,
    "scatter_add": _scattered,
}
