"""The target `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached; float32 and float64.

Sums over rows and large products of at-once stages are kernels too (row_sums, window_products).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, fx

from leporello.engine.cpu.build import compiler_refusal
from leporello.engine.cpu.lagged_window import LaggedWindow
from leporello.engine.cpu.native import build_ahead, put_shifted, put_step
from leporello.engine.cpu.row_sums import KERNEL_DTYPES, sums_in_turn, with_row_sums
from leporello.engine.cpu.runner import STORAGE, CpuRunner, build
from leporello.engine.cpu.window_products import with_window_products
from leporello.engine.row_elements import fixed_features
from leporello.engine.target import Costs, Target, WindowSizes
from leporello.kernel.expressions import POINTWISE, is_pointwise
from leporello.kernel.lowering_context import short
from leporello.kernel.views import SPLITS, VIEW_RULES
from leporello.loop.fake_tensors import clean_row_axis, count_of, has_rows
from leporello.loop.graph import arguments
from leporello.loop.stages import Stage
from leporello.loop.value_classes import is_stored_narrower
from leporello.rewrite.join_saved import join_saved
from leporello.rewrite.join_totals import join_totals
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.real_planes import real_planes
from leporello.rewrite.skip_padding import skip_padding

aten = torch.ops.aten
# Computed by libm in kernels; tanh, exp, log and sigmoid are our own functions, cheaper than a pass over memory.
EXPENSIVE_IN_KERNELS = frozenset({aten.sin.default, aten.cos.default, aten.erf.default, aten.pow.Tensor_Tensor})
MIN_SUMMED_INSIDE, MAX_SUMMED_INSIDE = 512, 1 << 14  # numbers of a row that a kernel adds up over rows and steps
DRAWN_IN_TOO = frozenset(
    {"cat", "stack", "select_backward", "slice_backward", "native_layer_norm", "native_layer_norm_backward"}
)
MAX_INSIDE_MATRIX_ELEMENTS = 1 << 17  # of a matrix that stays in the cache from one step to the next


def is_drawn_in(node: fx.Node) -> bool:
    """Whether an operator costs no more inside a kernel than outside, and saves a pass over memory there.

    So it is for pointwise operators, views, layer norms, sums over features, and products of rows with a matrix. Not so
    where the matrix is large: inside, it is read again for every step, outside once for many. One that is stored
    narrower is converted as it is read: outside, the whole of it would be converted at each call.
    """
    if node.op != "call_function" or not isinstance(node.meta.get("val"), (Tensor, tuple, list)):
        return False
    name = short(node)
    if name in ("mm", "addmm"):
        left, right = arguments(node)[-2:]
        if has_rows(right.meta["val"]) or not has_rows(left.meta["val"]):
            return False
        return count_of(right.meta["val"]) <= MAX_INSIDE_MATRIX_ELEMENTS or is_stored_narrower(right)
    if name == "sum" and not has_rows(node.meta["val"]):
        return is_wide_row_sum(node)
    if name in ("sum", "mean"):
        return clean_row_axis(node.meta["val"]) == 0  # over features
    return name in {*POINTWISE, *VIEW_RULES, *SPLITS, *DRAWN_IN_TOO}


def is_wide_row_sum(node: fx.Node) -> bool:
    """Whether it is a sum over rows alone, of rows so large that they should not go through memory for it.

    Values with one axis of features are left out: gradients of biases, summed with those of the matrices.
    """
    if node.target is not aten.sum.dim_IntList or list(arguments(node)[1]) != [0] or node.kwargs:
        return False
    value = arguments(node)[0]
    if value.meta["val"].dim() < 3:
        return False
    count = fixed_features(value) if clean_row_axis(value.meta["val"]) == 0 else 0
    alike = value.meta["val"].dtype == node.meta["val"].dtype and node.meta["val"].dtype in KERNEL_DTYPES
    return alike and MIN_SUMMED_INSIDE <= count <= MAX_SUMMED_INSIDE


def _at_once(stage: Stage) -> list[Stage]:
    """An at-once stage as one or several, in which our kernels compute sums over rows and large products."""
    return [replace(part, graph=with_window_products(with_row_sums(part.graph))) for part in sums_in_turn(stage)]


CPU_TARGET = Target(
    name="cpu",
    devices={"cpu": "the CPU"},
    floats=frozenset({torch.float32, torch.float64}),
    stored=frozenset(STORAGE),
    language="C",
    costs=Costs(expensive=EXPENSIVE_IN_KERNELS, drawn_in=is_drawn_in),
    passes=(
        Pass("plan", "real_planes", "kernels compute with real numbers; first, so that gradients are real too",
             lambda c, loop: real_planes(loop)),
        Pass("pair", "join_saved", "a kernel reads a slice of a row as fast as a whole row: one sequence will do",
             lambda c, saved: join_saved(saved, is_pointwise)),
        Pass("pair", "skip_padding", "row_sums skips rows past their end, so it needs no cleaned copy of what it sums",
             lambda c, saved: replace(saved, backward=skip_padding(saved.backward, c.leaving))),
        Pass("sweep", "join_totals", "a kernel adds up a sum of values faster than each of them",
             lambda c, loop: join_totals(loop, is_wide_row_sum)),
    ),
    default_windows=WindowSizes(max_rows=4096),
    unavailable=compiler_refusal,
    remedy="Install gcc or clang",
    build=build,
    build_ahead=build_ahead,
    wait=CpuRunner.wait,
    at_once=_at_once,
    put_step=put_step,
    put_shifted=put_shifted,
    in_place=LaggedWindow,
)  # fmt: skip
