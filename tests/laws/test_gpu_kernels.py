"""Law: kernels of the engine gpu give what the plain loop gives, on the host and, where there is one, a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, reject

import leporello as lp
from tests.gpu_on_host import SHAPES
from tests.laws.calls import Case, cases, tensors_of
from tests.laws.examples import cells
from tests.laws.test_single_precision import agree
from tests.random_cells import cell_of

# What jumps may jump elsewhere in another precision; a convolution is none of their operators.
OPTIONS = {"smooth": True, "draws": False, "without": ["convolution"]}
REFUSED = 0.15  # of random cells, at most: linalg, topk and sort go to stepwise


def check(case: Case, engine: str, device: str = "cpu") -> bool:
    """Whether the engine runs the cell, and then as the plain loop does."""
    cell = cell_of(case.program)
    tensors = tensors_of(replace(case, arguments=replace(case.arguments, state=True)), cell)
    try:
        agree(cell, tensors, engine, device)
    except (lp.errors.EngineRefusal, lp.errors.RowsMeet):  # torch 2.11 decides by the rows where 2.13 does not
        return False
    return True


@pytest.mark.timeout(7200)
@cells(0.03)
@given(cases(**OPTIONS))
def test_random_cells_on_the_host(case: Case) -> None:
    if not check(case, list(SHAPES)[case.arguments.seed % len(SHAPES)]):
        reject()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(7200)
def test_random_cells_on_a_gpu() -> None:
    ran: list[bool] = []

    @cells(0, least=300)
    @given(cases(**OPTIONS))
    def law(case: Case) -> None:
        ran.append(check(case, "gpu", "cuda"))

    law()
    assert ran.count(False) <= REFUSED * len(ran), f"refused {ran.count(False)} of {len(ran)} cells"
