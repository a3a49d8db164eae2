"""Numbers of a run on the spots of its strip: values, and gradients of the total loss, coloured by size.

`values_of_run` computes every value of the run that a strip has recorded; `with_numbers` writes those that a picture
has spots for. What is too large to be read is given as its shape.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leporello.draw.picture import LEVELS, Name, Numbers, Picture, Spot
from leporello.errors import ArgumentError
from leporello.loop.unfold import Unfolding
from leporello.view.diagram import Diagram, Vertex, keys_of_name
from leporello.view.strip import TOTAL, Strip, StripWriter

Key = tuple[str, int]  # a node of the loop, by name, and the step; 0 for states before the first step
MAX_ROWS, MAX_COLUMNS, MAX_NUMBERS = 8, 6, 24  # of a vector or matrix that is written; of larger ones the shape is
MAX_PLAIN, MIN_PLAIN = 1e5, 1e-4  # larger and smaller numbers have an exponent


@dataclass(frozen=True)
class RunValues:
    """Values and gradients of a run by node and step; gradients are of the sum of all steps' losses, over all rows.

    total   that sum for each row; None without a loss
    """

    values: Mapping[Key, Tensor]
    gradients: Mapping[Key, Tensor]
    total: Tensor | None = None


def values_of_run(strip: Unfolding, *, gradients: bool, crossing: Sequence[float] | None = None) -> RunValues:
    """Evaluate the run that a strip has recorded, again.

    crossing   for each step the weight of the gradient that it passes back to the step before; by default 1
    """
    if not strip.recorded:
        raise ArgumentError(
            "this strip has no numbers to show: it has not been run.",
            tries="strip.run(inputs) first, then strip.svg(values=True)",
        )
    losses = [port.name for port in strip.loop.outputs].index("L") if _has_loss(strip) else None
    if gradients and losses is None:
        raise ArgumentError(
            "this strip has no loss, so there is no gradient to show.",
            tries="lp.fold(cell, x, loss=nn.functional.mse_loss), and strip.run(inputs, targets=y)",
        )
    (run,) = strip.recorded
    with torch.set_grad_enabled(gradients):
        inputs = [_leaf(value) if gradients else value for value in run.inputs]
        evaluated = strip.evaluated(run.batch, inputs, crossing)
        known = {
            (str(node.meta["origin"]), int(node.meta["time"])): value
            for node, value in evaluated.items()
            if node.meta.get("time") is not None and isinstance(value, Tensor)
        }
        origin = None if losses is None else strip.loop.results[losses].name
        of_steps = [value for (name, _), value in known.items() if name == origin]
        total = torch.stack(of_steps).sum(0) if of_steps else None
        found = _gradients(total.sum(), known) if gradients and total is not None else {}
    values = {key: value.detach() for key, value in known.items()}
    return RunValues(values, found, None if total is None else total.detach())


def _has_loss(strip: Unfolding) -> bool:
    return any(port.name == "L" and port.kind == "sequence" for port in strip.loop.outputs)


def _leaf(value: Tensor) -> Tensor:
    return value.detach().requires_grad_() if value.is_floating_point() or value.is_complex() else value


def _gradients(total: Tensor, known: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """The gradient of the total with respect to each value; zero where it does not depend on it."""
    wanted = {key: value for key, value in known.items() if value.requires_grad}
    if not total.requires_grad:
        return {key: torch.zeros_like(value) for key, value in wanted.items()}
    found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(wanted, found, strict=True))


def with_numbers(
    picture: Picture,
    diagram: Diagram,
    strip: Strip,
    run: RunValues,
    *,
    values: bool | Collection[str],
    gradients: bool | Collection[str],
    digits: int = 3,
) -> Picture:
    """The picture with cards for all spots that have numbers, and the scales of their colours.

    values, gradients   whether to write them; or the names of what has them
    digits              significant digits of the largest number on a card
    """
    columns = StripWriter(diagram, strip).columns
    vertices = {vertex.key: vertex for vertex in diagram.vertices}
    shown = _chosen(diagram, values, "values"), _chosen(diagram, gradients, "gradients")
    tensors: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for spot in picture.spots:
        if spot.place == TOTAL and run.total is not None and values is not False:
            tensors[spot.id] = (run.total, None)
        if spot.place not in vertices:
            continue
        vertex, step = vertices[spot.place], columns[spot.column].step
        key = _key(vertex, step, dashed=spot.dashed)
        if key is not None and spot.shape in ("circle", "box"):
            value = run.values.get(key) if spot.place in shown[0] else None
            gradient = run.gradients.get(key) if spot.place in shown[1] and _has_gradient(vertex) else None
            if vertex.through == "exp":  # by the chain rule: the node is the logarithm of what is shown
                gradient = None if gradient is None else gradient / run.values[key].exp()
                value = None if value is None else value.exp()
            if value is not None or gradient is not None:
                tensors[spot.id] = (value, gradient)
    largest = tuple(_largest(pair[index] for pair in tensors.values()) for index in (0, 1))
    places = {spot.place for spot in picture.spots if spot.id in tensors}
    styles = {
        (place, index): _Style.of(
            [tensors[s.id][index] for s in picture.spots if s.place == place and s.id in tensors], digits
        )
        for place in places
        for index in (0, 1)
    }
    spots = []
    for spot in picture.spots:
        if spot.place in places:
            pair = tensors.get(spot.id, (None, None))
            blocks = [
                _numbers(tensor, styles[spot.place, index], largest[index], _head(spot, index))
                for index, tensor in enumerate(pair)
                if tensor is not None
            ]
            if blocks and pair[0] is None:  # a gradient alone: it stands for the name, so it has its time
                blocks = [replace(blocks[0], head=replace(blocks[0].head or spot.name, time=spot.name.time))]
            spot = replace(spot, shape="card", numbers=tuple(blocks))
        spots.append(spot)
    kinds = zip(("value", "gradient of ΣL"), largest, strict=True)
    scales = tuple((words, _Style.of([torch.tensor([most])], digits).text(most)) for words, most in kinds if most)
    return replace(picture, spots=tuple(spots), scales=scales or (("value", "0"),))


def _key(vertex: Vertex, step: int | None, *, dashed: bool) -> Key | None:
    """The node and the step of a spot; None where it stands for no one value."""
    if step is not None:
        return (vertex.node, step)
    return (vertex.before, 0) if vertex.before and not dashed else None


def _has_gradient(vertex: Vertex) -> bool:
    return vertex.role not in ("input", "target") and vertex.key != "output.L"


def _chosen(diagram: Diagram, names: bool | Collection[str], argument: str) -> set[str]:
    """Keys of the vertices that an argument chooses: all, none, or those of the names."""
    if isinstance(names, bool):
        return {vertex.key for vertex in diagram.vertices} if names else set()
    return {key for name in names for key in keys_of_name(diagram, name, argument)}


def _head(spot: Spot, index: int) -> Name | None:
    """What stands above the numbers: of values the spot's own name, of gradients ∂L by it."""
    return None if index == 0 else Name(f"∂L/∂{spot.name.base}", spot.name.below)


