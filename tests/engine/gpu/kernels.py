"""The kernels that the engine gpu is given for a cell, without building them."""

from __future__ import annotations

from dataclasses import replace

import torch

import leporello as lp
from leporello.engine.gpu.target import GPU_TARGET
from leporello.engine.plan import Plan
from leporello.kernel.description import Kernel
from leporello.loop.tracing.trace import trace
from leporello.rewrite.pipeline import Context, Pipeline


def kernels_of(cell: lp.Cell, inputs: int, dtype: torch.dtype, *, gradient: bool = True) -> list[Kernel]:
    """The kernels of the forward sweep, and of the backward sweep where a gradient is wanted."""
    kernels: list[Kernel] = []

    class Collected:
        source = None

        def __init__(self, kernel: Kernel) -> None:
            kernels.append(kernel)

    target = replace(GPU_TARGET, name="collected", devices=None, build=Collected)
    pipeline = Pipeline(Context())
    called = pipeline.call(
        trace(cell.to(dtype), torch.zeros(4, inputs, dtype=dtype), cell.initial_state(4, dtype=dtype))
    )
    wanted = tuple(gradient and port.kind == "invariant" for port in called.inputs)
    plan = Plan(called, wanted, target=target, before=tuple(pipeline.records))
    if gradient:
        plan.prepare()
    else:
        _ = plan.plain
    return kernels
