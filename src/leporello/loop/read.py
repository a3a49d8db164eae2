"""`loop_from`: a Loop from its text. What `loop/text.py` writes, this reads.

Knows the spelling; computes every shape anew from the inputs', so that a text cannot contradict itself.
"""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

import torch
from torch import Tensor, fx

from leporello.errors import ArgumentError
from leporello.loop.family import Family
from leporello.loop.graph import call
from leporello.loop.loop import Loop
from leporello.loop.port import Port

_HEAD = re.compile(r"loop (?P<name>.*?)(?P<reverse>, time reversed)?$")
_INPUT = re.compile(
    r"  (?P<kind>sequence|invariant|constant|state|draw uniform|draw normal) +(?P<node>\w+) = (?P<name>'.*?'|\".*?\") "
    r"(?P<dtype>\w+) \[(?P<sizes>[^\]]*)\](?: on (?P<device>[\w:]+))?(?: = (?P<value>.*))?$"
)
_OPERATOR = re.compile(r"  (?P<node>\w+) = (?P<target>[\w.]+)\((?P<arguments>.*)\)  # .*$")
_OUTPUT = re.compile(
    r"  (?P<kind>next state|output (?:sequence|total|final)) (?P<name>'.*?'|\".*?\")(?P<rows> per row)? "
    r"= (?P<node>\w+)$"
)


def loop_from(text: str) -> Loop:
    """The Loop that `loop.text()` spells.

    It knows no module: hand it the values of its invariants when it runs.
    """
    lines = text.rstrip("\n").split("\n")
    head = _HEAD.match(lines[0])
    if head is None:
        raise _unreadable(1, lines[0])
    reader = _Reader([match for line in lines if (match := _INPUT.match(line))])
    for number, line in enumerate(lines[1:], start=2):
        reader.read(number, line)
    return reader.loop(head["name"], reverse=head["reverse"] is not None)


class _Reader:
    """A loop while it is read, line by line."""

    def __init__(self, inputs: list[re.Match[str]]) -> None:
        taken = [int(size) for match in inputs for size in re.findall(r"\d+", match["sizes"])]
        self.family = Family(taken=taken)
        self.graph = fx.Graph()
        rows = self.graph.placeholder("rows")
        rows.meta["val"] = self.family.rows
        self.nodes = {"rows": rows}
        self.inputs: list[Port] = []
        self.outputs: list[tuple[Port, fx.Node]] = []
        self.constants: dict[str, Tensor] = {}
        self.ended: list[str] = []

    def read(self, number: int, line: str) -> None:
        for pattern, take in ((_INPUT, self._input), (_OUTPUT, self._output), (_OPERATOR, self._operator)):
            match = pattern.match(line)
            if match is not None:
                take(match)
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
            self.ended.append(ast.literal_eval(match["name"]))
        rows = kind != "total" or match["rows"] is not None
        shape = tuple(value.shape[1:] if rows else value.shape)
        self.outputs.append((Port(kind, ast.literal_eval(match["name"]), shape, value.dtype, value.device, rows), node))

    def loop(self, name: str, *, reverse: bool) -> Loop:
        self.graph.output(tuple(node for _, node in self.outputs))
        return Loop(
            name=name,
            graph=self.graph,
            inputs=tuple(self.inputs),
            outputs=tuple(port for port, _ in self.outputs),
            family=self.family,
            reverse=reverse,
            constants=self.constants,
            ended=tuple(self.ended),
        )


def _target(spelt: str) -> Any:
    space, _, rest = spelt.partition(".")
    if space == "python":
        return getattr(operator, rest, None) or getattr(torch, rest)
    name, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload)


def _unreadable(number: int, line: str) -> ArgumentError:
    return ArgumentError(
        "the text is no loop.", line=f"{number}: {line}", expected="what loop.text() writes, unchanged"
    )
