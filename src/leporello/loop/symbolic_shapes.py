"""`Shapes`: torch's record of symbolic sizes, as fake tensors use it. Importing it loads sympy and dynamo."""

from __future__ import annotations

import inspect
import sys
import traceback
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Literal

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


@dataclass(frozen=True)
class Decision:
    """A question about a size whose answer is another one where the size is 1, and the line that asks.

    A list of them can stand beside torch's guards: these have an expression and a place, too.

    of_step   whether code outside of torch asks; else a module or function of torch does, such as instance_norm
    """

    expr: sympy.Basic
    framework_loc: traceback.FrameSummary | None
    of_step: bool = True

    @property
    def sloc(self) -> Decision:
        """The place of the question."""
        return self


class Shapes(ShapeEnv):
    """torch's record of symbolic sizes. Who asks about one is found without the files of torch's compilers, which take
    a third of a second to load.

    at_one   what Python code has asked that is not so where a size is 1. torch takes symbolic sizes to be 2 and more:
             it answers such questions without a guard. Those by which an operator finds its shape and its strides are
             left out: `holds_at_one` finds where that shape is another one
    """

    at_one: list[Decision]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.at_one = []

    def evaluate_expr(self, orig_expr: Any, *args: Any, **options: Any) -> Any:
        """torch's answer; a decision of Python code that differs where a size is 1 is noted."""
        value = super().evaluate_expr(orig_expr, *args, **options)
        if isinstance(orig_expr, sympy.Basic) and value in (sympy.true, sympy.false):
            asking = _who_asks()
            for symbol in orig_expr.free_symbols if asking else ():
                if orig_expr.subs(symbol, 1) not in (value, orig_expr):
                    self.at_one.append(Decision(orig_expr, self._users_line(), asking == "step"))
        return value

    def free_size(self, name: str, example: int) -> Any:
        """A new symbolic size; where a step decides by it, torch assumes the example."""
        source = ConstantSource(name)
        symbol = self.create_symbol(example, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        return self.create_symintnode(symbol, hint=example, source=source)

    def _users_line(self) -> traceback.FrameSummary | None:
        frame = self._get_user_frame()
        return None if frame is None else traceback.extract_stack(frame, limit=1)[0]

    def _get_user_frame(self) -> FrameType | None:
        frame = inspect.currentframe()  # not kept: a frame that holds itself holds its callers, and what they return
        frame = None if frame is None else frame.f_back
        while frame is not None and _stands_between(frame.f_code):
            frame = frame.f_back
        return frame


def _stands_between(code: CodeType) -> bool:
    """Whether it is code of torch, or of this library's modes, that the step's own code calls."""
    if code.co_filename.startswith((*_TORCH, __file__, "<string>")):
        return True
    return code.co_filename.startswith(_OWN) and code.co_name in ("__torch_function__", "__torch_dispatch__")


_TORCH = tuple(torch.__path__)
_OWN = __file__.rpartition("loop")[0]
_ASKING = (torch.__file__, *(sys.modules[name].__file__ for name in (  # what stands between a question and its answer
    "torch.fx.experimental.sym_node", "torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.recording",
)), __file__)  # fmt: skip


_OF_OPERATORS = tuple(f"{path}/{part}" for path in _TORCH for part in (  # Python code that is part of an operator
    "_decomp", "_dispatch", "_higher_order_ops", "_library", "_meta_registrations", "_ops", "_prims", "_refs",
    "_subclasses", "autograd", "fx", "utils",
))  # fmt: skip


def _who_asks() -> Literal["step", "module"] | None:
    """Whether code outside of torch asks about a size, or Python code of a module or function of torch.

    None for an operator of torch, and for this library.
    """
    frame, in_python = inspect.currentframe(), False
    while frame is not None and frame.f_code.co_filename in _ASKING:
        in_python = in_python or frame.f_code.co_filename == torch.__file__  # else an operator in C++ asks
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((_OWN, "<")):
        return None
    file = frame.f_code.co_filename
    if not file.startswith(_TORCH):
        return "step"
    return "module" if in_python and not file.startswith(_OF_OPERATORS) else None
