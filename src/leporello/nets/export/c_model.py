"""From a network to what a C file holds: the kernel of its step, the numbers of its invariants, its arguments.

The whole step is lowered as one inside; what is made of invariants alone is computed here, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from leporello.call.arguments import Call
from leporello.call.plan_cache import rewritten
from leporello.call.values import names_of
from leporello.engine.cpu.target import CPU_TARGET
from leporello.engine.plan import pipeline_of
from leporello.errors import ArgumentError, EngineRefusal
from leporello.kernel.decompose import decomposed
from leporello.kernel.description import Kernel
from leporello.kernel.lower import kernel_of
from leporello.kernel.operators import OPERATORS
from leporello.loop.cell import Cell
from leporello.loop.fake_tensors import clean_row_axis
from leporello.loop.graph import function_of
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.split import whole_step
from leporello.loop.stages import Split, Stage
from leporello.loop.state import Tree
from leporello.loop.step import place_of
from leporello.loop.value_classes import ValueClass
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers, Stack
from leporello.nets.summary import Summary
from leporello.rewrite.merge_equal_values import merge_equal_values
from leporello.rewrite.real_planes import planes_of

STORED = frozenset({torch.int8})  # types in which matrices are stored, narrower than those of products
C_WORDS = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
    "bool", "catch", "class", "delete", "explicit", "export", "false", "friend", "mutable", "namespace", "new",
    "operator", "private", "protected", "public", "template", "this", "throw", "true", "try", "typename", "using",
    "virtual", "main",
}  # fmt: skip  # C's, and C++'s, since headers are read by both
LIBRARY_WORDS = {*OPERATORS, "fabs", "rint", "lgamma", "memcpy", "memset", "NAN", "INFINITY", "m"}
OWN_PREFIXES = ("_", "v_", "c_", "w_", "product_", "initial_", "next_", "work_")  # of names in the C


@dataclass(frozen=True)
class Value:
    """An input, an output or a leaf of the state.

    label   what the cell calls it
    name    the same as a C identifier
    """

    label: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    planes: bool

    @property
    def count(self) -> int:
        """Numbers of one row."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, eq=False)
class CModel:
    """What a C file holds.

    name             the prefix of all its names
    cell             the cell, in words
    loop             the Loop that was lowered
    reads, writes    for each buffer that the kernel reads (writes) the index among `inputs` (`outputs`); None: the
                     number of the step
    copies           outputs that are the same value as an earlier one: (index of the output, index of the earlier one)
    fixed, rows      the values of the buffers with these places
    origins          what each fixed value is made of, as the cell calls it
    initial          the state that a reset sets, by slot
    """

    name: str
    cell: str
    loop: Loop
    kernel: Kernel
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    states: tuple[Value, ...]
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    fixed: tuple[Tensor, ...]
    origins: tuple[str, ...]
    rows: tuple[Tensor, ...]
    initial: tuple[Tensor, ...]

    @property
    def counts_steps(self) -> bool:
        return None in self.reads


# ---- networks


def recurrent_of(net: Any) -> tuple[Recurrent, nn.Module]:
    """The network whose step is exported, and the one it is compared with, which has outputs at each step too."""
    if isinstance(net, Recurrent):
        return net, net
    if isinstance(net, Cell):
        recurrent = Recurrent(net)
        return recurrent, recurrent
    if isinstance(net, Summary):
        if not isinstance(net.net, Recurrent) or not isinstance(net.net.cell, Cell):
            _refuse_several(net.net)
        recurrent = net.at_each_step()
        return recurrent, recurrent
    if isinstance(net, Layers):
        for part in net.nets:
            if not isinstance(part, Recurrent) or not isinstance(part.cell, Cell):
                _refuse_several(part)
        if net.dropout and net.training:
            raise ArgumentError("random numbers cannot be exported.", came="dropout between layers", tries="net.eval()")
        first: Any = net.nets[0]
        return Recurrent(Stack(*(part.cell for part in net.nets)), batch_first=first.batch_first), net
    if isinstance(net, Bidirectional):
        _refuse_several(net)
    raise ArgumentError(
        "the argument 'net' is no network that is a step.",
        came=type(net).__name__,
        expected="lp.Recurrent, lp.Summary, lp.Layers of lp.Recurrent, or a cell",
    )


