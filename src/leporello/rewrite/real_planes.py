"""The rewrite `real_planes`: complex numbers as two planes of real ones, for kernels that compute with real numbers.

A complex input or output becomes a port with an axis of two in front of its features, the real and the imaginary
parts. The step is traced once more with a `Planes` in the place of each complex value; the table `RULES` says what each
operator does with them. A Loop with an operator that is not in the table stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.graph import copied, operator_name, placeholders, results
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import kept
from leporello.loop.port import Port
from leporello.loop.tracing.graph_cleanup import label_values, tidy

aten = torch.ops.aten


class NotCovered(Exception):
    """An operator on complex numbers that has no rule."""


@dataclass(frozen=True)
class Planes:
    """A complex value: its real part, and its imaginary part in the same shape, None where that is zero."""

    real: Any
    imag: Any = None


def real_planes(loop: Loop) -> Loop | None:
    """The Loop with real numbers alone; None where it has no others, or where that cannot be."""
    values = [node.meta["val"] for node in loop.graph.nodes if "val" in node.meta]
    if not any(isinstance(value, Tensor) and value.is_complex() for value in values):
        return None
    inputs = tuple(map(_port_of_planes, loop.inputs))
    try:
        return _rewritten(loop, inputs)
    except NotCovered:
        return None


def planes_of(value: Tensor, axis: int) -> Tensor:
    """A complex tensor as a real one, with the two parts along a new axis."""
    return torch.stack([value.real, value.imag], axis)


def complex_of(planes: Tensor, axis: int) -> Tensor:
    """The complex tensor of two planes along an axis."""
    return torch.complex(*planes.unbind(axis))


def _port_of_planes(port: Port) -> Port:
    if not port.dtype.is_complex:
        return port
    return replace(port, shape=(2, *port.shape), dtype=port.dtype.to_real(), planes=True)


def _rewritten(loop: Loop, inputs: tuple[Port, ...]) -> Loop:
    def step(rows: Any, *values: Tensor) -> list[Tensor]:
        given = [
            Planes(*value.unbind(1 if port.rows else 0)) if port.planes else value
            for port, value in zip(inputs, values, strict=True)
        ]
        made = _run(loop.graph, [rows, *given])
        return [
            torch.stack([value.real, _imag(value)], int(port.rows)) if isinstance(value, Planes) else value
            for port, value in zip(loop.outputs, made, strict=True)
        ]

    family = loop.family
    with family.no_new_guards(), kept():
        module = family.graph_of(
            step, family.rows, *[family.tensor(p.shape, p.dtype, p.device, rows=p.rows) for p in inputs]
        )
    graph, _ = copied(module.graph)
    constants = tidy(graph, module, family)
    taken = {name: planes_of(value, 0) if value.is_complex() else value for name, value in loop.constants.items()}
    names = {name: f"planes.{name}" for name in constants}
    ports = [
        Port("invariant", names[name], tuple(value.shape), value.dtype, value.device, rows=False)
        for name, value in constants.items()
    ]
    label_values(graph, (*inputs, *ports), placeholders(graph)[1:], {})
    return loop.replace(
        graph=graph,
        inputs=(*inputs, *ports),
        outputs=tuple(map(_port_of_planes, loop.outputs)),
        constants={**taken, **{names[name]: value for name, value in constants.items()}},
    )


def _run(graph: fx.Graph, inputs: Sequence[Any]) -> list[Any]:
    """The results of a graph, with `Planes` in the place of complex values."""
    values: dict[fx.Node, Any] = dict(zip(placeholders(graph), inputs, strict=True))
    for node in graph.nodes:
        if node.op == "call_function":
            args, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _applied(node, args, options)
    return [values[node] for node in results(graph)]


def _applied(node: fx.Node, args: Any, options: Any) -> Any:
    value = node.meta["val"]
    parts = value if isinstance(value, (tuple, list)) else [value]
    makes_complex = any(isinstance(part, Tensor) and part.is_complex() for part in parts)
    if not makes_complex and not _holds_planes((args, options)):
        return node.target(*args, **options)  # type: ignore[operator]
    name = operator_name(node)
    rule = RULES.get(name)
    if rule is None:
        raise NotCovered(name)
    return rule(node, *args, **options)


def _holds_planes(tree: Any) -> bool:
    if isinstance(tree, (tuple, list)):
        return any(map(_holds_planes, tree))
    if isinstance(tree, dict):
        return any(map(_holds_planes, tree.values()))
    return isinstance(tree, Planes)


def _imag(value: Planes) -> Any:
    return torch.zeros_like(value.real) if value.imag is None else value.imag


def _planes(value: Any) -> Planes:
    """Any operand as planes: a number, or a real tensor, has no imaginary part."""
    if isinstance(value, Planes):
        return value
    if isinstance(value, complex):
        return Planes(value.real, value.imag)
    return Planes(value)


# ---- rules: from the node and its arguments to its value


def _add(node: fx.Node, one: Any, other: Any, alpha: Any = 1) -> Planes:
    return _sum(_planes(one), _times(_planes(other), alpha))


def _sub(node: fx.Node, one: Any, other: Any, alpha: Any = 1) -> Planes:
    return _sum(_planes(one), _times(_planes(other), -alpha))


def _sum(one: Planes, other: Planes) -> Planes:
    real = one.real + other.real
    if one.imag is None and other.imag is None:
        return Planes(real)
    if one.imag is None or other.imag is None:
        imag = other.imag if one.imag is None else one.imag
        return Planes(real, imag + torch.zeros_like(real))
    return Planes(real, one.imag + other.imag)


def _times(value: Planes, factor: Any) -> Planes:
    if isinstance(factor, complex):
        return _product(value, _planes(factor), operator.mul)
    if factor == 1:
        return value
    return Planes(value.real * factor, None if value.imag is None else value.imag * factor)


def _product(one: Planes, other: Planes, multiply: Callable[[Any, Any], Any]) -> Planes:
    """The product by a bilinear function of real values."""
    if one.imag is None and other.imag is None:
        return Planes(multiply(one.real, other.real))
    if one.imag is None:
        return Planes(multiply(one.real, other.real), multiply(one.real, other.imag))
    if other.imag is None:
        return Planes(multiply(one.real, other.real), multiply(one.imag, other.real))
    real = multiply(one.real, other.real) - multiply(one.imag, other.imag)
    return Planes(real, multiply(one.real, other.imag) + multiply(one.imag, other.real))


def _mul(node: fx.Node, one: Any, other: Any) -> Planes:
    return _product(_planes(one), _planes(other), operator.mul)


def _div(node: fx.Node, one: Any, other: Any) -> Planes:
    one, other = _planes(one), _planes(other)
    if other.imag is None:
        return Planes(one.real / other.real, None if one.imag is None else one.imag / other.real)
    size = other.real * other.real + other.imag * other.imag
    above = _product(one, Planes(other.real, -other.imag), operator.mul)
    return Planes(above.real / size, above.imag / size)


def _matrix_product(target: Any) -> Callable[..., Planes]:
    """[rows, k] by [k, n] as one product of real numbers, [real, imag] by [[real, imag], [-imag, real]]."""

    def rule(node: fx.Node, one: Any, other: Any) -> Planes:
        one, other = _planes(one), _planes(other)
        if other.imag is None:
            return _product(one, other, target)
        if one.imag is None:
            return Planes(*target(one.real, torch.cat([other.real, other.imag], -1)).chunk(2, -1))
        left = torch.cat([one.real, one.imag], -1)
        above, below = torch.cat([other.real, other.imag], -1), torch.cat([-other.imag, other.real], -1)
        return Planes(*target(left, torch.cat([above, below], -2)).chunk(2, -1))

    return rule


def _addmm(node: fx.Node, bias: Any, one: Any, other: Any, beta: Any = 1, alpha: Any = 1) -> Planes:
    product = _matrix_product(torch.mm)(node, one, other)
    return _sum(_times(_planes(bias), beta), _times(product, alpha))


def _modulus(value: Planes) -> Tensor:
    """The absolute value; its derivative at zero is zero, as torch has it."""
    square = value.real * value.real + _imag(value) * _imag(value)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(square), torch.sqrt(torch.where(zero, torch.ones_like(square), square)))


def _abs(node: fx.Node, value: Planes) -> Tensor:
    return _modulus(value)


def _angle(node: fx.Node, value: Planes) -> Tensor:
    zero = (value.real == 0) & (_imag(value) == 0)
    real = torch.where(zero, torch.ones_like(value.real), value.real)
    return torch.atan2(_imag(value), real)


def _sgn(node: fx.Node, value: Planes) -> Planes:
    size = _modulus(value)
    size = torch.where(size == 0, torch.ones_like(size), size)
    return Planes(value.real / size, _imag(value) / size)


def _exp(node: fx.Node, value: Planes) -> Planes:
    size = torch.exp(value.real)
    return Planes(size * torch.cos(_imag(value)), size * torch.sin(_imag(value)))


def _tanh(node: fx.Node, value: Planes) -> Planes:
    # tanh(a + bi) = (sinh 2a + i sin 2b) / (cosh 2a + cos 2b), both divided by cosh 2a
    a, b = 2 * value.real, 2 * _imag(value)
    small = 1 / torch.cosh(a)
    below = 1 + torch.cos(b) * small
    return Planes(torch.tanh(a) / below, torch.sin(b) * small / below)


def _reciprocal(node: fx.Node, value: Planes) -> Planes:
    return _div(node, 1.0, value)


def _pow(node: fx.Node, value: Planes, exponent: Any) -> Planes:
    if exponent not in (2, 3):
        raise NotCovered(f"pow with {exponent}")
    square = _mul(node, value, value)
    return square if exponent == 2 else _mul(node, square, value)


def _neg(node: fx.Node, value: Planes) -> Planes:
    return Planes(-value.real, None if value.imag is None else -value.imag)


def _conj(node: fx.Node, value: Planes) -> Planes:
    return Planes(value.real, None if value.imag is None else -value.imag)


def _real(node: fx.Node, value: Planes) -> Any:
    return value.real


def _imaginary(node: fx.Node, value: Planes) -> Any:
    return _imag(value)


def _complex(node: fx.Node, real: Tensor, imag: Tensor) -> Planes:
    return Planes(*torch.broadcast_tensors(real, imag))


def _polar(node: fx.Node, size: Tensor, angle: Tensor) -> Planes:
    return Planes(size * torch.cos(angle), size * torch.sin(angle))


def _view_as_real(node: fx.Node, value: Planes) -> Tensor:
    return torch.stack([value.real, _imag(value)], -1)


def _view_as_complex(node: fx.Node, value: Tensor) -> Planes:
    return Planes(*value.unbind(-1))


def _cast(node: fx.Node, value: Any, **options: Any) -> Any:
    dtype = node.meta["val"].dtype
    value = _planes(value)
    if not dtype.is_complex:
        return value.real.to(dtype)
    dtype = dtype.to_real()
    return Planes(value.real.to(dtype), None if value.imag is None else value.imag.to(dtype))


def _full(node: fx.Node, size: Any, number: Any, **options: Any) -> Planes:
    options["dtype"] = node.meta["val"].dtype.to_real()
    number = complex(number)
    real = aten.full.default(size, number.real, **options)
    return Planes(real, aten.full.default(size, number.imag, **options) if number.imag else None)


def _where(node: fx.Node, condition: Tensor, one: Any, other: Any) -> Planes:
    one, other = _planes(one), _planes(other)
    return Planes(torch.where(condition, one.real, other.real), torch.where(condition, _part(one, 1), _part(other, 1)))


def _masked_fill(node: fx.Node, value: Planes, mask: Tensor, number: Any) -> Planes:
    filled = complex(number) if isinstance(number, (int, float, complex)) else None
    if filled is None:
        raise NotCovered("masked_fill with a tensor")
    return Planes(value.real.masked_fill(mask, filled.real), _imag(value).masked_fill(mask, filled.imag))


def _part(value: Planes, place: int) -> Any:
    """The real or the imaginary part; 0 where that is zero everywhere."""
    if place == 0:
        return value.real
    if value.imag is not None:
        return value.imag
    return torch.zeros_like(value.real) if isinstance(value.real, Tensor) else 0.0


def _on_both(node: fx.Node, *args: Any, **options: Any) -> Any:
    """An operator that acts on each part alone: views, sums, copies, and those that join several values."""
    target: Any = aten.reshape.default if node.target in _NEED_STRIDES else node.target
    made = []
    for place in (0, 1):

        def part(value: Any, place: int = place) -> Any:
            if isinstance(value, Planes):
                return _part(value, place)
            return [part(item) for item in value] if isinstance(value, (list, tuple)) else value

        made.append(target(*[part(argument) for argument in args], **options))
    if isinstance(made[0], (tuple, list)):
        return [Planes(*pair) for pair in zip(*made, strict=True)]
    return Planes(*made)


_NEED_STRIDES = (aten.view.default, aten._unsafe_view.default)  # which a part, a slice of both, may not have


def _getitem(node: fx.Node, values: Any, place: Any) -> Any:
    return values[place]


_BOTH = (
    "view _unsafe_view reshape permute transpose t expand expand_as unsqueeze squeeze slice select split "
    "split_with_sizes cat stack clone alias detach stop sum mean index_select gather flip roll unbind repeat "
    "constant_pad_nd diagonal unfold slice_scatter select_scatter copy index cumsum"
)
RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_BOTH.split(), _on_both),
    "add": _add,
    "sub": _sub,
    "rsub": lambda node, one, other, alpha=1: _sub(node, other, one, alpha),
    "mul": _mul,
    "div": _div,
    "mm": _matrix_product(torch.mm),
    "bmm": _matrix_product(torch.bmm),
    "addmm": _addmm,
    "abs": _abs,
    "angle": _angle,
    "sgn": _sgn,
    "exp": _exp,
    "tanh": _tanh,
    "reciprocal": _reciprocal,
    "pow": _pow,
    "neg": _neg,
    "_neg_view": _neg,
    "_conj": _conj,
    "_conj_physical": _conj,
    "conj_physical": _conj,
    "resolve_conj": lambda node, value: value,
    "resolve_neg": lambda node, value: value,
    "real": _real,
    "imag": _imaginary,
    "complex": _complex,
    "polar": _polar,
    "view_as_real": _view_as_real,
    "view_as_complex": _view_as_complex,
    "_to_copy": _cast,
    "full": _full,
    "scalar_tensor": lambda node, number, **options: _full(node, [], number, **options),
    "where": _where,
    "masked_fill": _masked_fill,
    "getitem": _getitem,
}
