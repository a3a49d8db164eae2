"""An ONNX file beside the network it was made from: onnxruntime and torch on the example, other lengths and batches."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leporello.errors import EngineRefusal, ExportMismatch
from leporello.loop.state import Tree, leaves_of, map_leaves
from leporello.nets.export.onnx_graph import onnxruntime_package

# The largest difference that two orders of summation may make, relative to the largest value of a result.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
SLACK = 32  # a result may differ by so many times what torch's own differs from that in float64


@dataclass(frozen=True)
class Trial:
    """The arguments of one call, with time and batch in the network's own order."""

    length: int
    batch: int
    inputs: Tree
    state: Tree
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"length {self.length}, batch {self.batch}"


@dataclass(frozen=True)
class Checked:
    """What a comparison found: the largest error, relative to the largest value of the result that has it."""

    trials: int
    largest_error: float
    tolerance: float


def check(
    net: nn.Module,
    model: bytes,
    lines: Mapping[str, str],
    trials: list[Trial],
    feeds: Callable[[Trial], dict],
    names: list[str],
) -> Checked:
    """Run a model on every trial beside the network; raises where they differ.

    model   the file's content
    lines   by the name of a node the user's line it comes from
    feeds   the tensors of a trial by the names of the model's inputs
    names   the model's outputs, in the order of the leaves of what the network returns
    """
    session = _session(model, lines)
    worst, allowed = 0.0, 0.0
    for trial in trials:
        wanted = results_of(net, trial)[: len(names)]
        values = {name: value.detach().contiguous().numpy() for name, value in feeds(trial).items()}
        found = [torch.from_numpy(value.copy()) for value in _run(session, names, values, lines, trial)]
        exact: list[Tensor] | None = None
        for index, (name, one, other) in enumerate(zip(names, found, wanted, strict=True)):
            error, tolerance = _difference(one, other), TOLERANCE.get(other.dtype, 0.0)
            if error > tolerance and other.is_floating_point():
                exact = exact or results_of(copy.deepcopy(net).double(), _double(trial))
                rounding = _difference(other.double(), exact[index])
                tolerance = max(tolerance, SLACK * rounding) if math.isfinite(rounding) else tolerance
            if error > tolerance:
                raise ExportMismatch(
                    f"the file's '{name}' differs from the network's.",
                    call=trial,
                    came=f"a difference of {error:.1e}, relative to the largest value",
                    expected=f"at most {tolerance:.1e}",
                    tries="report it with the cell; a step that jumps, such as a spike, may differ by rounding alone",
                )
            worst, allowed = max(worst, error), max(allowed, tolerance)
    return Checked(len(trials), worst, allowed)


def results_of(net: nn.Module, trial: Trial) -> list[Tensor]:
    """The leaves of outputs and final state."""
    with torch.no_grad():
        outputs, final = net(trial.inputs, trial.state, **trial.options)
    return [leaf for leaf in (*leaves_of(outputs), *leaves_of(final)) if isinstance(leaf, Tensor)]


def _double(trial: Trial) -> Trial:
    def wide(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return Trial(
        trial.length, trial.batch, map_leaves(wide, trial.inputs), map_leaves(wide, trial.state), trial.options
    )


def _difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest finite value; infinite where one alone is NaN."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if not wanted.numel() or torch.equal(found, wanted):
        return 0.0
    if not wanted.is_floating_point():
        return math.inf
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    finite = wanted[wanted.isfinite()]
    scale = max(finite.abs().max().item() if finite.numel() else 0.0, 1e-2)
    difference = (found - wanted).abs().masked_fill(same, 0).max().item()
    return math.inf if difference != difference else difference / scale


def _session(model: bytes, lines: Mapping[str, str]) -> Any:
    runtime = onnxruntime_package()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors: what they say is raised
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(error, lines) from error


def _run(session: Any, names: list[str], values: dict[str, Any], lines: Mapping[str, str], trial: Trial) -> list[Any]:
    try:
        return list(session.run(names, values))
    except Exception as error:
        raise _refused(error, lines, call=trial) from error


def _refused(error: Exception, lines: Mapping[str, str], **details: Any) -> EngineRefusal:
    """onnxruntime's words, with the line of the step that the node comes from."""
    words = str(error).split("\n")[0]
    named = re.search(r"node with name '([^']*)'|Name:'([^']*)'", words)
    node = "" if named is None else named.group(1) or named.group(2)
    return EngineRefusal(
        "onnxruntime does not run what was exported.",
        line=lines.get(node),
        says=words,
        tries="lp.export(net.float(), ...)" if "float64" in words or "NOT_IMPLEMENTED" in words else None,
        **details,
    )
