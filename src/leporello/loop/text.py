"""A Loop as text, one line a value: `text_of` writes it, `loop_of_text` reads it back.

Reading computes every shape anew from the inputs' shapes, so that a text cannot contradict itself.
"""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import ArgumentError
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.graph import call
from leporello.loop.loop import Loop
from leporello.loop.own_gradients import closed, opened
from leporello.loop.port import Port, Role


def text_of(loop: Loop) -> str:
    """The loop's inputs, operators and results in an order in which they can run."""
    loop = opened(loop)
    lines = [f"loop {loop.name}" + (", time reversed" if loop.reverse else "")]
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        kind = port.kind if port.distribution is None else f"{port.kind} {port.distribution}"
        device = "" if port.device.type == "cpu" else f" on {port.device}"
        if port.name in loop.constants:
            kind, device = "constant", f"{device} = {loop.constants[port.name].tolist()!r}"
        lines.append(f"  {kind:<10} {node.name} = {port.name!r} {port}{_role_text(port)}{device}")
    for node in loop.nodes:
        lines.append(
            f"  {node.name} = {_target_text(node.target)}({_arguments(node)})  # {value_text(node.meta['val'])}"
        )
    for port, node in zip(loop.outputs, loop.results, strict=True):
        kind = "next state" if port.kind == "state" else f"output {port.kind}"
        kind = "output final" if port.name in loop.last_step_outputs and port.kind == "sequence" else kind
        rows = " per row" if port.kind == "total" and port.rows else ""
        lines.append(f"  {kind} {port.name!r}{rows}{_role_text(port)} = {node.name}")
    return "\n".join(lines) + "\n"


def _role_text(port: Port) -> str:
    """The role of a port, where it is not the default one of its kind, and the port it belongs to."""
    role = "" if port.has_default_role else f" as {port.role.value}"
    return role if port.of is None else f"{role} of {port.of.kind} {port.of.name!r}{_role_text(port.of)}"


def _target_text(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target.__name__}"
    return f"python.{target.__name__}"


def _arguments(node: fx.Node) -> str:
    positional = [_argument_text(argument) for argument in node.args]
    return ", ".join([*positional, *(f"{name}={_argument_text(value)}" for name, value in node.kwargs.items())])


def _argument_text(argument: Any) -> str:
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(map(_argument_text, argument)) + "]"
    if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)):
        return str(argument)
    if isinstance(argument, torch.device):
        return f"torch.device({str(argument)!r})"
    return argument.name if isinstance(argument, fx.Node) else repr(argument)


def value_text(value: Any) -> str:
    """Dtype and shape of a value, `rows` for the symbol."""
    if isinstance(value, Tensor):
        sizes = [str(n) if isinstance(n, int) else _rows_text(n) for n in value.shape]
        return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(sizes)}]"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(value_text, value)) + ")"
    return _rows_text(value)


def _rows_text(size: Any) -> str:
    if not hasattr(size, "node"):
        return str(size)
    text = str(size.node.expr)
    for symbol in size.node.expr.free_symbols:
        text = text.replace(str(symbol), "rows")
    return text


_ROLE = r"(?P<role>(?: as \w+)?(?: of \w+ (?:'.*?'|\".*?\")(?: as \w+)?)*)"
_HEAD = re.compile(r"loop (?P<name>.*?)(?P<reverse>, time reversed)?$")
_INPUT = re.compile(
    r"  (?P<kind>sequence|invariant|constant|state|draw uniform|draw normal) +(?P<node>\w+) = (?P<name>'.*?'|\".*?\") "
    r"(?P<dtype>\w+) \[(?P<sizes>[^\]]*)\]" + _ROLE + r"(?: on (?P<device>[\w:]+))?(?: = (?P<value>.*))?$"
)
_OPERATOR = re.compile(r"  (?P<node>\w+) = (?P<target>[\w.]+)\((?P<arguments>.*)\)  # .*$")
_OUTPUT = re.compile(
    r"  (?P<kind>next state|output (?:sequence|total|final)) (?P<name>'.*?'|\".*?\")(?P<rows> per row)?"
    + _ROLE
    + r" = (?P<node>\w+)$"
)


def loop_of_text(text: str) -> Loop:
    """The Loop that `text_of` wrote. It has no module: pass the values of its invariants when it runs."""
    lines = text.rstrip("\n").split("\n")
    head = _HEAD.match(lines[0])
    if head is None:
        raise _unreadable(1, lines[0])
    reader = _Reader([match for line in lines if (match := _INPUT.match(line))])
    for number, line in enumerate(lines[1:], start=2):
        reader.read(number, line)
    return reader.loop(head["name"], reverse=head["reverse"] is not None)


