"""Errors of the tracer, and of the step itself, as our errors, with the cell and the user's line.

`translated` does that for what is raised while tracing. `UserLines` writes the user's line beside each operator of the
graph, for refusals that come later.
"""

from __future__ import annotations

import linecache
import logging
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from leporello.errors import ArgumentError, DeviceMismatch, LeporelloError, UntraceableStep
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.sizes import LengthsFixed
from leporello.loop.state import described
from leporello.loop.step import place_of

Named = Sequence[tuple[str, Tensor]]
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_OUR_FOLDER = str(Path(__file__).parents[2])
_CELLS_FOLDER = str(Path(__file__).parents[2] / "cells")
_PYTHON_FOLDER = sysconfig.get_paths()["stdlib"]
_GRAPH_IS_FIXED = "numbers differ from row to row and from step to step, and the graph of a step is made once"


@contextmanager
def translated(cell: nn.Module, sequences: Named, states: Named, family: FakeTensorFamily) -> Iterator[None]:
    """Raise what fails inside the block as one of our errors, with the cell and the user's line."""
    try:
        with _without_log():
            yield
    except LengthsFixed:
        raise  # not of the step: it is traced again, with numbers
    except Exception as error:
        ours = _as_ours(error, sequences, states, family)
        ours.place(cell=place_of(cell), line=users_line(error.__traceback__))
        if ours is error:
            raise
        raise ours from error


def _as_ours(error: Exception, sequences: Named, states: Named, family: FakeTensorFamily) -> LeporelloError:
    if isinstance(error, LeporelloError):
        return error
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # loaded by every trace

    message = str(error)
    if isinstance(error, DynamicOutputShapeException):
        return UntraceableStep(
            "the step makes a value whose size depends on numbers in a tensor.",
            because=_GRAPH_IS_FIXED,
            tries="torch.where(mask, value, 0) instead of value[mask]",
        )
    if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
        return UntraceableStep(
            "the step decides in Python by numbers in a tensor.",
            because=_GRAPH_IS_FIXED,
            tries="torch.where(condition, a, b) instead of if and while; tensors instead of .item() and float()",
        )
    if ".numpy() is not supported" in message:
        return UntraceableStep(
            "the step leaves torch for numpy, where no graph follows it.", tries="the same with torch's functions"
        )
    if "convert all Tensors to FakeTensors" in message:
        return UntraceableStep(
            "the step reads a tensor that is neither its input, nor its state, nor a parameter or buffer of the cell.",
            tries="self.register_buffer, nn.Parameter or a submodule in the cell, so that it gets gradients and moves "
            "with it; a function that needs parameters becomes an nn.Module",
        )
    if "device" in message and ("different devices" in message or "not on the expected device" in message):
        return DeviceMismatch(
            "the step joins tensors of different devices.",
            says=_first_line(error, family),
            tries="make tensors inside a step with device=x.device, or with torch.zeros_like and its kind",
        )
    return ArgumentError(
        "the step fails on these inputs.",
        inputs=_rows_text(sequences),
        state=_rows_text(states),
        says=_first_line(error, family),
        tries=_remedy(error, states, _first_line(error, family)),
    )


def _rows_text(leaves: Named) -> str:
    """Names, dtypes and shapes of what one step reads, with `batch` for the first axis."""
    return (
        ", ".join(f"{name} " + re.sub(r"\[\d+", "[batch", described(leaf), count=1) for name, leaf in leaves) or "none"
    )


def _first_line(error: Exception, family: FakeTensorFamily) -> str:
    """The first line of torch's message, with `batch` in the place of the symbol."""
    line = (str(error).splitlines() or [""])[0]
    if not isinstance(family.rows, int):
        line = re.sub(rf"\b{family.rows.node.expr}\b", "batch", line)
    return f"{type(error).__name__}: {line}".replace("FakeTensor", "Tensor")


def _remedy(error: Exception, states: Named, says: str) -> str | None:
    if isinstance(error, AttributeError) and len(states) == 1 and error.name == states[0][0]:
        return f"a cell with one state gets the tensor itself: state in the place of state.{error.name}"
    if "numpy.object_" in str(error):
        return "torch.arange(x.shape[0], device=x.device) instead of numpy's: a trace serves every batch"
    if "dtype" in str(error) or "scalar type" in str(error):
        return "bring inputs, state and parameters to one dtype: inputs.to(dtype), net.to(dtype)"
    if isinstance(error, IndexError):
        return "check the indices against the size of what they point into"
    if "sparse" in says:
        return "value.to_dense() where the cell is made, and the same with @: sparse tensors are not traced"
    if re.search(r"\bbatch\b", says):
        return (
            "inputs, states and contexts have the batch in front, other tensors do not have it; of a module that keeps "
            "its state in attributes, lp.Stateful(module, names) makes a cell"
        )
    if isinstance(error, TypeError) and "NoneType" in says:
        return "of a module whose attributes are None before the first step, lp.Stateful(module, names) makes a cell"
    if isinstance(error, (RuntimeError, ValueError)):
        return "check the features of the inputs against the cell's sizes; in a step they are [batch, features]"
    return None


@contextmanager
def _without_log() -> Iterator[None]:
    """Silence torch's log of an error, with its own traceback, that is about to be translated."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def users_line(trace: TracebackType | None) -> str | None:
    """The text of the last line of a traceback that is the user's, or a built-in cell's; else another package's; else
    None.
    """
    frames = traceback.extract_tb(trace)
    users = [frame for frame in frames if is_users(frame.filename)]
    packages = [frame for frame in frames if "site-packages" in frame.filename and _is_foreign(frame.filename)]
    candidates = users or packages
    return line_text(candidates[-1]) if candidates else None


def line_text(frame: traceback.FrameSummary) -> str:
    """`my_model.py, line 41: if h.sum() > 0:`."""
    return f"{Path(frame.filename).name}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")


def is_users(filename: str) -> bool:
    """Whether a file is neither Python's, nor a package's, nor ours; built-in cells count as the user's."""
    if filename.startswith(_CELLS_FOLDER):
        return True
    generated = filename.startswith("<") and not filename.startswith(("<stdin>", "<ipython"))
    python = filename.startswith(_PYTHON_FOLDER) or "site-packages" in filename
    return not generated and not python and _is_foreign(filename)


def _is_foreign(filename: str) -> bool:
    return not filename.startswith((_TORCH_FOLDER, _OUR_FOLDER))


class UserLines(TorchFunctionMode):
    """While active, operators of the graph that is traced get the user's line as `meta["line"]`."""

    def __torch_function__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **(kwargs or {}))
        with at_line(mode.tracer.graph, current_line):
            return func(*args, **(kwargs or {}))


@contextmanager
def at_line(graph: fx.Graph, line: Callable[[], str | None]) -> Iterator[None]:
    """Operators that the block adds to a graph get `meta["line"]`, which is asked for if there are some."""
    before = graph._root.prev
    yield
    node, found = graph._root.prev, None
    while node is not before and node is not graph._root:  # from the newest node back to those that were there
        found = found or line()
        node.meta.setdefault("line", found)
        node = node.prev


def current_line() -> str | None:
    """`my_cell.py, line 12: y = torch.remainder(x, 2)`, of the innermost frame that is the user's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}, line {frame.f_lineno}" + (f": {text}" if text else "")
        frame = frame.f_back
    return None
