"""The target `gpu`: insides of a Loop as persistent CUDA kernels, one launch for all steps; float32, float16, bfloat16.

What does not fit on the chip for that is a kernel for each level of a step, with products by torch before it.
Sums over rows of all steps are one kernel too; products and everything else outside of insides are torch's operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, fx

from leporello.engine.gpu.cuda_build import CudaBuilder
from leporello.engine.gpu.division.scheduler import schedule_of
from leporello.engine.gpu.driver import nvrtc_refusal, put_step
from leporello.engine.gpu.graphs.captured_sweeps import captured_sweep
from leporello.engine.gpu.runner import GpuRunner
from leporello.engine.gpu.sums.cuda_sums import CudaSums
from leporello.engine.gpu.sums.row_sums import SumsLauncher
from leporello.engine.gpu.sums.terms import with_row_sums
from leporello.engine.target import Costs, Target, WindowSizes
from leporello.kernel.description import Kernel
from leporello.kernel.expressions import is_pointwise
from leporello.kernel.lowering_context import short
from leporello.kernel.views import SPLITS, VIEW_RULES
from leporello.loop.stages import Stage
from leporello.loop.value_classes import is_stored_narrower
from leporello.rewrite.add_in_products import add_in_products
from leporello.rewrite.join_saved import join_saved
from leporello.rewrite.own_totals import own_totals
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.real_planes import real_planes
from leporello.rewrite.save import EXPENSIVE
from leporello.rewrite.skip_padding import skip_padding

aten = torch.ops.aten
# Beside what is expensive for torch: a layer norm, which a kernel has computed but at once is a launch and a pass.
EXPENSIVE_ON_GPU = EXPENSIVE | {aten.native_layer_norm.default}
GPU_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


def is_drawn_in(node: fx.Node) -> bool:
    """Whether an operator costs less inside a kernel than as passes over memory: pointwise operators and views.

    Products are left outside, where one call of torch multiplies the rows of all steps.
    """
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
        return False
    if is_stored_narrower(node):
        return False  # the kernels multiply numbers of one type
    return is_pointwise(node) or short(node) in {*VIEW_RULES, *SPLITS, "cat"}


def build(kernel: Kernel) -> GpuRunner:
    """Divide a kernel into levels; it is compiled when a call shows its batch."""
    refusal = nvrtc_refusal()
    if refusal is not None:
        raise refusal
    schedule, builder = schedule_of(kernel), CudaBuilder()
    builder.texts(schedule, 1, torch.device("cuda", torch.cuda.current_device()), 1)  # refuses what no geometry has
    return GpuRunner.of(kernel, schedule, builder)


def at_once_by(launcher: SumsLauncher) -> Callable[[Stage], list[Stage]]:
    """A function from an at-once stage to the same with sums over rows by our kernel."""
    return lambda stage: [replace(stage, graph=with_row_sums(stage.graph, launcher))]


GPU_TARGET = Target(
    name="gpu",
    devices={"cuda": "CUDA devices"},
    floats=GPU_FLOATS,
    language="CUDA",
    costs=Costs(expensive=EXPENSIVE_ON_GPU, operands=True, drawn_in=is_drawn_in),
    passes=(
        Pass("plan", "real_planes", "kernels compute with real numbers; first, so that gradients are real too",
             lambda c, loop: real_planes(loop)),
        Pass("pair", "join_saved", "a kernel reads a slice of a row as fast as a whole row: one sequence will do",
             lambda c, saved: join_saved(saved, is_pointwise)),
        Pass("pair", "skip_padding", "sums skip rows past their end, so that nothing is cleaned for them alone",
             lambda c, saved: replace(saved, backward=skip_padding(saved.backward, c.leaving, products=False))),
        Pass("sweep", "add_in_products", "a product that adds a bias costs no more than one without",
             lambda c, loop: add_in_products(loop)),
        Pass("sweep", "own_totals", "after merge_equal_values, which makes equal sums one",
             lambda c, loop: own_totals(loop)),
    ),
    default_windows=WindowSizes(max_rows=1 << 16),
    unavailable=nvrtc_refusal,
    remedy="pip install nvidia-cuda-nvrtc",
    build=build,
    recorded_sweep=captured_sweep,
    at_once=at_once_by(CudaSums()),
    put_step=put_step,
)  # fmt: skip
