"""`Shapes`: torch's record of symbolic sizes, as fake tensors use it. Importing it loads sympy and dynamo: a second."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv


class Shapes(ShapeEnv):
    """torch's record of symbolic sizes. Who asks about one is found without the files of torch's compilers, which take
    a third of a second to load."""

    def free_size(self, name: str, example: int) -> Any:
        """A new symbolic size; where a step decides by it, torch assumes the example."""
        source = ConstantSource(name)
        symbol = self.create_symbol(example, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        return self.create_symintnode(symbol, hint=example, source=source)

    def _get_user_frame(self) -> FrameType | None:
        own = inspect.currentframe()
        frame = None if own is None else own.f_back
        while frame is not None and frame.f_code.co_filename.startswith((*_TORCH, "<string>")):
            frame = frame.f_back
        return frame


_TORCH = tuple(torch.__path__)
