"""`quantise`: a network whose matrices are stored in int8 or bfloat16, for inference.

A matrix in int8 has one scale for each of its outputs: W is about stored * scale. The scales are those with the least
error of the products on the data. States and biases stay float32. The engine `cpu` multiplies int8 with rows that it
rounds to 16 bits (stored_products.c); other engines round nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from leporello.call.arguments import Call
from leporello.call.plan_cache import rewritten
from leporello.engine.choice import refuse_writes
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, features_of
from leporello.loop.graph import arguments, copied, function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Role
from leporello.loop.state import Tree, leaves_of
from leporello.loop.step import place_of, take
from leporello.loop.value_classes import is_matrix_product, is_view
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers, Stack
from leporello.text_table import plain_table

aten = torch.ops.aten
Weights = Literal["int8", "bfloat16"]
LARGEST = 127  # of int8, so that a range is the same on both sides of zero
SHRUNK = tuple(1 - 0.04 * step for step in range(16))  # parts of the largest number of a row that are tried as range
MOST_STEPS = 256  # of the data that are looked at for the scales
PART_OF = {aten.slice.Tensor, aten.select.int}


# ---- the report


@dataclass(frozen=True)
class QuantiseReport:
    """How far a quantised network is from the network it was made of, on the data.

    weights                       "int8" or "bfloat16"
    matrices                      names of the parameters that are stored so
    bytes_before, bytes_after     of these parameters
    largest_error, mean_error     of the outputs, absolute
    largest_output                the largest absolute value of an output
    """

    weights: str
    matrices: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    largest_error: float
    mean_error: float
    largest_output: float

    def __str__(self) -> str:
        rows = [
            ["weights", f"{self.weights}: {', '.join(self.matrices)}"],
            ["memory", f"{self.bytes_before:,} bytes before, {self.bytes_after:,} after"],
            ["largest error", f"{self.largest_error:.3g}, of outputs up to {self.largest_output:.3g}"],
            ["mean error", f"{self.mean_error:.3g}"],
        ]
        return plain_table(rows, left=(0, 1))


# ---- the network


@dataclass(frozen=True, eq=False)
class _Stored:
    """A matrix in a narrower type.

    numbers   with `inner`, the axis that products sum over, last, so that a product reads memory in order
    scale     of each output, with the axes of the matrix; None in bfloat16
    inner     -1 where products sum over different axes: the axes are then those of the matrix
    """

    numbers: Tensor
    scale: Tensor | None
    inner: int


class _Step(nn.Module):
    """The call of a cell, for `functional_call`."""

    is_step = True

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return take(self.cell, x, state)


class _StoredCell(Cell):
    """A cell that computes some of its matrices from stored ones: stored.to(float) * scale.

    names   of the matrices in the cell
    inner   for each the axis that products sum over, which is stored as the last one
    """

    def __init__(self, cell: Cell, stored: Mapping[str, _Stored]) -> None:
        super().__init__()
        self.own = _Step(copy.deepcopy(cell).requires_grad_(False))
        self.names = tuple(stored)
        self.inner = tuple(matrix.inner for matrix in stored.values())
        self.inputs = features_of(cell)
        self.outputs = getattr(cell, "outputs", None)
        for name, matrix in stored.items():
            _forget(self.own.cell, name)
            self.register_buffer(f"{_flat(name)}_stored", matrix.numbers)
            self.register_buffer(f"{_flat(name)}_scale", matrix.scale)

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        result: tuple[Any, Any] = torch.func.functional_call(self.own, self._matrices(), (x, state))
        return result

    def _matrices(self) -> dict[str, Tensor]:
        found = {}
        for name, inner in zip(self.names, self.inner, strict=True):
            numbers = getattr(self, f"{_flat(name)}_stored")
            last = inner in (-1, numbers.dim() - 1)
            wide = (numbers if last else numbers.transpose(inner, -1)).to(torch.float32)
            scale = getattr(self, f"{_flat(name)}_scale")
            found[f"cell.{name}"] = wide if scale is None else wide * scale
        return found

    def initial_state(self, batch: int, **options: Any) -> Tree:
        return self.own.cell.initial_state(batch, **options)

    def state_names(self) -> list[str]:
        return self.own.cell.state_names()

    def feedback_leaf(self) -> str | None:
        return self.own.cell.feedback_leaf()


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _forget(cell: nn.Module, name: str) -> None:
    """Replace a parameter, wherever it is, by a zero of the same shape without memory of its own."""
    value = cell.get_parameter(name)
    shape = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
    for module in cell.modules():
        for own, parameter in list(module._parameters.items()):
            if parameter is value:
                del module._parameters[own]
                module.register_buffer(own, shape, persistent=False)


class Quantised(Recurrent):
    """A network with stored matrices, for inference: it has no gradients.

    report   how far it is from the network it was made of
    """

    report: QuantiseReport

    def forward(self, inputs: Tree = None, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """As of `lp.Recurrent`, without gradients."""
        if not torch.is_grad_enabled():
            return super().forward(inputs, state, **arguments)
        self._refuse_gradients(inputs, state, arguments.get("context"))
        with torch.no_grad():
            return super().forward(inputs, state, **arguments)

    def step(self, x: Tree = None, state: Tree = None, **arguments: Any) -> tuple[Tree, Tree]:
        """As of `lp.Recurrent`, without gradients."""
        if not torch.is_grad_enabled():
            return super().step(x, state, **arguments)
        self._refuse_gradients(x, state, arguments.get("context"))
        with torch.no_grad():
            return super().step(x, state, **arguments)

    def _refuse_gradients(self, *trees: Tree) -> None:
        if any(map(_requires_gradients, trees)):
            raise ArgumentError(
                "a quantised network has no gradients.",
                cell=place_of(self.cell),
                came="inputs or a state that require gradients",
                tries="with torch.no_grad(): ...; or the network it was made of",
            )


def _requires_gradients(tree: Tree) -> bool:
    """Whether a tensor of a tree requires gradients; fast for a tensor and for a tuple of tensors."""
    if isinstance(tree, Tensor):
        return tree.requires_grad
    if isinstance(tree, tuple):
        return any(map(_requires_gradients, tree))
    return tree is not None and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves_of(tree))


def with_exact_rows(net: Any) -> Any:
    """A network that multiplies rows in float32, as exported files do: one with stored matrices is copied.

    The engine `cpu` rounds the rows that it multiplies with int8.
    """
    if not isinstance(net, nn.Module) or not any(isinstance(module, _StoredCell) for module in net.modules()):
        return net
    found = copy.deepcopy(net)
    for module in found.modules():
        if isinstance(module, Recurrent):
            module.engine = "stepwise"
    return found


def quantise(net: Any, data: Tree, *, weights: Weights = "int8") -> Quantised:
    """A copy of a network with its matrices in int8 or bfloat16: a quarter or half of the memory that a step reads.

    net       lp.Recurrent, lp.Layers of lp.Recurrent, or an lp.Cell; float32, on the CPU
    data      inputs as for a call, (length, batch, ...): on them scales are chosen, and the error is measured
    weights   "int8", with a scale for each output; or "bfloat16"

    The engine `cpu` multiplies with the stored numbers as they are, in int8 by rows in 16 bits; other engines convert
    them at each call. The copy is an lp.Recurrent for inference, without gradients; `report` says how far it is from
    the network. `lp.export` writes it as C with int8 constants.

    >>> from leporello.cells import GRU
    >>> small = quantise(Recurrent(GRU(3, 16)), torch.randn(20, 2, 3))
    >>> small.report.matrices, small.report.largest_error < 0.1
    (('U', 'W'), True)
    """
    recurrent = _recurrent_of(net)
    if weights not in ("int8", "bfloat16"):
        raise ArgumentError("the argument 'weights' is no type.", came=repr(weights), expected='"int8" or "bfloat16"')
    with torch.no_grad():
        call = recurrent._checked(data, None)
        loop = rewritten(recurrent._plan_cache.loop(recurrent.cell, call), recurrent.cell, call)
        refuse_writes(loop, "a quantised network is for inference", "net.eval()")
        products = _products_with(loop, recurrent.cell)
        if not products:
            raise ArgumentError(
                "the step multiplies with no float32 parameter that could be stored narrower.",
                cell=place_of(recurrent.cell),
                expected="x @ W.T, nn.Linear or the like, with parameters in float32",
            )
        moments = _moments(loop, call, products) if weights == "int8" else {}
        stored = {
            name: _stored(recurrent.cell.get_parameter(name).detach(), uses, moments, weights)
            for name, uses in products.items()
        }
        cell: Any = recurrent.cell
        small = Quantised(_StoredCell(cell, stored), engine=recurrent.engine, batch_first=recurrent.batch_first)
        small.train(recurrent.training)
        small.report = _report(recurrent, small, data, stored, weights)
    return small


def _recurrent_of(net: Any) -> Recurrent:
    """The network as a Recurrent; refuses what cannot be quantised."""
    found = net
    if isinstance(net, Cell):
        found = Recurrent(net)
    elif isinstance(net, Layers) and all(isinstance(part, Recurrent) for part in net.nets):
        first: Any = net.nets[0]
        cells: list[Any] = [part.cell for part in net.nets]
        found = Recurrent(Stack(*cells, dropout=net.dropout), engine=first.engine, batch_first=first.batch_first)
        found.train(net.training)
    if isinstance(found, Quantised) or not isinstance(found, Recurrent) or not isinstance(found.cell, Cell):
        raise ArgumentError(
            "the argument 'net' is nothing that can be quantised.",
            came=type(net).__name__ + (" of a cell that declares no state" if isinstance(found, Recurrent) else ""),
            expected="lp.Recurrent of an lp.Cell, lp.Layers of such, or an lp.Cell",
        )
    device = next((value.device for value in found.parameters()), torch.device("cpu"))
    if device.type != "cpu":
        raise ArgumentError("only networks on the CPU are quantised.", came=str(device), tries="net.cpu()")
    return found


def _report(
    recurrent: Recurrent, small: Quantised, data: Tree, stored: Mapping[str, _Stored], weights: str
) -> QuantiseReport:
    draws = recurrent.draw(data) or None  # both with the same random numbers
    before, after = (one(data, draws=draws)[0] for one in (recurrent, small))
    pairs = list(zip(leaves_of(before), leaves_of(after), strict=True))
    pairs = [(one.double(), other.double()) for one, other in pairs if isinstance(one, Tensor)]
    errors = torch.cat([(one - other).abs().flatten() for one, other in pairs])
    values = [value for one in stored.values() for value in (one.numbers, one.scale) if value is not None]
    return QuantiseReport(
        weights=weights,
        matrices=tuple(stored),
        bytes_before=sum(4 * one.numbers.numel() for one in stored.values()),
        bytes_after=sum(value.numel() * value.element_size() for value in values),
        largest_error=float(errors.max()),
        mean_error=float(errors.mean()),
        largest_output=max(float(one.abs().max()) for one, _ in pairs),
    )


# ---- which parameters are multiplied with, and by what


@dataclass(frozen=True)
class _Use:
    """A product with a parameter.

    row     the other factor
    inner   the axis of the parameter that is summed over
    whole   whether the product reads all of the parameter, and so the row has a number for each of its inner axis
    """

    row: fx.Node
    row_axis: int
    inner: int
    whole: bool


def _products_with(loop: Loop, cell: nn.Module) -> dict[str, list[_Use]]:
    """The float32 parameters of the cell that rows are multiplied with, and how."""
    ports = dict(zip(loop.placeholders, loop.inputs, strict=True))
    own = {name for name, value in cell.named_parameters() if value.dtype == torch.float32 and value.dim() >= 2}
    found: dict[str, list[_Use]] = {}
    for node in loop.nodes:
        if not is_matrix_product(node):
            continue
        left, right = arguments(node)[-2:]
        for factor, row, inner, along in ((right, left, -2, -1), (left, right, -1, -2)):
            origin, axis, whole = _origin(factor, inner)
            port = ports.get(origin)
            if port is not None and port.kind == "invariant" and port.name in own and axis is not None:
                found.setdefault(port.name, []).append(_Use(row, along, axis, whole))
    return found


def _origin(node: fx.Node, axis: int | None) -> tuple[fx.Node, int | None, bool]:
    """The value that a factor is a view or a part of, an axis of it, and whether it is all of it."""
    whole = True
    axis = None if axis is None else axis % node.meta["val"].dim()
    while (is_view(node) or node.target in PART_OF) and axis is not None:
        source, operands = arguments(node)[0], arguments(node)[1:]
        dims = source.meta["val"].dim()
        if node.target in (aten.t.default, aten.transpose.int):
            one, other = (0, 1) if node.target is aten.t.default else (operands[0] % dims, operands[1] % dims)
            axis = other if axis == one else one if axis == other else axis
        elif node.target is aten.permute.default:
            axis = operands[0][axis] % dims
        elif node.target is aten.slice.Tensor:
            whole = False
        elif node.target is aten.select.int:
            whole, axis = False, axis + (axis >= operands[0] % dims)
        elif node.target is aten.unsqueeze.default:
            new = operands[0] % (dims + 1)
            axis = None if axis == new else axis - (axis > new)
        else:
            return node, None, False
        node = source
    return node, axis, whole


def _moments(loop: Loop, call: Call, products: Mapping[str, list[_Use]]) -> dict[fx.Node, Tensor]:
    """The mean square of each number of the rows that matrices are multiplied with, on the data."""
    graph, copies = copied(loop.graph)
    rows = list(dict.fromkeys(use.row for uses in products.values() for use in uses if use.whole))
    states = [(port.name, node) for port, node in zip(loop.outputs, loop.results, strict=True) if port.kind == "state"]
    graph.output_node().args = (tuple(copies[node] for node in (*[node for _, node in states], *rows)),)
    graph.eliminate_dead_code()
    step = function_of(graph)
    sequences, now = dict(call.sequences), dict(call.states)
    sums: dict[fx.Node, Tensor] = {}
    axes = {use.row: use.row_axis for uses in products.values() for use in uses}
    length = min(call.length, MOST_STEPS)
    for time in range(length):
        values = [_value_of(loop, port, call, time, sequences, now) for port in loop.inputs]
        results = step(call.batch, *values)
        now = {name: value for (name, _), value in zip(states, results, strict=False)}
        for node, value in zip(rows, results[len(states) :], strict=True):
            square = value.double().square().movedim(axes[node], -1)
            mean = square.reshape(-1, square.shape[-1]).mean(0)
            sums[node] = sums[node] + mean if node in sums else mean
    return {node: value / length for node, value in sums.items()}


def _value_of(
    loop: Loop, port: Any, call: Call, time: int, sequences: Mapping[str, Tensor], states: Mapping[str, Tensor]
) -> Tensor:
    if port.kind == "state":
        return states[port.name]
    if port.role is Role.TIME:
        return torch.full((call.batch, 1), time)
    if port.is_drawn:
        shape = port.shape_of(1, call.batch)
        return (torch.rand(shape) if port.distribution == "uniform" else torch.randn(shape)).to(port.dtype)[0]
    if port.kind == "sequence":
        return sequences[port.name][time]
    value = loop.invariant(port.name)
    assert value is not None, port.name
    return value.detach()


# ---- numbers


def _stored(value: Tensor, uses: Iterable[_Use], moments: Mapping[fx.Node, Tensor], weights: str) -> _Stored:
    """A matrix as stored numbers and their scale: one for each output where all products sum over the same axis."""
    uses = list(uses)
    axes = sorted({use.inner for use in uses})
    last = axes[0] if len(axes) == 1 else -1
    if weights == "bfloat16":
        return _Stored(value.to(torch.bfloat16).transpose(last, -1).contiguous(), None, last)
    known = [moments[use.row] for use in uses if use.row in moments]
    weight = torch.ones(())
    if len(axes) == 1 and known:
        weight = torch.stack(known).mean(0).float() + 1e-12
        weight = weight.reshape([-1 if axis == axes[0] else 1 for axis in range(value.dim())])
    largest = value.abs().amax(axes, keepdim=True)
    best = torch.full_like(largest, torch.inf)
    scale = torch.ones_like(largest)
    for part in SHRUNK:
        tried = (largest * part / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        off = ((_rounded(value, tried) * tried - value).square() * weight).sum(axes, keepdim=True)
        scale = torch.where(off < best, tried, scale)
        best = torch.minimum(best, off)
    numbers = _rounded(value, scale).to(torch.int8).transpose(last, -1).contiguous()
    return _Stored(numbers, scale.contiguous(), last)


def _rounded(value: Tensor, scale: Tensor) -> Tensor:
    return (value / scale).round().clamp(-LARGEST, LARGEST)
