"""The target `cpu`: insides of a Loop as generated C, built by the machine's compiler and cached; float32 and float64.

Sums over rows and large products of at-once stages are kernels too (row_sums, row_products).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from leporello.engine.cpu.build import compiler_refusal
from leporello.engine.cpu.native import put_step
from leporello.engine.cpu.row_products import with_row_products
from leporello.engine.cpu.row_sums import sums_in_turn, with_row_sums
from leporello.engine.cpu.runner import build
from leporello.engine.target import Costs, Target, WindowSizes
from leporello.kernel.expressions import is_drawn_in, is_pointwise
from leporello.loop.stages import Stage
from leporello.rewrite.join_saved import join_saved
from leporello.rewrite.pipeline import Pass
from leporello.rewrite.skip_padding import skip_padding

aten = torch.ops.aten
# Computed by libm in kernels; tanh, exp, log and sigmoid are our own functions, cheaper than a pass over memory.
EXPENSIVE_IN_KERNELS = frozenset({aten.sin.default, aten.cos.default, aten.erf.default, aten.pow.Tensor_Tensor})


def _at_once(stage: Stage) -> list[Stage]:
    return [replace(part, graph=with_row_products(with_row_sums(part.graph))) for part in sums_in_turn(stage)]


CPU_TARGET = Target(
    name="cpu",
    devices={"cpu": "the CPU"},
    floats=frozenset({torch.float32, torch.float64}),
    language="C",
    costs=Costs(expensive=EXPENSIVE_IN_KERNELS, drawn_in=is_drawn_in),
    passes=(
        Pass("pair", "join_saved", "a kernel reads a slice of a row as fast as a whole row: one sequence will do",
             lambda c, saved: join_saved(saved, is_pointwise)),
        Pass("pair", "skip_padding", "row_sums skips rows past their end, so it needs no cleaned copy of what it sums",
             lambda c, saved: replace(saved, backward=skip_padding(saved.backward, c.leaving))),
    ),
    default_windows=WindowSizes(max_rows=4096),
    unavailable=compiler_refusal,
    remedy="Install gcc or clang",
    build=build,
    at_once=_at_once,
    put_step=put_step,
)  # fmt: skip
