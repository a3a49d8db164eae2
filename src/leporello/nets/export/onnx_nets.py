"""Networks as ONNX nodes: what calls of `Recurrent`, `Bidirectional`, `Layers` and `Summary` do around their Loops.

Trees of names stand where a call has trees of tensors, and beside them an example: what the call would get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.call.arguments import Call
from leporello.errors import ArgumentError
from leporello.loop.batch_axis import BatchAxis
from leporello.loop.cell import Cell
from leporello.loop.loop import Loop
from leporello.loop.port import Port, Role
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.nets.bidirectional import Bidirectional
from leporello.nets.export.onnx_graph import OnnxGraph
from leporello.nets.export.onnx_loop import Sizes, step_numbers, write_loop
from leporello.nets.recurrent import Recurrent
from leporello.nets.stack import Layers
from leporello.nets.summary import Summary


@dataclass(frozen=True)
class Given:
    """A tree of names, and the same tree of example tensors."""

    names: Tree
    example: Tree

    def mapped(self, on_name: Callable[[str], str], on_tensor: Callable[[Tensor], Tensor]) -> Given:
        return Given(
            pytree.tree_map(lambda name: name if name is None else on_name(name), self.names),
            map_leaves(lambda leaf: leaf if leaf is None else on_tensor(leaf), self.example),
        )

    def item(self, index: int) -> Given:
        return Given(self.names[index], self.example[index])


@dataclass(frozen=True)
class Arguments:
    """What a call passes to every network in it; None for what it does not pass.

    steps   the length of a call without inputs
    """

    lengths: Given | None = None
    resets: Given | None = None
    steps: int | None = None

    def examples(self) -> dict[str, Any]:
        """The keyword arguments of the example's call."""
        passed = {"lengths": self.lengths, "resets": self.resets}
        found: dict[str, Any] = {name: given.example for name, given in passed.items() if given is not None}
        return found if self.steps is None else {**found, "steps": self.steps}


Results = tuple[Given, Given]  # outputs and final state


