"""`first_not_finite`: the operator, step and row that a value that is not finite came from."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError
from leporello.nets.non_finite import Origin, first_not_finite
from leporello.nets.non_finite.forward import BLOCK_STEPS
from tests.cells.examples import EXAMPLES


def squared(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


class Growing(lp.Cell):
    """a = exp(w h + x);  h' = a / (1 + a), unless a is infinite."""

    def __init__(self) -> None:
        super().__init__(h=2)
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.exp(self.w * h + x)
        return a, a / (1 + a)


def inputs_of(length: int = 12, batch: int = 4) -> Tensor:
    return torch.randn(length, batch, 2)


def test_an_overflowing_exp_is_named_with_its_step_and_row() -> None:
    inputs = inputs_of()
    inputs[7, 2, 1] = 1000.0
    found = first_not_finite(lp.Recurrent(Growing()), inputs, loss=squared)
    assert found is not None
    assert (found.where, found.operator, found.name, found.step, found.row, found.kind) == (
        "forward",
        "exp",
        "a",
        7,
        2,
        "inf",
    )
    assert str(found) == "exp gives inf, in a, at step 7 of row 2"
    assert found.line is not None
    assert found.line.startswith("test_non_finite.py, line ")
    assert found.line.endswith("a = torch.exp(self.w * h + x)")


def test_a_call_of_finite_values_has_no_origin() -> None:
    net = lp.Recurrent(lp.LSTM(2, 3))
    assert first_not_finite(net, inputs_of(), loss=squared) is None


@pytest.mark.parametrize("length", [BLOCK_STEPS - 1, BLOCK_STEPS, BLOCK_STEPS + 1, 2 * BLOCK_STEPS + 3])
def test_steps_behind_the_first_block_are_found_too(length: int) -> None:
    inputs = inputs_of(length, 1)
    inputs[-1] = 1000.0
    found = first_not_finite(lp.Recurrent(Growing()), inputs, loss=squared)
    assert found is not None
    assert (found.operator, found.step, found.row) == ("exp", length - 1, 0)


def test_the_logarithm_of_zero_is_named() -> None:
    net = lp.Recurrent(lambda x, h: (torch.log(h), h * x))
    inputs = torch.ones(6, 3, 1)
    inputs[4, 1] = 0.0
    found = first_not_finite(net, inputs, torch.ones(3, 1), loss=squared)
    assert found is not None
    assert (found.operator, found.step, found.row, found.kind) == ("log", 5, 1, "-inf")


def test_a_parameter_that_holds_nan_is_named_as_such() -> None:
    net = lp.Recurrent(lp.Feedback(lp.LSTM(2 + 3, 3)))
    with torch.no_grad():
        net.cell.cell.W[1, 2] = torch.nan
    found = first_not_finite(net, inputs_of(), loss=squared)
    assert found == Origin("parameter", "nan", name="cell.W")
    assert str(found) == "the parameter cell.W holds nan already"


def test_an_input_is_named_with_its_step_and_row() -> None:
    inputs = inputs_of()
    inputs[3, 1, 0] = -torch.inf
    found = first_not_finite(lp.Recurrent(lp.GRU(2, 3)), inputs, loss=squared)
    assert str(found) == "the input x holds -inf already, at step 3 of row 1"


def test_a_starting_state_is_named_with_its_row() -> None:
    state = torch.zeros(4, 3)
    state[3, 0] = torch.nan
    found = first_not_finite(lp.Recurrent(lp.GRU(2, 3)), inputs_of(), state, loss=squared)
    assert str(found) == "the state h holds nan before the first step, in row 3"


def test_targets_that_are_fed_back_are_named() -> None:
    targets = torch.zeros(5, 2, 1)
    targets[2, 1] = torch.nan
    found = first_not_finite(
        lp.Recurrent(lp.Jordan(2, 3, 1)), inputs_of(5, 2), targets=targets, forcing=1, loss=nn.functional.mse_loss
    )
    assert str(found) == "the input targets holds nan already, at step 2 of row 1"


def test_a_root_of_zero_has_an_infinite_gradient() -> None:
    class Root(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=1)
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            root = torch.sqrt(x * self.w)
            return root + h, h

    inputs = torch.ones(6, 3, 1)
    inputs[4, 1] = 0.0
    found = first_not_finite(lp.Recurrent(Root()), inputs, loss=lambda outputs: outputs.sum())
    assert found is not None
    assert (found.where, found.operator, found.name, found.step, found.row, found.kind) == (
        "backward",
        "sqrt",
        "root",
        4,
        1,
        "inf",
    )
    assert str(found) == "the gradient of sqrt is inf, in root, at step 4 of row 1"
    assert found.line is not None
    assert "torch.sqrt" in found.line


