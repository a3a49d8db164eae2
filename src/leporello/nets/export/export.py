"""`export`: a network as a file for other programs, by the suffix of the path."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from leporello.errors import ArgumentError
from leporello.loop.state import Tree
from leporello.nets.export.c_export import export_c
from leporello.nets.export.onnx_export import export_onnx
from leporello.nets.export.report import ExportReport
from leporello.nets.quantise import with_exact_rows

FORMATS: dict[str, Callable[..., ExportReport]] = {".c": export_c, ".onnx": export_onnx}


def export(net: nn.Module, path: str | os.PathLike[str], *, example: Tree = None, **options: Any) -> ExportReport:
    """Write a network as a file that runs without Python, and compare it with the network before returning.

    net       lp.Recurrent, or a network that is a cell over a sequence: lp.Summary, lp.Layers of lp.Recurrent; for
              ONNX lp.Bidirectional too
    path      model.c: a C file, and the header model.h beside it; model.onnx: an ONNX file for any length and batch
    example   inputs as for a call, (length, batch, ...): what the file is compared on
    options   of the format. C: `state`, which a reset sets; `steps`, for a system without inputs; `quantise="int8"`,
              with `data` on which the scales are chosen. ONNX: `lengths`, `resets` and `state`, whether these are
              inputs of the file; `steps`

    Returns a report of what was written and of the largest error; a difference raises, and then nothing is written.

    >>> import tempfile, torch
    >>> from leporello.cells import GRU
    >>> from leporello.nets.recurrent import Recurrent
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export(Recurrent(GRU(3, 16)), Path(folder) / "model.c", example=torch.randn(20, 2, 3))
    >>> report.ok
    True
    """
    target = Path(path)
    writer = FORMATS.get(target.suffix.lower())
    if writer is None:
        raise ArgumentError(
            "the argument 'path' names no format.",
            came=repr(str(path)),
            expected=" or ".join(f"a name that ends in {suffix}" for suffix in FORMATS),
        )
    known = [name for name in inspect.signature(writer).parameters if name not in ("net", "path", "example")]
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"a file of the format {target.suffix} has no option '{name}'.",
                came=f"{name}={options[name]!r}",
                expected=", ".join(known),
            )
    return writer(with_exact_rows(net), target, example=example, **options)
