"""`export_onnx`: a network as an ONNX file for any length and batch, run beside torch before it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from leporello.atomic_write import write_atomically
from leporello.call.inputs import map_tensors, time_first
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell
from leporello.loop.state import Tree, described, leaf_names, leaves_of, map_leaves
from leporello.loop.tracing.cell_tensors import buffers_restored
from leporello.nets.export.onnx_check import Trial, check
from leporello.nets.export.onnx_graph import (
    IR_VERSION,
    OPSET,
    OnnxGraph,
    OnnxModel,
    element_type,
    onnx_package,
    onnxruntime_package,
)
from leporello.nets.export.onnx_loop import Sizes
from leporello.nets.export.onnx_nets import NETWORKS, Arguments, Given, NetWriter
from leporello.nets.export.report import ExportReport
from leporello.nets.stack import Layers
from leporello.nets.summary import Summary
from leporello.text_table import plain_table

ROWS = 3  # of the example from which Loops are traced: one row could hide what rows share


@dataclass(frozen=True)
class OnnxReport(ExportReport):
    """What was written as ONNX, and what it was compared on.

    The error is relative to the largest value of the output that has it.

    inputs, outputs   of the model: name, and dtype and shape in words
    operators         how many nodes there are, those of the steps included
    trials            the calls on which file and network were compared, in words
    runtime           the version of onnxruntime that ran the file
    """

    inputs: dict[str, str]
    outputs: dict[str, str]
    operators: int
    trials: tuple[str, ...]
    runtime: str

    def __str__(self) -> str:
        rows = [
            ["written", f"{', '.join(map(str, self.files))}: ONNX, opset {OPSET}, {self.operators} operators"],
            *([f"input {name}", form] for name, form in self.inputs.items()),
            *([f"output {name}", form] for name, form in self.outputs.items()),
            [f"onnxruntime {self.runtime}", f"compared with torch: {'; '.join(self.trials)}"],
            ["error", f"{self.largest_error:.1e} at most, {self.tolerance:.0e} allowed"],
        ]
        return plain_table(rows, left=(0, 1))


def export_onnx(
    net: nn.Module,
    path: Path,
    *,
    example: Tree = None,
    lengths: bool = False,
    resets: bool = False,
    state: Tree = False,
    steps: int | None = None,
) -> OnnxReport:
    """Write a network as an ONNX file.

    net       lp.Recurrent, lp.Bidirectional, lp.Layers or lp.Summary, of any cells
    example   inputs as for a call; None for a system without inputs
    lengths   whether the model has an input `lengths`, (batch,) int64
    resets    whether it has an input `resets`, (length, batch) booleans
    state     whether states are inputs and outputs: True, or an example where the cell declares no initial state
    steps     for a system without inputs an example of the length, which is then the input `steps`

    Length and batch of the inputs are free. The file gets its name when onnxruntime has run it on the example and on
    other lengths and batches; a difference raises.
    """
    onnx_package(), onnxruntime_package()
    if not isinstance(net, NETWORKS):
        raise ArgumentError(
            "this network cannot be exported to ONNX.",
            came=type(net).__name__,
            expected=", ".join(f"lp.{kind.__name__}" for kind in NETWORKS),
            tries="lp.Recurrent(cell)"
            if isinstance(net, Cell)
            else "lp.Summary and lp.Layers put nets and a head together",
        )
    plan = _Plan(net, example, lengths, resets, state, steps)
    model = OnnxModel()
    with buffers_restored(net):
        trials = plan.trials()
        written, outputs = plan.written(model)
    data = written.SerializeToString()
    found = check(net, data, model.lines, trials, plan.feeds, list(outputs))
    write_atomically(path, data)
    return OnnxReport(
        files=(path,),
        largest_error=found.largest_error,
        tolerance=found.tolerance,
        inputs={info.name: _in_words(info) for info in written.graph.input},
        outputs={info.name: _in_words(info) for info in written.graph.output},
        operators=_operators(written.graph),
        trials=tuple(map(str, trials)),
        runtime=onnxruntime_package().__version__,
    )


class _Plan:
    """What is exported: the network, the example, and which arguments of a call are inputs."""

    def __init__(
        self, net: nn.Module, example: Tree, lengths: bool, resets: bool, state: Tree, steps: int | None
    ) -> None:
        self.net, self.example, self.has_lengths, self.has_resets = net, example, lengths, resets
        self.batch_first = _batch_first(net)
        self.steps = steps
        leaves = _tensors(example)
        if not leaves and (steps is None or state is False):
            raise ArgumentError(
                "there are no inputs that say how long the sequence is, and how many rows there are.",
                came=f"example={described(example)}",
                expected="a tensor, (length, batch, ...); without inputs the arguments 'steps' and 'state'",
                tries='lp.export(net, "model.onnx", example=None, steps=10, state=True)',
            )
        if any(leaf.dim() < 2 for leaf in leaves):
            raise ArgumentError(
                "the example has too few axes.", came=described(example), expected="inputs as for a call, with a batch"
            )
        self.state = self._example_state(state)
        first = leaves[0] if leaves else None
        if first is not None:
            self.length, self.batch = (first.shape[1], first.shape[0]) if self.batch_first else first.shape[:2]
        else:
            self.length, self.batch = int(steps or 0), _tensors(self.state)[0].shape[0]

    def _example_state(self, state: Tree) -> Tree:
        """A state for the example's batch; None where states are no inputs."""
        if state is False or state is None:
            return None
        if state is not True:
            return state
        leaves = _tensors(self.example)
        batch = leaves[0].shape[0 if self.batch_first else 1] if leaves else ROWS
        made: Tree = self.net.initial_state(batch)  # type: ignore[operator]
        return map_leaves(lambda leaf: leaf.detach(), made)

    # ---- the model

    def written(self, model: OnnxModel) -> tuple[Any, dict[str, Tensor]]:
        """The model, and an example of each of its outputs by name."""
        graph = OnnxGraph(model)
        example = self._repeated()
        infos: list[Any] = []
        inputs = self._declared(model, infos, example.inputs, "inputs", ["batch", "length"][:: self._order])
        if not leaves_of(inputs.names) or inputs.names is None:
            inputs = Given(None, None)
        state = None
        if self.state is not None:
            state = self._declared(model, infos, example.state, "state", ["batch"])
        arguments = self._arguments(model, infos, example)
        sizes = self._sizes(graph, inputs, state, arguments)
        results, final = NetWriter(graph, sizes).write(self.net, inputs, state, arguments)
        front = ["batch"] if isinstance(self.net, Summary) else ["batch", "length"][:: self._order]
        outputs = self._named(graph, results, "outputs", front)
        if self.state is not None:
            outputs |= self._named(graph, final, "final_state", ["batch"])
        if not outputs:
            raise ArgumentError(
                "the network has no outputs.", tries="lp.export(..., state=True): final states are outputs"
            )
        helper = model.onnx.helper
        infos_out = [self._info(model, name, leaf, front) for name, (leaf, front) in outputs.items()]
        whole = helper.make_graph(graph.nodes, type(self.net).__name__, infos, infos_out, initializer=model.constants)
        options = {"ir_version": IR_VERSION, "producer_name": "leporello", "producer_version": version("leporello")}
        made = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], **options)
        model.onnx.checker.check_model(made, full_check=True)
        return made, {name: leaf for name, (leaf, _) in outputs.items()}

    @property
    def _order(self) -> int:
        return 1 if self.batch_first else -1

    def _repeated(self) -> Trial:
        """The example with some rows at least."""
        times = -(-ROWS // self.batch)
        axis = 0 if self.batch_first else 1
        inputs = map_tensors(lambda leaf: torch.cat([leaf] * times, axis), self.example)
        state = map_tensors(lambda leaf: torch.cat([leaf] * times), self.state)
        return Trial(self.length, self.batch * times, inputs, state, {})

    def _declared(self, model: OnnxModel, infos: list[Any], tree: Tree, root: str, front: list[str]) -> Given:
        """Inputs of the model for the leaves of a tree."""
        names = []
        for name, leaf in zip(leaf_names(tree, root), leaves_of(tree), strict=True):
            if isinstance(leaf, Tensor):
                names.append(model.name(name if name.startswith(root) else f"{root}.{name}"))
                infos.append(self._info(model, names[-1], leaf, front))
            else:
                names.append(None)  # type: ignore[arg-type]
        return Given(pytree.tree_unflatten(names, pytree.tree_structure(tree)), tree)

    def _info(self, model: OnnxModel, name: str, leaf: Tensor, front: list[str]) -> Any:
        shape = [*front, *leaf.shape[len(front) :]]
        return model.onnx.helper.make_tensor_value_info(name, element_type(leaf.dtype), shape)

    def _arguments(self, model: OnnxModel, infos: list[Any], example: Trial) -> Arguments:
        lengths = resets = None
        if self.has_lengths:
            lengths = self._declared(model, infos, torch.full((example.batch,), self.length), "lengths", ["batch"])
        if self.has_resets:
            axes = ["batch", "length"][:: self._order]
            never = torch.zeros(example.length, example.batch, dtype=torch.bool)
            resets = self._declared(model, infos, never.T if self.batch_first else never, "resets", axes)
        steps = None
        if not _tensors(self.example):
            steps = self.steps
            self._declared(model, infos, torch.tensor(self.length), "steps", [])
        return Arguments(lengths, resets, steps)

    def _sizes(self, graph: OnnxGraph, inputs: Given, state: Given | None, arguments: Arguments) -> Sizes:
        named = [name for name in leaves_of(inputs.names) if name is not None]
        if named:
            length, batch = (1, 0) if self.batch_first else (0, 1)
            return Sizes(graph.size_of(named[0], length), graph.size_of(named[0], batch))
        assert state is not None
        return Sizes(graph.reshape("steps", 1), graph.size_of(leaves_of(state.names)[0], 0))

    def _named(
        self, graph: OnnxGraph, results: Given, root: str, front: list[str]
    ) -> dict[str, tuple[Tensor, list[str]]]:
        """The model's outputs for the leaves of a tree: by name, an example and the names of the first axes."""
        named = {}
        pairs = zip(leaves_of(results.names), leaves_of(results.example), strict=True)
        for wanted, (name, leaf) in zip(leaf_names(results.example, root), pairs, strict=True):
            if isinstance(leaf, Tensor):
                wanted = wanted if wanted.startswith(root) else f"{root}.{wanted}"
                named[graph("Identity", name, name=wanted)] = (leaf, front)
        return named

    # ---- the calls on which it is compared

    def trials(self) -> list[Trial]:
        """The example, and calls of other lengths and batches whose rows are steps of the example in random order."""
        numbers = torch.Generator().manual_seed(0)
        sizes = [(1, 1), (self.length + 3, self.batch + 2), (max(1, self.length - 1), 1), (2, 5)]
        own = Trial(self.length, self.batch, self.example, self.state, {})
        with torch.no_grad():  # an error in the example is raised here, in the words of a call
            _, later = self.net(self.example, self.state, **self._steps(own))
        later = None if self.state is None else later
        made = [self._drawn(length, batch, later, numbers) for length, batch in sizes]
        return [self._with_options(trial, numbers) for trial in (own, *made)]

    def _drawn(self, length: int, batch: int, later: Tree, numbers: torch.Generator) -> Trial:
        def drawn(leaf: Tensor) -> Tensor:
            front = time_first(leaf) if self.batch_first else leaf
            steps = torch.randint(self.length, (length, batch), generator=numbers)
            rows = torch.randint(self.batch, (length, batch), generator=numbers)
            chosen = front[steps, rows]
            return time_first(chosen) if self.batch_first else chosen

        rows = torch.randint(self.batch, (batch,), generator=numbers)
        state = map_tensors(lambda leaf: leaf[rows], later)
        return Trial(length, batch, map_tensors(drawn, self.example), state, {})

    def _with_options(self, trial: Trial, numbers: torch.Generator) -> Trial:
        options: dict[str, Any] = self._steps(trial)
        if self.has_lengths:
            lengths = torch.randint(1, trial.length + 1, (trial.batch,), generator=numbers)
            lengths[-1] = trial.length
            options["lengths"] = lengths
        if self.has_resets:
            resets = torch.rand(trial.length, trial.batch, generator=numbers) < 0.3
            options["resets"] = resets.T if self.batch_first else resets
        return Trial(trial.length, trial.batch, trial.inputs, trial.state, options)

    def _steps(self, trial: Trial) -> dict[str, Any]:
        return {} if _tensors(self.example) else {"steps": trial.length}

    def feeds(self, trial: Trial) -> dict[str, Tensor]:
        """The model's inputs for a call, by name."""
        model = OnnxModel()
        infos: list[Any] = []
        found: list[Tensor] = []
        for root, tree in (("inputs", trial.inputs), ("state", trial.state)):
            if tree is not None:
                self._declared(model, infos, tree, root, [])
                found += _tensors(tree)
        feeds = {info.name: leaf for info, leaf in zip(infos, found, strict=True)}
        options = {name: torch.as_tensor(value) for name, value in trial.options.items()}
        return feeds | options


def _batch_first(net: nn.Module) -> bool:
    """Whether a network's inputs have the batch in front."""
    if isinstance(net, Layers):
        return _batch_first(net.nets[0])
    if isinstance(net, Summary):
        return _batch_first(net.net)
    return bool(getattr(net, "batch_first", False))


def _tensors(tree: Tree) -> list[Tensor]:
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor)]


def _in_words(info: Any) -> str:
    """The type and shape of an input or output of a model."""
    kind = info.type.tensor_type
    sizes = [axis.dim_param or str(axis.dim_value) for axis in kind.shape.dim]
    name = onnx_package().TensorProto.DataType.Name(kind.elem_type).lower()
    return f"{name} [{', '.join(sizes)}]"


def _operators(graph: Any) -> int:
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return len(graph.node) + sum(map(_operators, bodies))