def _refuse_several(net: nn.Module) -> NoReturn:
    why = "reads a sequence from its end" if isinstance(net, Bidirectional) else "is no cell over a sequence"
    raise ArgumentError(
        f"C has one step after another, and {type(net).__name__} {why}.",
        came=type(net).__name__,
        expected="lp.Recurrent, or lp.Layers of lp.Recurrent",
    )


def called(net: Recurrent, example: Tree, state: Tree, **options: Any) -> tuple[Call, Loop]:
    """The call with the example as inputs, and its Loop, as the pipeline has it for kernels."""
    with torch.no_grad():
        call = net._checked(example, state, **options)
        loop = rewritten(net._plan_cache.loop(net.cell, call), net.cell, call)
    place = place_of(net.cell)
    _refuse_what_c_lacks(loop, place)
    pipeline = pipeline_of(CPU_TARGET)
    return call, merge_equal_values(pipeline.forward(pipeline.plan(loop)))


def _refuse_what_c_lacks(loop: Loop, place: str) -> None:
    if loop.batch_interaction is not None:
        raise EngineRefusal(
            "C runs one row, and rows of the batch influence each other in this step.",
            cell=place,
            because=loop.batch_interaction,
        )
    for port, node in zip(loop.inputs, loop.placeholders, strict=True):
        line = next((user.meta["line"] for user in node.users if user.meta.get("line")), None)
        if port.device.type != "cpu":
            raise EngineRefusal(
                "C runs on the CPU, and this network is elsewhere.",
                cell=place,
                came=str(port.device),
                tries="net.cpu()",
            )
        if port.is_drawn:
            raise EngineRefusal(
                "the step draws random numbers, which C cannot hold.",
                cell=place,
                line=line,
                came=port.name,
                tries="net.eval(), if it is dropout; or pass the numbers to the step as an input",
            )
        if port.role is Role.CONTEXT:
            raise EngineRefusal(
                "the step reads a context, which C cannot hold.",
                cell=place,
                line=line,
                came=port.name,
                tries="pass it to the step as an input",
            )
    if loop.free_lengths:
        raise EngineRefusal("the step has a free length, and all sizes of C are constants.", cell=place)


# ---- the kernel and its values


def model_of(net: Recurrent, call: Call, loop: Loop, name: str) -> CModel:
    """What the C file holds; `call` and `loop` as `called` gives them."""
    split = whole_step(loop, STORED)
    *_, stage = split.stages
    try:
        kernel = kernel_of(split, stage, decomposed(stage.graph, loop.family), stored=STORED)
    except EngineRefusal as error:
        error.place(cell=place_of(net.cell))
        raise
    reads, fixed_nodes, row_nodes, known = _values_read(split, stage)
    ports = [port for port in split.loop.inputs if port.kind == "sequence"]
    inputs = [port for port in ports if port.role is not Role.TIME]
    outputs = [port for port in split.loop.outputs if port.kind == "sequence"]
    delays = {port.name: port for port in split.loop.inputs if port.kind == "state"}
    taken = {"M", "STEPS", name.upper()}
    nodes = dict(zip(split.loop.placeholders, split.loop.inputs, strict=True))
    results = [
        node for port, node in zip(split.loop.outputs, split.loop.results, strict=True) if port.kind == "sequence"
    ]
    first = {node: index for index, node in reversed(list(enumerate(results)))}
    return CModel(
        name=name,
        cell=place_of(net.cell),
        loop=split.loop,
        kernel=kernel,
        inputs=_named(inputs, taken),
        outputs=_named(outputs, taken),
        states=_named([delays[state] for state in stage.states], {"STEPS"}),
        reads=tuple(None if nodes[node].role is Role.TIME else inputs.index(nodes[node]) for node in reads),
        writes=tuple(first[node] for node in stage.writes),
        copies=tuple((index, first[node]) for index, node in enumerate(results) if first[node] != index),
        fixed=tuple(known[node] for node in fixed_nodes),
        origins=tuple(" and ".join(_made_of(node, nodes)) or node.name for node in fixed_nodes),
        rows=tuple(known[node].select(clean_row_axis(node.meta["val"]) or 0, 0) for node in row_nodes),
        initial=_initial(call, [delays[state] for state in stage.states], place_of(net.cell)),
    )


