"""The benchmark counts bytes exactly, times contestants in turns, and refuses to time a wrong thing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks import measure


def training_step(run: measure.Run) -> measure.TrainingStep:
    return measure.TrainingStep(run, parameters=(), inputs=torch.zeros(1), weighting=torch.ones(1))


class Halves(nn.Module):
    """Two ways to compute the same, and one that is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def together(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight

    def apart(self, inputs: Tensor) -> Tensor:
        return torch.stack([x * self.weight for x in inputs])

    def half_detached(self, inputs: Tensor) -> Tensor:
        return inputs * (self.weight / 2 + self.weight.detach() / 2)

    def not_a_number(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight * float("nan")


def steps_of(cell: Halves, *names: str) -> dict[str, measure.TrainingStep]:
    return measure.training_steps(cell, torch.randn(5, 2, 3), {name: getattr(cell, name) for name in names})


def test_peak_is_counted_to_the_byte() -> None:
    def run(inputs: Tensor) -> Tensor:
        a = torch.empty(1000)  # 4,000 bytes in use
        b = torch.empty(2000)  # 12,000, the peak
        del a
        c = torch.empty(500)  # 10,000
        del b, c
        return torch.empty(1, requires_grad=True)

    assert measure.peak_bytes(training_step(run)) == 12_000


def test_peak_is_the_same_every_time() -> None:
    step = steps_of(Halves(), "apart")["apart"]
    assert measure.peak_bytes(step) == measure.peak_bytes(step) > 0


def test_contestants_that_agree_pass() -> None:
    measure.check_agreement(steps_of(Halves(), "together", "apart"))


@pytest.mark.parametrize("wrong", ["half_detached", "not_a_number"])
def test_a_wrong_contestant_is_refused(wrong: str) -> None:
    with pytest.raises(measure.Disagreement, match=wrong):
        measure.check_agreement(steps_of(Halves(), "together", wrong))


def test_agreement_leaves_no_gradient_behind() -> None:
    cell = Halves()
    measure.check_agreement(steps_of(cell, "together", "apart"))
    assert cell.weight.grad is None


def test_contestants_take_turns_in_an_order_that_rotates() -> None:
    order: list[str] = []

    def listed(name: str) -> measure.TrainingStep:
        def run(inputs: Tensor) -> Tensor:
            order.append(name)
            return torch.ones(1, requires_grad=True)

        return training_step(run)

    found = measure.times({"a": listed("a"), "b": listed("b")}, rounds=3, warm_up=1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert [len(times.seconds) for times in found.values()] == [3, 3]


def test_ratio_is_taken_within_rounds() -> None:
    slow, fast = measure.Times((2.0, 20.0, 6.0)), measure.Times((1.0, 10.0, 2.0))
    assert measure.ratio(slow, fast) == measure.Ratio(median=2.0, low=2.0, high=2.5)
    assert measure.ratio(measure.Times((3.0,)), measure.Times((2.0,))) == measure.Ratio(1.5, 1.5, 1.5)
