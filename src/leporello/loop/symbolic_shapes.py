"""`Shapes`: torch's record of symbolic sizes, as fake tensors use it. Importing it loads sympy and dynamo."""

from __future__ import annotations

import inspect
import sys
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


@dataclass(frozen=True)
class Decision:
    """A question about a size whose answer is another one where the size is 1, and the line that asks.

    A list of them can stand beside torch's guards: these have an expression and a place, too.
    """

    expr: sympy.Basic
    framework_loc: traceback.FrameSummary | None

    @property
    def sloc(self) -> Decision:
        """The place of the question."""
        return self


class Shapes(ShapeEnv):
    """torch's record of symbolic sizes. Who asks about one is found without the files of torch's compilers, which take
    a third of a second to load.

    at_one   what code outside of torch has asked that is not so where a size is 1. torch takes symbolic sizes to be 2
             and more: it answers such questions without a guard
    """

    at_one: list[Decision]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.at_one = []

    def evaluate_expr(self, orig_expr: Any, *args: Any, **options: Any) -> Any:
        """torch's answer; a decision of the user's code that differs where a size is 1 is noted."""
        value = super().evaluate_expr(orig_expr, *args, **options)
        if isinstance(orig_expr, sympy.Basic) and value in (sympy.true, sympy.false) and _is_asked_outside_torch():
            for symbol in orig_expr.free_symbols:
                if orig_expr.subs(symbol, 1) not in (value, orig_expr):
                    self.at_one.append(Decision(orig_expr, self._users_line()))
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
        own = inspect.currentframe()
        frame = None if own is None else own.f_back
        while frame is not None and frame.f_code.co_filename.startswith((*_TORCH, __file__, "<string>")):
            frame = frame.f_back
        return frame


_TORCH = tuple(torch.__path__)
_OWN = __file__.rpartition("loop")[0]
_ASKING = (torch.__file__, *(sys.modules[name].__file__ for name in (  # what stands between a question and its answer
    "torch.fx.experimental.sym_node", "torch.fx.experimental.symbolic_shapes", "torch.fx.experimental.recording",
)), __file__)  # fmt: skip


def _is_asked_outside_torch() -> bool:
    """Whether code outside of torch, and of this library, asks about a size, and not an operator of torch."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename in _ASKING:
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith((*_TORCH, _OWN, "<"))
