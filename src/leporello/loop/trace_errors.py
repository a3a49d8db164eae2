"""Errors of the tracer, and of the step itself, in the user's words and with the user's line.

Knows the errors of torch's stand-in tensors; knows nothing of the rules of a step.
"""

from __future__ import annotations

import linecache
import logging
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from leporello.errors import ArgumentError, DeviceMismatch, LeporelloError, UntraceableStep
from leporello.loop.fake_tensors import FakeTensorFamily
from leporello.loop.state import described
from leporello.loop.step import place_of

Named = Sequence[tuple[str, Tensor]]
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent.parent)
_CELLS = str(Path(__file__).parent.parent / "cells")
_PYTHON = sysconfig.get_paths()["stdlib"]
_ONCE = "numbers differ from row to row and from step to step, and the graph of a step is made once"


@contextmanager
def translated(cell: nn.Module, sequences: Named, states: Named, family: FakeTensorFamily) -> Iterator[None]:
    """What fails inside is raised in the form of our errors, with the cell and the user's line."""
    try:
        with mock.patch.object(torch.autograd.Function, "apply", _refuse_function()), _quiet():
            yield
    except LeporelloError as error:
        error.place(cell=place_of(cell), line=users_line(error.__traceback__))
        raise
    except Exception as error:
        found = _in_words(error, sequences, states, family)
        found.place(cell=place_of(cell), line=users_line(error.__traceback__))
        raise found from error


def _in_words(error: Exception, sequences: Named, states: Named, family: FakeTensorFamily) -> LeporelloError:
    said = str(error)
    if isinstance(error, DynamicOutputShapeException):
        return UntraceableStep(
            "the step makes a value whose size depends on numbers in a tensor.",
            because=_ONCE,
            tries="torch.where(mask, value, 0) instead of value[mask]",
        )
    if isinstance(error, (GuardOnDataDependentSymNode, DataDependentOutputException)):
        return UntraceableStep(
            "the step decides in Python by numbers in a tensor.",
            because=_ONCE,
            tries="torch.where(condition, a, b) instead of if and while; tensors instead of .item() and float()",
        )
    if ".numpy() is not supported" in said:
        return UntraceableStep(
            "the step leaves torch for numpy, where no graph follows it.", tries="the same with torch's functions"
        )
    if "convert all Tensors to FakeTensors" in said:
        return UntraceableStep(
            "the step reads a tensor that is neither its input, nor its state, nor a parameter or buffer of the cell.",
            tries="self.register_buffer, nn.Parameter or a submodule in the cell, so that it gets gradients and moves "
            "with it; a function that needs parameters becomes an nn.Module",
        )
    if "device" in said and ("different devices" in said or "not on the expected device" in said):
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
        tries=_remedy(error),
    )


def _rows_text(leaves: Named) -> str:
    """What one step reads: the batch, then features."""
    return (
        ", ".join(f"{name} " + re.sub(r"\[\d+", "[batch", described(leaf), count=1) for name, leaf in leaves) or "none"
    )


def _first_line(error: Exception, family: FakeTensorFamily) -> str:
    """What torch says, in one line, with the batch in the place of its symbol."""
    line = (str(error).splitlines() or [""])[0]
    if not isinstance(family.rows, int):
        line = re.sub(rf"\b{family.rows.node.expr}\b", "batch", line)
    return f"{type(error).__name__}: {line}".replace("FakeTensor", "Tensor")


def _remedy(error: Exception) -> str | None:
    if "dtype" in str(error) or "scalar type" in str(error):
        return "bring inputs, state and parameters to one dtype: inputs.to(dtype), net.to(dtype)"
    if isinstance(error, IndexError):
        return "check the indices against the size of what they point into"
    if isinstance(error, (RuntimeError, ValueError)):
        return "check the features of the inputs against the cell's sizes; in a step they are [batch, features]"
    return None


def _refuse_function() -> Any:
    """In the place of autograd.Function.apply, for this thread."""
    own, apply = threading.get_ident(), torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    @classmethod  # type: ignore[misc]
    def refuse(function: type, *args: Any, **options: Any) -> Any:
        if threading.get_ident() != own:
            return apply(function, *args, **options)
        raise UntraceableStep(
            f"the step calls {function.__name__}, an autograd.Function, whose own backward a graph cannot keep.",
            tries="write a surrogate gradient as soft + (hard - soft).detach()",
        )

    return refuse


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs, with its own traceback, what is about to be said in better words."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def users_line(trace: TracebackType | None) -> str | None:
    """The last line that is neither torch's, nor Python's, nor ours, cells excepted; None if there is none."""
    frames = traceback.extract_tb(trace)
    users = [frame for frame in frames if is_users(frame.filename)]
    others = [frame for frame in frames if "site-packages" in frame.filename and _is_foreign(frame.filename)]
    found = users or others
    return line_text(found[-1]) if found else None


def line_text(frame: traceback.FrameSummary) -> str:
    """`my_model.py, line 41: if h.sum() > 0:`."""
    return f"{Path(frame.filename).name}, line {frame.lineno}" + (f": {frame.line}" if frame.line else "")


def is_users(filename: str) -> bool:
    if filename.startswith(_CELLS):
        return True
    generated = filename.startswith("<") and not filename.startswith(("<stdin>", "<ipython"))
    python = filename.startswith(_PYTHON) or "site-packages" in filename
    return not generated and not python and _is_foreign(filename)


def _is_foreign(filename: str) -> bool:
    return not filename.startswith((_TORCH, _OURS))


class Lines(TorchFunctionMode):
    """While it is on, operators of the graph that is traced get the user's line as `meta["line"]`."""

    def __torch_function__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **(kwargs or {}))
        graph: fx.Graph = mode.tracer.graph
        before = graph._root.prev
        result = func(*args, **(kwargs or {}))
        made, line = graph._root.prev, None
        while made is not before and made is not graph._root:
            line = line or _line()
            made.meta.setdefault("line", line)
            made = made.prev
        return result


def _line() -> str | None:
    """`my_cell.py, line 12: y = torch.remainder(x, 2)`, of the innermost frame that is the user's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            text = linecache.getline(name, frame.f_lineno).strip()
            return f"{Path(name).name}, line {frame.f_lineno}" + (f": {text}" if text else "")
        frame = frame.f_back
    return None