def _made_of(node: fx.Node, ports: Mapping[fx.Node, Port]) -> list[str]:
    """The names of the parameters, buffers and constants that a value is made of."""
    if node in ports:
        return [ports[node].name]
    return list(dict.fromkeys(name for source in node.all_input_nodes for name in _made_of(source, ports)))


def _values_read(
    split: Split, stage: Stage
) -> tuple[list[fx.Node], list[fx.Node], list[fx.Node], dict[fx.Node, Tensor]]:
    """What the kernel reads: sequences, what is the same for all rows, what each row has once; values of the latter."""
    states = {split.loop.delays[name][1] for name in stage.states}
    nodes = [node for node in stage.reads if node not in states and isinstance(node.meta.get("val"), Tensor)]
    known: dict[fx.Node, Tensor] = {}
    for port, node in zip(split.loop.inputs, split.loop.placeholders, strict=True):
        value = split.loop.invariant(port.name) if port.kind == "invariant" else None
        if value is not None:
            known[node] = (planes_of(value, 0) if port.planes and value.is_complex() else value).detach()
    once = next((one for one in split.stages if one.kind == "once"), None)
    if once is not None:
        with torch.no_grad():
            computed = function_of(once.graph)(1, *(known[node] for node in once.reads))
        known |= dict(zip(once.writes, computed, strict=True))
    of_rows = [node for node in nodes if split.classes[node] is ValueClass.TIMELESS]
    varying = [node for node in nodes if split.classes[node] is ValueClass.VARYING]
    fixed = [node for node in nodes if node not in of_rows and node not in varying]
    return varying, fixed, of_rows, known


def _initial(call: Call, ports: Sequence[Port], place: str) -> tuple[Tensor, ...]:
    """The state before the first step, of one row, by the kernel's slots."""
    leaves = dict(call.states)
    found = []
    for port in ports:
        leaf = leaves[port.name].detach()
        if not torch.equal(leaf, leaf[:1].expand_as(leaf)):
            raise ArgumentError(
                "the initial state is not the same for all rows, and C has one for all.",
                cell=place,
                came=f"different rows of '{port.name}'",
                tries="pass state= with the same rows",
            )
        found.append(planes_of(leaf[0], 0) if port.planes else leaf[0])
    return tuple(found)


# ---- names


def identifier(label: str) -> str:
    """A label as a C identifier that is no word of C, of its libraries, or of the C that is written here."""
    letters = re.sub(r"[^0-9A-Za-z_]", "_", label) or "_"
    if letters[0].isdigit() or letters.startswith(OWN_PREFIXES):
        return f"x_{letters.lstrip('_')}"
    return f"{letters}_" if letters in C_WORDS or letters.removesuffix("f") in LIBRARY_WORDS else letters


def _named(ports: Iterable[Port], taken: set[str]) -> tuple[Value, ...]:
    """The values of ports, with names that are not taken; these are added to the taken ones.

    taken   in capitals, since macros have the same names
    """
    values = []
    for port in ports:
        stem = identifier(port.name)
        name, count = stem, 1
        while name.upper() in taken:
            name, count = f"{stem}_{count}", count + 1
        taken.add(name.upper())
        values.append(Value(port.name, name, tuple(int(size) for size in port.shape), port.dtype, port.planes))
    return tuple(values)


def sequences_of(call: Call, model: CModel) -> list[Tensor]:
    """The inputs of the call, each [length, batch, ...], in the model's order and with complex numbers as planes."""
    names, _ = names_of(call)
    leaves = dict(zip(names, (leaf for _, leaf in call.sequences), strict=True))
    return [planes_of(leaves[v.label], 2) if v.planes else leaves[v.label] for v in model.inputs]
