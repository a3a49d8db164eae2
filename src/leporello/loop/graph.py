"""fx graphs: read, copied, extended by an operator, run as a Python function; and the operator `stop`.

Every value of a graph has `meta["val"]`, a fake tensor of the Loop's family; `call` adds an operator together with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx

from leporello.loop.fake_tensors import FakeTensorFamily, clean_row_axis, without_symbols
from leporello.loop.sizes import Size


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The positional arguments of an operator."""
    return node.args


def operator_name(node: fx.Node) -> str:
    """The short name of the function that a node calls: `mm`, `tanh`, without namespace and overload."""
    schema = getattr(node.target, "_schema", None)
    return schema.name.split("::")[1] if schema is not None else getattr(node.target, "__name__", str(node.target))


def results(graph: fx.Graph) -> list[fx.Node]:
    """The values that a graph returns."""
    returned: Any = graph.output_node().args[0]
    return list(returned)


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def copied(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A graph's copy, and each node's counterpart in it."""
    copy = fx.Graph()
    counterparts: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        counterparts[node] = copy.node_copy(node, counterparts.__getitem__)
    return copy, counterparts


def call(
    graph: fx.Graph,
    family: FakeTensorFamily,
    target: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    **options: Any,
) -> fx.Node:
    """Add an operator to a graph at its point of insertion, with the fake tensor of its value, and return its node.

    args, options   of the operator: nodes and constants
    name            of the node; by default fx chooses one
    """
    args = tuple(map(without_symbols, args))
    node = graph.create_node("call_function", target, args, options, name=name)
    values = fx.map_arg((args, options), lambda arg: arg.meta["val"])
    if family.lengths:
        values = (family.with_symbols(values[0]), {key: family.with_symbols(value) for key, value in values[1].items()})
    with family.active(), torch.no_grad():
        node.meta["val"] = target(*values[0], **values[1])
    return node


def in_shape(graph: fx.Graph, family: FakeTensorFamily, value: fx.Node, shape: Sequence[Any]) -> fx.Node:
    """Add a value in another shape to a graph.

    By operators that a trace of the graph leaves as they are, so that forward and backward Loop have the same ones;
    `reshape` it replaces by others.
    """
    copy = call(graph, family, torch.ops.aten.clone.default, value, memory_format=torch.contiguous_format)
    return call(graph, family, torch.ops.aten.view.default, copy, list(shape))


class GraphWriter:
    """Adds operators to a graph, at its point of insertion.

    rows   the node of the number of rows, an argument of views
    """

    def __init__(self, graph: fx.Graph, family: FakeTensorFamily) -> None:
        self.graph, self.family, self.rows = graph, family, placeholders(graph)[0]

    def __call__(self, target: Callable[..., Any], *args: Any, **options: Any) -> fx.Node:
        return call(self.graph, self.family, target, *args, **options)

    def in_shape(self, value: fx.Node, shape: Sequence[Any]) -> fx.Node:
        return in_shape(self.graph, self.family, value, shape)


def key_of(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Hashable:
    """A key that two operators share if they compute the same: the target and its arguments.

    numbers   the value numbers of all values that may be arguments: equal values have the same
    """
    return (node.target, _frozen(node.args, numbers), _frozen(node.kwargs, numbers))


def _frozen(argument: Any, numbers: Mapping[fx.Node, int]) -> Any:
    if isinstance(argument, fx.Node):
        return ("value", numbers[argument])
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(item, numbers) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _frozen(value, numbers)) for name, value in argument.items())
    exact = repr(argument) if isinstance(argument, (float, complex)) else argument  # 0.0 == -0.0
    return (type(argument).__name__, exact)


# `stop` is a value through which no gradient passes: the user's `detach` and `no_grad`. An operator of our own, because
# autograd also leaves detached values in traced gradients, where they mean nothing. Its result has no `grad_fn`, since
# what it is made of may have no derivative.
_library = torch.library.Library("leporello", "FRAGMENT")
_library.define("stop(Tensor value) -> Tensor")
_library.impl("stop", torch.clone, "CompositeExplicitAutograd")


@torch.library.register_fake("leporello::stop", lib=_library)
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def _below_autograd(value: Tensor) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return stop(value)


_library.impl("stop", _below_autograd, "Autograd")
stop = torch.ops.leporello.stop.default


@torch.library.register_vmap("leporello::stop", lib=_library)
def _(info: Any, in_dims: tuple[int | None], value: Tensor) -> tuple[Tensor, int | None]:
    return stop(value), in_dims[0]


aten = torch.ops.aten

# The same operators through torch's argument parser: about half a microsecond less per call than an ATen overload.
FASTER_CALLS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.sub.Tensor: torch.sub,
    aten.mul.Tensor: torch.mul,
    aten.div.Tensor: torch.div,
    aten.neg.default: torch.neg,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.addcmul.default: torch.addcmul,
    aten.split.Tensor: torch.Tensor.split,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.masked_fill.Scalar: torch.masked_fill,
    aten.tanh.default: torch.tanh,
    aten.sigmoid.default: torch.sigmoid,
    aten.relu.default: torch.relu,
    aten.exp.default: torch.exp,
    aten.log.default: torch.log,
    aten.sqrt.default: torch.sqrt,
    aten.rsub.Scalar: torch.rsub,
    aten.where.self: torch.where,
    aten.cat.default: torch.cat,
    aten.sum.dim_IntList: torch.sum,
    aten.scalar_tensor.default: torch.scalar_tensor,
    aten.t.default: torch.t,
    aten.view.default: torch.reshape,  # a value's strides may differ from those of its fake tensor
    aten._unsafe_view.default: torch.reshape,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.permute.default: torch.permute,
    aten.transpose.int: torch.transpose,
    stop: torch.Tensor.detach,
}


# Those of them that take `out=`.
TAKES_OUT = {
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.neg,
    torch.mm,
    torch.addmm,
    torch.bmm,
    torch.addcmul,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    torch.sqrt,
    torch.where,
    torch.cat,
}


def function_of(graph: fx.Graph, placed: Sequence[int] = (), order: Sequence[int] | None = None) -> Callable[..., Any]:
    """The graph as a Python function of its placeholders that returns the tuple of its results.

    placed   indices, among those of `placeable`, of results that are written to memory the caller passes: one more
             argument each, behind the others
    order    indices of the placeholders in the order of the arguments; by default the graph's own
    """
    copy, _ = copied(graph)
    _numbers_as_nodes(copy, lambda number: lambda rows: number.value(rows.lengths))
    for node in copy.nodes:
        if node.op == "call_function":
            node.target = FASTER_CALLS.get(node.target, node.target)
        elif node.op == "placeholder":
            node.target = node.name  # an argument W would be w inside, where another value may have that name
    returned, parameters = results(copy), placeholders(copy)
    if order is not None:
        parameters = [parameters[index] for index in order]
        for one, following in pairwise(parameters):
            one.append(following)
    last = parameters[-1]
    for index in placed:
        with copy.inserting_after(last):
            last = copy.placeholder(f"place_{index}")
        returned[index].kwargs = {**returned[index].kwargs, "out": last}
    return fx.GraphModule({}, copy).forward


def traceable(graph: fx.Graph, family: FakeTensorFamily) -> Callable[..., Any]:
    """The graph as a Python function of its placeholders, to be traced: free lengths are the family's symbols."""
    copy, _ = copied(graph)
    _numbers_as_nodes(copy, lambda number: lambda rows: family.with_symbols(number))
    return fx.GraphModule({}, copy).forward


def _numbers_as_nodes(graph: fx.Graph, function: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Replace each number of free lengths among a graph's arguments by a call of function(number) with the rows."""
    nodes: dict[Any, fx.Node] = {}
    inputs = placeholders(graph)

    def replaced(argument: Any) -> Any:
        if isinstance(argument, (tuple, list)):
            return [*map(replaced, argument)]
        if not isinstance(argument, Size):
            return argument
        if argument not in nodes:
            read = function(argument)
            read.__name__ = "length"
            with graph.inserting_after(inputs[-1]):
                nodes[argument] = graph.call_function(read, (inputs[0],))
        return nodes[argument]

    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if any(map(_holds_length, (*node.args, *node.kwargs.values()))):
            node.args = tuple(map(replaced, node.args))
            node.kwargs = {name: replaced(value) for name, value in node.kwargs.items()}


def reads_lengths(graph: fx.Graph) -> bool:
    """Whether an argument of a graph's operators is made of free lengths."""
    return any(_holds_length(argument) for node in graph.nodes for argument in (*node.args, *node.kwargs.values()))


def _holds_length(argument: Any) -> bool:
    if isinstance(argument, (tuple, list)):
        return any(map(_holds_length, argument))
    return isinstance(argument, Size)


def placeable(graph: fx.Graph) -> list[int]:
    """Indices of the results of a graph that can be written to memory the caller passes.

    Their operator has an argument `out`, and their first axis is the rows. Of equal results only the first counts.
    """
    indices: list[int] = []
    seen: set[fx.Node] = set()
    for index, node in enumerate(results(graph)):
        writes = FASTER_CALLS.get(node.target) in TAKES_OUT or getattr(node.target, "places", False)
        if writes and node not in seen and clean_row_axis(node.meta["val"]) == 0:
            indices.append(index)
            seen.add(node)
    return indices
