"""The engine `gpu` on a GPU: every built-in cell has the outputs and gradients of the plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import leporello as lp
from tests.cells.examples import EXAMPLES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LENGTH, BATCH = 6, 19  # rows of three tiles, the last of them not full
ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths and resets": {"lengths": [1 + row % LENGTH for row in range(BATCH)], "resets": 0.3},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_cell_has_the_gradients_of_the_plain_loop(name: str, arguments: dict[str, Any]) -> None:
    cell = EXAMPLES[name]()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    net = lp.Recurrent(cell, engine="gpu").cuda()
    called = dict(arguments)
    if "resets" in called:
        called["resets"] = torch.rand(LENGTH, BATCH, device="cuda") < called["resets"]
    report = lp.check_gradients(net, torch.randn(LENGTH, BATCH, 3, device="cuda"), **called)
    assert report.ok, report