class NetWriter:
    """Writes calls of networks.

    graph   where the nodes go
    sizes   of the sequences of the call
    """

    def __init__(self, graph: OnnxGraph, sizes: Sizes) -> None:
        self.graph, self.sizes = graph, sizes

    def write(
        self, net: nn.Module, inputs: Given, state: Given | None, arguments: Arguments, path: str = ""
    ) -> Results:
        """Write a call, and return its results, in the axes that the network's caller sees."""
        if isinstance(net, Recurrent):
            return self._recurrent(net, inputs, state, arguments, path)
        if isinstance(net, Bidirectional):
            return self._both_ways(net, inputs, state, arguments, path)
        if isinstance(net, Layers):
            return self._layers(net, inputs, state, arguments, path, self.write)
        if isinstance(net, Summary):
            return self._summary(net, inputs, state, arguments, path)
        raise ArgumentError(
            "this network cannot be exported to ONNX.",
            came=type(net).__name__,
            expected=", ".join(f"lp.{kind.__name__}" for kind in NETWORKS),
            tries="lp.Recurrent(cell), of any cell; lp.Layers and lp.Summary put networks and a head together",
        )

    # ---- one loop

    def _recurrent(
        self, net: Recurrent, inputs: Given, state: Given | None, arguments: Arguments, path: str, turn: bool = True
    ) -> Results:
        if net.batch_first and turn:
            arguments = replace(arguments, resets=self._turned(arguments.resets))
            outputs, final = self._recurrent(_time_first(net), self._turned(inputs), state, arguments, path, turn=False)
            return self._turned(outputs), final
        if isinstance(net.cell, BatchAxis) and state is not None:
            raise ArgumentError(
                "the states of a network with 'batch_axis' are no inputs of a file.", tries="leave out state="
            )
        before = None if state is None else state.example
        call = net._checked(inputs.example, before, **arguments.examples())
        loop = net.fold(inputs.example, before, **arguments.examples())
        begin = self._states(net, call, inputs, arguments) if state is None else leaves_of(state.names)
        given = {("sequence", name): leaf for (name, _), leaf in zip(call.sequences, _names(inputs), strict=True)}
        given |= {("state", name): leaf for (name, _), leaf in zip(call.states, begin, strict=True)}
        for port in loop.inputs:
            if not port.has_default_role:
                given[port.key] = self._added(port, net, call, given, arguments)
        found = write_loop(self.graph, loop, given, self.sizes, path if type(net.cell) is _HeadStep else f"{path}cell.")
        with torch.no_grad():
            example = net(inputs.example, before, **arguments.examples())
        outputs, final = _in_trees(loop, found)
        return Given(outputs, example[0]), Given(final, example[1])

    def _states(self, net: Recurrent, call: Call, inputs: Given, arguments: Arguments) -> list[str]:
        """The names of the state that the cell begins with: the same for each row, so one row is kept."""
        again = net._checked(inputs.example, None, **arguments.examples())
        names = []
        for (name, leaf), (_, other) in zip(call.states, again.states, strict=True):
            if not torch.equal(leaf[:1].expand_as(leaf), other):
                raise ArgumentError(
                    f"the initial state '{name}' is not the same for each row and each call.",
                    expected="one initial state, which the file holds",
                    tries="lp.export(..., state=True), which makes it an input",
                )
            names.append(self._rows_of(leaf, f"initial.{name}"))
        return names

    def _rows_of(self, leaf: Tensor, name: str) -> str:
        """The first row of a tensor, for each row of the batch."""
        row = self.graph.model.constant(leaf[:1].clone(), name=name)
        return self.graph("Expand", row, self.graph.sizes(self.sizes.batch, *leaf.shape[1:]), name="initial")

    def _added(
        self, port: Port, net: Recurrent, call: Call, given: Mapping[tuple[str, str], str], arguments: Arguments
    ) -> str:
        """The value of an input that the call adds to the Loop."""
        graph, of = self.graph, "" if port.of is None else port.of.name
        if port.role is Role.RESET and arguments.resets is not None:
            return str(arguments.resets.names)
        if port.role is Role.TIME:
            numbers = graph.reshape(step_numbers(graph, self.sizes), -1, 1, 1)
            whole = graph("Expand", numbers, graph.sizes(self.sizes.length, self.sizes.batch, 1))
            return whole if port.dtype is torch.int64 else graph.cast(whole, port.dtype)
        if port.role in (Role.PAST, Role.ELSEWHERE) and arguments.lengths is not None:
            numbers = graph.reshape(step_numbers(graph, self.sizes), -1, 1)
            if port.role is Role.PAST:
                return graph("GreaterOrEqual", numbers, arguments.lengths.names, name="past")
            last = graph("Sub", arguments.lengths.names, graph.ints(1))
            return graph("Not", graph("Equal", numbers, last), name="elsewhere")
        if port.role is Role.FIRST_INPUT:
            return graph("Gather", given["sequence", of], graph.constant(0, torch.int64), axis=0, name="first")
        if port.role is Role.INITIAL_STATE:
            index = [name for name, _ in call.states].index(of)
            return self._rows_of(leaves_of(call.initial)[index], f"initial.{of}")
        raise ArgumentError(f"what the step reads as '{port.name}' cannot be exported to ONNX.", came=port.role.value)

    # ---- several loops

    def _both_ways(
        self, net: Bidirectional, inputs: Given, state: Given | None, arguments: Arguments, path: str
    ) -> Results:
        with torch.no_grad():
            example = net(inputs.example, None if state is None else state.example, **arguments.examples())
        if net.batch_first:
            inputs, arguments = self._turned(inputs), replace(arguments, resets=self._turned(arguments.resets))
        ahead, back, finals = self._directions(net, inputs, state, arguments, path)
        forth = back.mapped(lambda name: self._reversed(name, arguments), lambda leaf: leaf)
        names = self._joined(ahead, forth)
        if net.batch_first:
            names = self._turned(Given(names, example[0])).names
        return Given(names, example[0]), finals

    def _directions(
        self, net: Bidirectional, inputs: Given, state: Given | None, arguments: Arguments, path: str
    ) -> tuple[Given, Given, Given]:
        """Outputs of both directions, each in the order of its reading, and the pair of final states."""
        first, second = (None, None) if state is None else (state.item(0), state.item(1))
        ahead, after = self.write(net.ahead, inputs, first, arguments, f"{path}ahead.")
        # examples need not be turned round: their forms are the same
        turned = inputs.mapped(lambda name: self._reversed(name, arguments), lambda leaf: leaf)
        back, before = self.write(net.back, turned, second, self._with_borders(arguments), f"{path}back.")
        return ahead, back, Given((after.names, before.names), (after.example, before.example))

    def _with_borders(self, arguments: Arguments) -> Arguments:
        """The border before t is, from the end, the border before t-1."""
        if arguments.resets is None:
            return arguments
        graph = self.graph
        never = graph("Expand", graph.constant([[False]]), graph.sizes(1, self.sizes.batch))
        following = graph("Slice", arguments.resets.names, graph.ints(1), graph.ints(2**63 - 1), graph.ints(0))
        borders = self._reversed(graph("Concat", following, never, axis=0), arguments)
        return replace(arguments, resets=Given(borders, arguments.resets.example))

    def _reversed(self, name: str, arguments: Arguments) -> str:
        """A sequence from its end to its beginning, each row within its own length."""
        lengths = arguments.lengths
        if lengths is None:
            graph = self.graph
            backwards = (graph.ints(-1), graph.ints(-(2**63) + 1), graph.ints(0), graph.ints(-1))
            return graph("Slice", name, *backwards)
        return self.graph("ReverseSequence", name, lengths.names, time_axis=0, batch_axis=1)

    def _joined(self, one: Given, other: Given) -> Tree:
        pairs = zip(leaves_of(one.names), leaves_of(other.names), strict=True)
        joined = [None if first is None else self.graph("Concat", first, second, axis=-1) for first, second in pairs]
        return pytree.tree_unflatten(joined, pytree.tree_structure(one.names))

    def _layers(
        self,
        net: Layers,
        inputs: Given,
        state: Given | None,
        arguments: Arguments,
        path: str,
        last: Callable[..., Results],
    ) -> Results:
        """Networks in turn, the last of which may be called in another way."""
        if net.dropout and net.training:
            raise ArgumentError(
                "there is dropout between the layers.", came=f"dropout={net.dropout}", tries="net.eval()"
            )
        finals = []
        for index, part in enumerate(net.nets):
            own = None if state is None else state.item(index)
            write = last if index == len(net.nets) - 1 else self.write
            inputs, final = write(part, inputs, own, arguments, f"{path}nets.{index}.")
            finals.append(final)
        return inputs, Given(tuple(one.names for one in finals), tuple(one.example for one in finals))

    # ---- a summary

    def _summary(self, net: Summary, inputs: Given, state: Given | None, arguments: Arguments, path: str) -> Results:
        if net.reads == "state":
            _, final = self.write(net.net, inputs, state, arguments, f"{path}net.")
            read = final
        elif net._leaf is not None:
            _, final = self.write(net.net, inputs, state, arguments, f"{path}net.")
            read = Given(leaves_of(final.names)[net._leaf], leaves_of(final.example)[net._leaf])
        else:
            read, final = self._at_end(net.net, inputs, state, arguments, f"{path}net.")
        return self._head(net.head, read, path), final

    def _at_end(self, net: nn.Module, inputs: Given, state: Given | None, arguments: Arguments, path: str) -> Results:
        """The output of a network at each row's own end, and its final state."""
        if isinstance(net, Layers):
            return self._layers(net, inputs, state, arguments, path, self._at_end)
        if isinstance(net, Bidirectional):
            if net.batch_first:
                inputs, arguments = self._turned(inputs), replace(arguments, resets=self._turned(arguments.resets))
            ahead, back, finals = self._directions(net, inputs, state, arguments, path)
            ends = [self._ends(direction, arguments) for direction in (ahead, back)]
            example = [torch.cat(pair, -1) for pair in zip(*(leaves_of(end.example) for end in ends), strict=True)]
            tree = pytree.tree_structure(ends[0].example)
            return Given(self._joined(*ends), pytree.tree_unflatten(example, tree)), finals
        outputs, final = self.write(net, inputs, state, arguments, path)
        if getattr(net, "batch_first", False):
            outputs = self._turned(outputs)
        return self._ends(outputs, arguments), final

    def _ends(self, outputs: Given, arguments: Arguments) -> Given:
        return Given(
            pytree.tree_map(
                lambda name, leaf: None if name is None else self._end(name, leaf, arguments),
                outputs.names,
                outputs.example,
            ),
            map_leaves(lambda leaf: leaf if leaf is None else leaf[-1], outputs.example),
        )

    def _end(self, name: str, leaf: Tensor, arguments: Arguments) -> str:
        graph = self.graph
        if arguments.lengths is None:
            return graph("Gather", name, graph.constant(-1, torch.int64), axis=0, name="last")
        last = graph("Sub", arguments.lengths.names, graph.ints(1))
        index = graph.reshape(last, 1, -1, *[1] * (leaf.dim() - 2))
        whole = graph("Expand", index, graph.sizes(1, self.sizes.batch, *leaf.shape[2:]))
        return graph("Squeeze", graph("GatherElements", name, whole, axis=0), graph.ints(0), name="last")

    def _head(self, head: Any, read: Given, path: str) -> Given:
        """What a head computes of one value for each row: a step without a state, of a sequence of length one."""
        graph = self.graph
        step = Recurrent(_HeadStep(head), engine="reference")
        inputs = read.mapped(lambda name: graph("Unsqueeze", name, graph.ints(0)), lambda leaf: leaf.unsqueeze(0))
        one = NetWriter(graph, Sizes(graph.ints(1), self.sizes.batch))
        outputs, _ = one._recurrent(step, inputs, None, Arguments(), path)
        return outputs.mapped(lambda name: graph("Squeeze", name, graph.ints(0)), lambda leaf: leaf.squeeze(0))

    # ---- axes

    def _turned(self, given: Any) -> Any:
        """Sequences with length and batch exchanged."""
        if given is None:
            return None
        names = pytree.tree_map(
            lambda name, leaf: None if name is None else self._exchanged(name, leaf), given.names, given.example
        )
        return Given(names, map_leaves(lambda leaf: leaf if leaf is None else leaf.transpose(0, 1), given.example))

    def _exchanged(self, name: str, leaf: Tensor) -> str:
        return self.graph.transpose(name, 1, 0, *range(2, leaf.dim()))


class _HeadStep(Cell):
    """The head of a summary as a step without a state."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Any, state: Any) -> tuple[Any, Any]:
        return self.head(x), state


NETWORKS = (Recurrent, Bidirectional, Layers, Summary)


def _time_first(net: Recurrent) -> Recurrent:
    """The same network, called with the length in front."""
    return Recurrent(net.cell, engine=net.engine)


def _names(given: Given) -> list[str]:
    return [name for name in leaves_of(given.names) if name is not None]


def _in_trees(loop: Loop, found: Mapping[tuple[str, str], str]) -> tuple[Tree, Tree]:
    """The names of outputs and final states in the trees of the call."""
    signature = loop.signature
    assert signature is not None
    sequences = iter([found[port.key] for port in loop.outputs if port.kind == "sequence"])
    outputs = [next(sequences) if there else None for there in signature.present]
    finals = {port.of.name: port.key for port in loop.outputs if port.role is Role.FINAL_STATE and port.of}
    states = [found[finals.get(port.name, port.key)] for port in loop.outputs if port.kind == "state"]
    return pytree.tree_unflatten(outputs, signature.outputs), pytree.tree_unflatten(states, signature.state)