class Exploding(lp.Cell):
    """The value stays what it was, a gradient is multiplied by ten at every step."""

    def __init__(self) -> None:
        super().__init__(h=1)
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        grown = 10 * h
        h = self.w * (grown - (9 * h).detach()) + 0 * x
        return h, h


@pytest.mark.parametrize("length", [50, 3 * BLOCK_STEPS])
def test_a_gradient_that_explodes_while_values_stay_is_found(length: int) -> None:
    net = lp.Recurrent(Exploding())
    state = torch.ones(2, 1)
    outputs, _ = net(torch.zeros(length, 2, 1), state)
    outputs[-1].sum().backward()
    assert outputs.isfinite().all()
    assert not net.cell.w.grad.isfinite().all()
    found = first_not_finite(net, torch.zeros(length, 2, 1), state, loss=lambda outputs: outputs[-1].sum())
    assert found is not None
    assert (found.where, found.operator, found.row) == ("backward", "mul", 0)
    assert found.step == length - 39  # 10^38 fits into float32, 10^39 does not


def test_windows_of_truncation_keep_the_gradient_finite() -> None:
    net = lp.Recurrent(Exploding(), gradient=lp.Truncated(20))
    inputs, state = torch.zeros(70, 1, 1), torch.ones(1, 1)
    assert first_not_finite(net, inputs, state, loss=squared) is None
    net.gradient = lp.Full()
    assert first_not_finite(net, inputs, state, loss=squared) is not None


def test_clipping_the_state_s_gradient_keeps_it_finite() -> None:
    net = lp.Recurrent(Exploding(), gradient=lp.Full(clip_state=1.0))
    assert first_not_finite(net, torch.zeros(70, 1, 1), torch.ones(1, 1), loss=squared) is None


def test_a_sum_of_gradients_over_steps_may_be_infinite_where_none_of_them_is() -> None:
    class Plain(lp.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor, state: tuple) -> tuple[Tensor, tuple]:
            return x * self.w, state

    inputs = torch.full((4, 1, 1), 1.5e38)
    found = first_not_finite(lp.Recurrent(Plain()), inputs, loss=lambda outputs: outputs.sum())
    assert found is not None
    assert (found.where, found.operator, found.name, found.step) == ("backward", "the sum over steps", "w", 1)


def test_an_operator_of_the_loss_is_named() -> None:
    net = lp.Recurrent(lambda x, h: (x, h))
    inputs = torch.ones(4, 3, 1)
    inputs[2, 1] = 0.0
    found = first_not_finite(net, inputs, torch.zeros(3, 1), loss=lambda outputs: outputs.log().mean())
    assert str(found) == "log gives -inf in the loss, at step 2 of row 1"


def test_an_operator_whose_gradient_is_infinite_in_the_loss_is_named() -> None:
    net = lp.Recurrent(lambda x, h: (x, h))
    inputs = torch.ones(4, 3, 1)
    inputs[2, 1] = 0.0
    found = first_not_finite(net, inputs, torch.zeros(3, 1), loss=lambda outputs: outputs.sqrt().mean())
    assert str(found) == "the gradient of sqrt gives inf in the loss, at step 2 of row 1"


