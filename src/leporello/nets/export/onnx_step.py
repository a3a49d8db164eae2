"""`StepWriter`: the operators of a Loop's graph, written as ONNX nodes by the tables of operators and views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table

from leporello.errors import EngineRefusal
from leporello.kernel.decompose import DECOMPOSITIONS, replaced
from leporello.kernel.lowering_context import short
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import placeholders, results
from leporello.nets.export.onnx_graph import ELEMENT_TYPES, OnnxGraph

Values = str | tuple[str, ...]  # the name of a result, or those of several
Rule = Callable[["StepWriter", fx.Node, dict[str, Any]], Values]

# Rules not used in float64, where there is a decomposition: the epsilon of ONNX's norm is a float32, and onnxruntime
# has convolutions of float32 alone.
NOT_IN_FLOAT64 = {"native_layer_norm", "convolution"}


class StepWriter:
    """Writes the operators of one graph.

    graph    where the nodes go
    rows     the name of the number of rows, a list of one integer
    family   the fake tensors of the graph that is written
    rules    for each operator that ONNX has, by name, what writes it
    """

    graph: OnnxGraph

    def __init__(self, graph: OnnxGraph, rows: str, family: FakeTensorFamily, rules: Mapping[str, Rule]) -> None:
        self.graph, self.rows, self.family, self.rules = graph, rows, family, rules
        self._values: dict[fx.Node, Values] = {}

    def write(self, graph: fx.Graph, reads: Sequence[str]) -> list[str]:
        """Write all operators of a graph, and return the names of its results.

        reads   the names of what its placeholders stand for, behind the number of rows
        """
        graph = replaced(graph, self.family, self._decomposition)
        first, *others = placeholders(graph)
        self._values[first] = self.rows
        self._values |= dict(zip(others, reads, strict=True))
        for node in graph.nodes:
            if node.op == "call_function":
                self.graph.line, self.graph.label = node.meta.get("line"), node.meta.get("label") or node.name
                self._values[node] = self._written(node)
        self.graph.line = self.graph.label = None
        return [self.value(node) for node in results(graph)]

    def _written(self, node: fx.Node) -> Values:
        if not node.all_input_nodes:
            return self._constant(node)
        name = rule_name(node)
        if name not in self.rules:
            raise _not_covered(node, "ONNX has no operator for it that is known here.")
        values = node.meta["val"]
        for value in values if isinstance(values, (tuple, list)) else [values]:
            if isinstance(value, Tensor) and value.dtype not in ELEMENT_TYPES:
                raise _not_covered(node, f"ONNX does not compute with {str(value.dtype).removeprefix('torch.')}.")
        return self.rules[name](self, node, bound(node))

    def _constant(self, node: fx.Node) -> Values:
        """An operator that reads no value: it is computed now. Of uninitialised memory nothing is read."""
        if short(node) in ("empty", "empty_strided"):
            value = torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        else:
            target: Any = node.target
            value = target(*node.args, **node.kwargs)
        if not isinstance(value, Tensor):
            raise _not_covered(node, "its result is no tensor.")
        return self.graph.model.constant(value)

    def _decomposition(self, node: fx.Node) -> Callable[..., Any] | None:
        """What computes an operator that no rule writes from others."""
        name = rule_name(node)
        has_rule = name in self.rules
        if not node.all_input_nodes or (has_rule and not (name in NOT_IN_FLOAT64 and _in_float64(node))):
            return None
        function = DECOMPOSITIONS[name](node) if name in DECOMPOSITIONS else None
        target: Any = node.target
        return function or (None if has_rule else decomposition_table.get(target))

    # ---- what the rules read

    def value(self, argument: Any, dtype: torch.dtype | None = None) -> str:
        """The name of an argument: a value, or a number, which becomes a constant.

        dtype   to which it is converted; by default a value stays as it is
        """
        if not isinstance(argument, fx.Node):
            return self.graph.constant(argument, dtype)
        name = self._values[argument]
        assert isinstance(name, str)
        found = argument.meta.get("val")
        if dtype is None or (isinstance(found, Tensor) and found.dtype == dtype):
            return name
        if not isinstance(found, Tensor):  # a number made of the number of rows
            name = self.graph("Squeeze", name, name="number")
        return self.graph.cast(name, dtype)

    def part(self, argument: fx.Node, index: int) -> str:
        """One of several results."""
        return self._values[argument][index]

    def result(self, node: fx.Node) -> torch.dtype:
        dtype: torch.dtype = node.meta["val"].dtype
        return dtype

    def size(self, size: Any) -> int | str:
        """A size among the arguments of an operator, or of a fake tensor: a number, or the name of a list of one."""
        if isinstance(size, fx.Node):
            return self.value(size)
        if isinstance(size, int):
            return size
        times = self.family.per_row(size)
        if not isinstance(times, int):
            raise EngineRefusal(
                "the sizes of a value are not known before the model runs.", came=str(size), expected="rows, or numbers"
            )
        return self.rows if times == 1 else self.graph("Mul", self.rows, self.graph.ints(times), name="rows")

    def shape(self, value: Tensor) -> str:
        """The shape of a fake tensor, as a list of integers."""
        return self.graph.sizes(*(self.size(size) for size in value.shape))

    def expand(self, name: str, value: Tensor) -> str:
        """A value repeated to the shape of a fake tensor."""
        return self.graph("Expand", name, self.shape(value))


def rule_name(node: fx.Node) -> str:
    """The name of an operator in the tables: that of ATen, or of Python's on numbers with "operator." in front."""
    return f"operator.{short(node)}" if getattr(node.target, "__module__", "") == "_operator" else short(node)


def bound(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator by the names of its schema, with defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    found = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    found |= dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    return found | dict(node.kwargs)


def _in_float64(node: fx.Node) -> bool:
    values = node.meta["val"]
    return any(value.dtype is torch.float64 for value in (values if isinstance(values, (tuple, list)) else [values]))


def _not_covered(node: fx.Node, why: str) -> EngineRefusal:
    origin = node.meta.get("origin")
    return EngineRefusal(
        f"the operator {node.target} cannot be exported to ONNX: {why}",
        line=node.meta.get("line"),
        part_of=origin if origin != short(node) else None,
        tries="compute it from other operators; or lp.export(net, 'model.c', example=...)",
    )
