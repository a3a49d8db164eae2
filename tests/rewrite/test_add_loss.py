"""The loss of a step: torch's losses without reduction, and the targets they compare with."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp

X = torch.zeros(2, 3)
CLASSES = torch.tensor([[0, 1], [1, 1], [0, 0]])


@pytest.mark.parametrize(
    "loss", [nn.functional.nll_loss, nn.NLLLoss(), functools.partial(nn.functional.nll_loss, ignore_index=-1)]
)
def test_nll_loss_reads_class_indices(loss: Any) -> None:
    cell = lp.Elman(3, 4, 2)
    loop = lp.fold(cell, X, loss=loss)
    (port,) = [port for port in loop.inputs if port.name == "y"]
    assert (port.shape, port.dtype) == ((), torch.int64)
    inputs = torch.randn(3, 2, 3)
    (outputs, losses), _ = loop.unfold(3).run(inputs, targets=CLASSES)
    torch.testing.assert_close(losses, -outputs.gather(-1, CLASSES.unsqueeze(-1)).squeeze(-1))


def test_a_target_that_is_passed_counts() -> None:
    loop = lp.fold(lp.Elman(3, 4, 2), X, loss=nn.functional.cross_entropy, target=torch.zeros(2, dtype=torch.int64))
    (_, losses), _ = loop.unfold(3).run(torch.randn(3, 2, 3), targets=CLASSES)
    assert losses.shape == (3, 2)