def test_infinity_that_a_step_writes_itself_is_meant() -> None:
    class Masked(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            scores = (h + x).masked_fill(x > 1, -torch.inf) + self.mask
            shares = torch.softmax(scores, -1)
            return scores, shares

    def seen(outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, -1).square().sum()

    net, inputs = lp.Recurrent(Masked()), torch.zeros(8, 2, 3)
    assert first_not_finite(net, inputs, loss=seen) is None
    inputs[5, 1] = 2.0  # all masked: softmax of nothing
    found = first_not_finite(net, inputs, loss=seen)
    assert found is not None
    assert (found.operator, found.step, found.row, found.kind) == ("softmax", 5, 1, "nan")


def test_a_state_that_begins_infinite_is_meant() -> None:
    class Highest(lp.Cell):
        def __init__(self) -> None:
            super().__init__(m=1)

        def forward(self, x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
            m = torch.maximum(m, x)
            return m, m

        def initial_state(self, batch: int, *, device: Any = None, dtype: Any = None) -> Tensor:
            return torch.full((batch, 1), -torch.inf, device=device, dtype=dtype)

    assert first_not_finite(lp.Recurrent(Highest()), torch.zeros(5, 2, 1)) is None


def test_what_happens_past_a_row_s_end_does_not_count() -> None:
    net, inputs = lp.Recurrent(Growing()), inputs_of()
    inputs[7, 2] = torch.nan
    inputs[9, 1] = 1000.0
    found = first_not_finite(net, inputs, lengths=[12, 12, 7, 12], loss=squared)
    assert found is not None
    assert (found.operator, found.step, found.row) == ("exp", 9, 1)
    assert first_not_finite(net, inputs, lengths=[12, 9, 7, 12], loss=squared) is None


def test_batch_first_counts_steps_and_rows_alike() -> None:
    inputs = inputs_of()
    inputs[7, 2] = 1000.0
    net = lp.Recurrent(Growing(), batch_first=True)
    found = first_not_finite(net, inputs.transpose(0, 1), loss=squared)
    assert found is not None
    assert (found.step, found.row) == (7, 2)


def test_rows_that_meet_are_looked_through_too() -> None:
    net = lp.Recurrent(lambda x, h: (h, torch.exp(x - x.mean(0))))
    inputs = torch.zeros(5, 3, 1)
    inputs[2, 1] = 1000.0
    found = first_not_finite(net, inputs, torch.zeros(3, 1))
    assert found is not None
    assert (found.operator, found.step, found.row) == ("exp", 2, 1)


def test_a_language_model_s_logits_are_looked_through() -> None:
    class Predictor(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=4)
            self.embed, self.inside, self.head = nn.Embedding(5, 3), lp.GRU(3, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            output, h = self.inside(self.embed(x), h)
            return self.head(output), h

    def entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    net, tokens = lp.Recurrent(Predictor()), torch.randint(4, (9, 2))
    targets = torch.randint(5, (9, 2))
    assert first_not_finite(net, tokens, loss=entropy, targets=targets) is None
    with torch.no_grad():
        net.cell.embed.weight[4] = 3e38
    tokens[6, 1] = 4
    with torch.no_grad():
        net.cell.head.weight.fill_(3e38)
    found = first_not_finite(net, tokens, loss=entropy, targets=targets)
    assert found is not None
    assert (found.where, found.operator) == ("forward", "matmul")


@pytest.mark.parametrize("name", ["LayerNormLSTM", "LSTM with projection", "IndRNN", "Leaky learned", "TimeDelay"])
@pytest.mark.parametrize("scale", [1, 1e30])
def test_something_is_found_just_where_autograd_gives_something(name: str, scale: float) -> None:
    cell = EXAMPLES[name]().eval()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.mul_(scale)
    net, inputs = lp.Recurrent(cell, engine="reference"), torch.randn(BLOCK_STEPS + 3, 2, 3)
    loss = squared(net(inputs)[0])
    loss.backward()
    gradients = [parameter.grad for parameter in cell.parameters() if parameter.grad is not None]
    wrong = not all(value.isfinite().all() for value in (loss, *gradients))
    assert (first_not_finite(net, inputs, loss=squared) is not None) == wrong


def test_draws_may_be_given_so_that_the_same_call_is_looked_through() -> None:
    class Noisy(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=1)

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return torch.log((torch.rand_like(x) > 0.5) + 0 * x), h

    net, inputs = lp.Recurrent(Noisy()), torch.zeros(3, 1, 1)
    draws = [torch.tensor([0.9, 0.9, 0.1]).reshape(3, 1, 1)]
    found = first_not_finite(net, inputs, draws=draws)
    assert found is not None
    assert (found.operator, found.step) == ("log", 2)
    assert first_not_finite(net, inputs, draws=[torch.ones(3, 1, 1)]) is None


def test_thousands_of_steps_take_little_time() -> None:
    net, inputs = lp.Recurrent(Growing()), inputs_of(3000, 2)
    first_not_finite(net, inputs[:3], loss=squared)
    inputs[2900, 1] = 1000.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    begun = time.perf_counter()
    found = first_not_finite(net, inputs, loss=squared)
    taken = time.perf_counter() - begun
    torch.set_num_threads(threads)
    assert found is not None
    assert (found.step, found.row) == (2900, 1)
    assert taken < 3  # a tenth of that where nothing else runs


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no network to look through"):
        first_not_finite(lp.LSTM(2, 3), inputs_of())  # type: ignore[arg-type]


def test_a_loss_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'loss' gives no tensor"):
        first_not_finite(
            lp.Recurrent(lambda x, h: (x, h)), inputs_of(3, 1), torch.zeros(1, 2), loss=lambda outputs: 0.5
        )  # type: ignore[arg-type,return-value]
