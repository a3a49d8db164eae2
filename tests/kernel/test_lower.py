"""Every step that kernels cover, and every cell, lowered and run by the interpreter, equals torch; no compiler."""

from __future__ import annotations

import pytest
import torch

import leporello as lp
from leporello.kernel.description import Pointwise, Product
from leporello.rewrite import differentiate
from tests.cells.examples import EXAMPLES, FEW, shaken
from tests.engine.gpu.kernels import kernels_of
from tests.engine.steps import TABLES, Step
from tests.engine.test_coverage import Many
from tests.kernel.lowered import assert_lowered_equals_graph, insides_of

TOGETHER = 6  # steps in one cell
UNPRUNED = {"instance norm (matrices)"}  # kernels cover its gradient only when what nobody needs of it is left out
STEPS = [(name, step) for table in TABLES.values() for name, step in table.items() if name not in UNPRUNED]
GROUPS = [STEPS[begin : begin + TOGETHER] for begin in range(0, len(STEPS), TOGETHER)]


def assert_both_sweeps(cell: lp.Cell, inputs: int, steps: int, batch: int) -> None:
    loop = lp.Recurrent(cell).fold(torch.zeros(steps, batch, inputs, dtype=torch.float64))
    insides = assert_lowered_equals_graph(loop, steps, batch)
    assert assert_lowered_equals_graph(differentiate(loop), steps, batch) >= min(insides, 1)


@pytest.mark.slow
@pytest.mark.parametrize("steps", GROUPS, ids=lambda steps: f"{steps[0][0]} to {steps[-1][0]}")
def test_every_operator_that_is_covered_is_lowered_to_what_torch_computes(steps: list[tuple[str, Step]]) -> None:
    assert_both_sweeps(Many(dict(steps)), 6, 2, 3)


@pytest.mark.parametrize("name", FEW)
def test_every_cell_is_lowered_to_what_torch_computes(name: str) -> None:
    cell = shaken(EXAMPLES[name]())
    for steps, batch in ((1, 1), (3, 2)):
        assert_both_sweeps(cell, cell.inputs, steps, batch)


@pytest.mark.parametrize("name", ["GRU", "LayerNormLSTM"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_has_one_type_in_memory_in_arithmetic_and_in_sums(name: str, dtype: torch.dtype) -> None:
    cell = EXAMPLES[name]().to(dtype)
    loop = lp.Recurrent(cell).fold(torch.zeros(2, 3, cell.inputs, dtype=dtype))
    for sweep in (loop, differentiate(loop)):
        for inside in insides_of(sweep.split()):
            kernel = inside.kernel
            assert kernel.dtype == dtype
            buffers = [buffer for own in kernel.buffers.values() for buffer in own]
            assert {(buffer.dtype, buffer.arithmetic) for buffer in buffers} == {(dtype, dtype)}
            sums = [block for block in kernel.blocks if not isinstance(block, Pointwise)]
            assert {block.accumulation for block in sums} == {dtype}


class Viewed(lp.Cell):
    """The state is multiplied head by head, and the backward sweep reads the view again."""

    def __init__(self) -> None:
        super().__init__(h=6)
        self.R = torch.nn.Parameter(torch.randn(2, 3, 3))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(x + (h.view(-1, 2, 1, 3) @ self.R).flatten(1))
        return h, h


def test_a_product_reads_a_view_of_a_state_where_the_state_is() -> None:
    kernels = kernels_of(Viewed(), 6, torch.float32)
    products = [block for block in kernels[0].blocks if isinstance(block, Product)]
    assert [product.left.place for product in products] == ["state"]