class _Reader:
    """Builds a Loop from the lines of its text.

    inputs   the matches of all input lines, whose sizes the family must know before the first tensor is made
    """

    def __init__(self, inputs: list[re.Match[str]]) -> None:
        sizes = [int(size) for match in inputs for size in re.findall(r"\d+", match["sizes"])]
        self.family = FakeTensorFamily(feature_sizes=sizes)
        self.graph = fx.Graph()
        rows = self.graph.placeholder("rows")
        rows.meta["val"] = self.family.rows
        self.nodes = {"rows": rows}
        self.inputs: list[Port] = []
        self.outputs: list[tuple[Port, fx.Node]] = []
        self.constants: dict[str, Tensor] = {}
        self.last_step_outputs: list[str] = []

    def read(self, number: int, line: str) -> None:
        for pattern, add in ((_INPUT, self._input), (_OUTPUT, self._output), (_OPERATOR, self._operator)):
            match = pattern.match(line)
            if match is not None:
                add(match)
                return
        raise _unreadable(number, line)

    def _input(self, match: re.Match[str]) -> None:
        kind, _, distribution = match["kind"].partition(" ")
        sizes = match["sizes"].split(", ") if match["sizes"] else []
        rows = sizes[:1] == ["rows"]
        name, dtype = ast.literal_eval(match["name"]), getattr(torch, match["dtype"])
        device = torch.device(match["device"] or "cpu")
        if kind == "constant":
            self.constants[name] = torch.tensor(ast.literal_eval(match["value"]), dtype=dtype, device=device)
        port = Port(
            "invariant" if kind == "constant" else kind,  # type: ignore[arg-type]
            name,
            tuple(int(size) for size in sizes[rows:]),
            dtype,
            device,
            rows,
            distribution or None,
        )
        port = _with_role(port, match["role"])
        node = self.graph.create_node("placeholder", match["node"], name=match["node"])
        node.meta.update(val=self.family.tensor(port.shape, dtype, device, rows=rows), label=name)
        self.nodes[match["node"]] = node
        self.inputs.append(port)

    def _operator(self, match: re.Match[str]) -> None:
        parsed = ast.parse(f"_({match['arguments']})", mode="eval").body
        assert isinstance(parsed, ast.Call)
        args = [self._argument(argument) for argument in parsed.args]
        options = {str(option.arg): self._argument(option.value) for option in parsed.keywords}
        node = call(self.graph, self.family, _target(match["target"]), *args, name=match["node"], **options)
        self.nodes[match["node"]] = node

    def _argument(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.List):
            return [self._argument(item) for item in tree.elts]
        if isinstance(tree, ast.Name):
            return self.nodes[tree.id] if tree.id in self.nodes else float(tree.id)  # inf and nan
        if isinstance(tree, ast.Attribute):
            return getattr(torch, tree.attr)
        if isinstance(tree, ast.Call):
            return torch.device(ast.literal_eval(tree.args[0]))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.operand, ast.Name):
            return -float(tree.operand.id)
        return ast.literal_eval(tree)

    def _output(self, match: re.Match[str]) -> None:
        node = self.nodes[match["node"]]
        value = node.meta["val"]
        kind: Any = match["kind"].split(" ")[1]
        if kind == "final":
            kind = "sequence"
            self.last_step_outputs.append(ast.literal_eval(match["name"]))
        rows = kind != "total" or match["rows"] is not None
        shape = tuple(value.shape[1:] if rows else value.shape)
        name = ast.literal_eval(match["name"])
        port = Port(kind, name, shape, value.dtype, value.device, rows)
        self.outputs.append((_with_role(port, match["role"]), node))

    def loop(self, name: str, *, reverse: bool) -> Loop:
        self.graph.output(tuple(node for _, node in self.outputs))
        closed(self.graph)
        return Loop(
            name=name,
            graph=self.graph,
            inputs=tuple(self.inputs),
            outputs=tuple(port for port, _ in self.outputs),
            family=self.family,
            reverse=reverse,
            constants=self.constants,
            last_step_outputs=tuple(self.last_step_outputs),
        )


def _with_role(port: Port, text: str) -> Port:
    """A port with the role, and the port it belongs to, that `_role_text` wrote.

    The text does not say the shape and dtype of the port it belongs to: they are taken to be its own.
    """
    role = re.match(r" as (\w+)", text)
    if role is not None:
        port, text = replace(port, role=Role(role[1])), text[role.end() :]
    of = re.match(r" of (\w+) ('.*?'|\".*?\")", text)
    if of is not None:
        kind: Any = of[1]
        plain = Port(kind, ast.literal_eval(of[2]), port.shape, port.dtype, port.device, port.rows)
        port = replace(port, of=_with_role(plain, text[of.end() :]))
    return port


def _target(text: str) -> Any:
    space, _, rest = text.partition(".")
    if space == "python":
        return getattr(operator, rest, None) or getattr(torch, rest)
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload)


def _unreadable(number: int, line: str) -> ArgumentError:
    return ArgumentError(
        "the text is no loop.", line=f"{number}: {line}", expected="what loop.text() writes, unchanged"
    )
