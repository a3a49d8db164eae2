"""`Lines`: which line of the user's made each operator of a graph, kept with it for those who refuse it later.

Knows the stack and fx; knows nothing of what a step does.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from leporello.loop.translate import is_users


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
