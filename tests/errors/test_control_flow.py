"""A step that goes on in Python by the numbers in a tensor is refused, and the user's line is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError, UntraceableStep
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, steps.INPUTS)

DECIDES = [
    steps.If,
    steps.While,
    steps.Item,
    steps.Listed,
    steps.Floated,
    steps.Asserted,
    steps.Nested,
    steps.Helped,
]


@pytest.mark.parametrize("engine", ["auto", "stepwise", "reference"])
@pytest.mark.parametrize("step", DECIDES)
def test_a_decision_by_numbers_in_a_tensor_is_refused_at_its_line(step: type, engine: str) -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(step(), engine=engine)(X),
        "the step decides in Python by numbers in a tensor.",
        f"cell     {steps.place(step)}",
        f"line     {steps.line(step.__name__)}",
        "torch.where(condition, a, b)",
    )


@pytest.mark.parametrize("step", [steps.MaskIndex, steps.Nonzero])
def test_a_size_made_of_data_is_refused_at_its_line(step: type) -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(step())(X),
        "the step makes a value whose size depends on numbers in a tensor.",
        steps.place(step),
        steps.line(step.__name__),
        "torch.where(mask, value, 0) instead of value[mask]",
    )


def test_leaving_torch_for_numpy_is_refused_at_its_line() -> None:
    said(UntraceableStep, lambda: lp.Recurrent(steps.Numpy())(X), "numpy", steps.line("Numpy"))


def test_the_line_of_a_plain_function_is_named() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return (h, h + 1) if x.sum() > 0 else (h, h)

    text = said(
        UntraceableStep, lambda: lp.Recurrent(step)(X, torch.zeros(2, 4)), "cell     step (test_control_flow.py"
    )
    assert f"line {step.__code__.co_firstlineno + 1}: return (h, h + 1) if x.sum() > 0 else (h, h)" in text


def test_the_line_is_named_through_stacks_and_records() -> None:
    net = lp.Recurrent(lp.record(lp.Stack(lp.GRU(3, 3), steps.If())))
    said(
        UntraceableStep,
        lambda: net(X),
        "Recorded of Stack of GRU (torch_cells.py, line",
        steps.place(steps.If),
        steps.line("If"),
    )


def test_folding_names_the_line_too() -> None:
    said(UntraceableStep, lambda: lp.fold(steps.If(), X[0]), steps.line("If"))


def test_a_mistake_in_the_step_is_told_with_its_line_and_its_own_words() -> None:
    text = said(
        ArgumentError,
        lambda: lp.Recurrent(steps.Mistaken())(X),
        steps.line("Mistaken"),
        "AttributeError: 'Mistaken' object has no attribute 'nothing'",
    )
    assert "try" not in text


def test_a_users_exception_is_the_cause() -> None:
    class Unheard(Exception):
        pass

    def step(x: Tensor, h: Tensor) -> Any:
        raise Unheard("not today")

    with pytest.raises(ArgumentError, match="Unheard: not today") as found:
        lp.Recurrent(step)(X, torch.zeros(2, 4))
    assert isinstance(found.value.__cause__, Unheard)


class ByShapeAndAttribute(steps.Good):
    """Control flow in Python that no number in a tensor decides."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.twice = twice

    def end(self, x: Tensor, h: Tensor) -> Any:
        if h.shape[-1] == steps.HIDDEN and self.twice:
            h = h * 2
        for column in range(x.shape[-1]):
            h = h + x[:, column : column + 1]
        while h.dim() < 2:
            h = h.unsqueeze(0)
        return (h if self.training else -h), h


class Chosen(steps.Good):
    """Choices that stay tensors; constants may become numbers."""

    def end(self, x: Tensor, h: Tensor) -> Any:
        h = torch.where(h > 0, h, torch.tensor(0.5).item() * h)
        h[h > 0.4] = 0.4
        return h.masked_fill(h < -0.2, -0.2), h


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("make", [lambda: ByShapeAndAttribute(True), lambda: ByShapeAndAttribute(False), Chosen])
def test_control_flow_on_shapes_attributes_and_constants_runs(make: Any, batch: int) -> None:
    cell = make().double()
    inputs = torch.randn(4, batch, steps.INPUTS, dtype=torch.float64)
    for engine in ("stepwise", "reference"):
        assert lp.check_gradients(lp.Recurrent(cell, engine=engine), inputs).ok


def test_an_attribute_that_changes_between_calls_is_seen() -> None:
    cell = ByShapeAndAttribute(False)
    net = lp.Recurrent(cell)
    once = net(X)[0]
    cell.twice = True
    assert not torch.allclose(net(X)[0], once)
    cell.twice = False
    assert torch.equal(net(X)[0], once)