def _largest(tensors: object) -> float:
    """The largest absolute value of what is written as numbers; 0 where there is none."""
    found = [
        float(table.abs().nan_to_num(0, 0, 0).max())
        for tensor in tensors  # type: ignore[attr-defined]
        if tensor is not None and (table := _table(tensor)) is not None and table.numel()
    ]
    return max(found, default=0.0)


def _table(tensor: Tensor) -> Tensor | None:
    """The numbers by rows and columns, float64; None where they are too many.

    One row of a batch is a scalar, a column vector or a matrix as it is. Several rows are rows of a matrix.
    """
    value = tensor[0] if tensor.dim() and tensor.shape[0] == 1 else tensor
    if value.is_complex() or value.dim() > 2 or not value.numel():
        return None
    table = value.reshape(-1, 1) if value.dim() < 2 else value
    rows, columns = table.shape
    if rows > MAX_ROWS or columns > MAX_COLUMNS or rows * columns > MAX_NUMBERS:
        return None
    return table.to(torch.float64).cpu()


@dataclass(frozen=True)
class _Style:
    """How the numbers of one place are written: so many decimals, or with an exponent."""

    decimals: int
    exponent: bool = False

    @staticmethod
    def of(tensors: Sequence[Tensor | None], digits: int) -> _Style:
        """The style in which the largest number has so many digits; whole numbers have no decimals."""
        tables = [table for tensor in tensors if tensor is not None and (table := _table(tensor)) is not None]
        finite = torch.cat([table[table.isfinite()] for table in tables]) if tables else torch.zeros(0)
        most = float(finite.abs().max()) if finite.numel() else 0.0
        if most and not MIN_PLAIN <= most < MAX_PLAIN:
            return _Style(digits - 1, exponent=True)
        if not most or bool((finite == finite.round()).all()):
            return _Style(0)
        return _Style(max(0, digits - 1 - math.floor(math.log10(most))))

    def text(self, value: float) -> str:
        if not math.isfinite(value):
            return str(value).replace("-", "−")
        written = f"{value:.{self.decimals}{'e' if self.exponent else 'f'}}"
        is_zero = not float(written)
        return written.lstrip("-") if is_zero else written.replace("-", "−")


def _numbers(tensor: Tensor, style: _Style, largest: float, head: Name | None) -> Numbers:
    table = _table(tensor)
    if table is None:
        shape = tensor.shape[1:] if tensor.dim() and tensor.shape[0] == 1 else tensor.shape
        return Numbers(((f"[{' × '.join(map(str, shape))}]",),), ((0,),), head)
    rows = table.tolist()
    texts = tuple(tuple(style.text(value) for value in row) for row in rows)
    return Numbers(texts, tuple(tuple(_level(value, largest) for value in row) for row in rows), head)


def _level(value: float, largest: float) -> int:
    """The colour of a number: its share of the largest in LEVELS parts, with its sign."""
    if not math.isfinite(value) or not value or not largest:
        return 0
    return int(math.copysign(min(LEVELS, math.ceil(LEVELS * abs(value) / largest)), value))
