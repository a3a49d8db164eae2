"""What a call may be: resets, lengths, a state, batches first, states of every form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leporello as lp
from leporello.analysis import fixed_points, gradient_flow, jacobians, reach, terms
from leporello.analysis.step_by_step import StepByStepRun
from tests.analysis.nets import example, normal, sizes, slow_flow


def square(output: Tensor) -> Tensor:
    return output.square().flatten(1).sum(-1)


class Counting(lp.Cell):
    """A matrix, a complex vector and an integer as the state; the integer counts steps and scales."""

    def __init__(self) -> None:
        super().__init__(M=(2, 3), z=2, count=1)
        self.W = nn.Parameter(0.5 * normal(3, 3))
        self.a = nn.Parameter(torch.complex(0.4 * normal(2), 0.5 * normal(2, seed=3)))

    def initial_state(self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
        M, z, _ = super().initial_state(batch, device=device, dtype=torch.float64)
        return (M, z.to(torch.complex128), torch.zeros(batch, 1, dtype=torch.int64))

    def forward(self, x: Tensor, state: Any) -> tuple[Any, Any]:
        M, z, count = state
        M = torch.tanh(M @ self.W + x.unsqueeze(1)) / (1 + count.unsqueeze(-1))
        z = self.a * z + M.sum(-1)
        return {"seen": M, "turned": z.real * z.imag}, (M, z, count + 1)


def turned(output: Any) -> Tensor:
    return output["seen"].square().flatten(1).sum(-1) + output["turned"].sum(-1)


def test_a_state_of_a_matrix_complex_numbers_and_an_integer() -> None:
    net, inputs = lp.Recurrent(Counting()), normal(5, 2, 3)
    flow = gradient_flow(net, inputs, turned)
    assert list(flow.leaves) == ["M", "z"]

    state, outputs, states = net.cell.initial_state(2), [], []
    for x in inputs:
        state = tuple(leaf + torch.zeros_like(leaf, requires_grad=leaf.dtype != torch.int64) for leaf in state)
        states.append(state[:2])
        output, state = net.cell.forward(x, state)
        outputs.append(output)
    for t in range(5):
        for k in range(t + 1):
            gradients = torch.autograd.grad(
                turned(outputs[t]).sum(), states[k], retain_graph=True, materialize_grads=True
            )
            assert abs(flow.norms[t, k] - sizes(gradients).mean()) < 1e-10
            for norms, gradient in zip(flow.leaves.values(), gradients, strict=True):
                assert abs(norms[t, k] - sizes([gradient]).mean()) < 1e-10
    result = jacobians(net, inputs)
    assert result.places == {"M": slice(0, 6), "z": slice(6, 10)}
    assert terms(net, inputs, 5, parameters=["W"]).error < 1e-12
    assert reach(net, inputs).sizes[4, 0] > 0
    assert len(fixed_points(net, normal(1, 3), starts=3)) == 1


def test_no_gradient_crosses_a_reset() -> None:
    net, inputs = example("LSTM"), normal(6, 2, 3)
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    flow = gradient_flow(net, inputs, square, resets=resets)
    assert flow.norms[3:, :4].abs().max() == 0
    torch.testing.assert_close(flow.norms[:3, :3], gradient_flow(net, inputs[:3], square).norms)
    torch.testing.assert_close(flow.norms[4:, 4:], gradient_flow(net, inputs[3:], square).norms[1:, 1:])


def test_rows_that_ended_do_not_count() -> None:
    net, inputs = example("GRU"), normal(5, 2, 3)
    flow = gradient_flow(net, inputs, square, lengths=[5, 3])
    alone = [gradient_flow(net, inputs[:, :1], square).norms, gradient_flow(net, inputs[:3, 1:], square).norms]
    torch.testing.assert_close(flow.norms[:3, :3], (alone[0][:3, :3] + alone[1]) / 2)
    torch.testing.assert_close(flow.norms[3:], alone[0][3:])
    garbage = inputs.clone()
    garbage[3:, 1] = torch.nan
    assert torch.equal(gradient_flow(net, garbage, square, lengths=[5, 3]).norms, flow.norms)


def test_a_state_may_be_handed_in_and_gets_its_gradient() -> None:
    net, inputs = example("GRU"), normal(5, 2, 3)
    _, state = net(inputs)
    flow = gradient_flow(net, inputs, square, state)
    twin, _ = slow_flow(net, torch.cat([inputs, inputs]), square, ())
    torch.testing.assert_close(flow.norms, twin[5:, 5:], rtol=1e-8, atol=1e-10)


def test_batch_first_holds_for_inputs_and_targets() -> None:
    net, inputs, targets = example("RNN"), normal(4, 2, 3), normal(4, 2, 5, seed=5)
    turned_net = lp.Recurrent(net.cell, batch_first=True)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output * target).sum(-1)

    wanted = gradient_flow(net, inputs, loss, targets=targets)
    result = gradient_flow(turned_net, inputs.transpose(0, 1), loss, targets=targets.transpose(0, 1))
    torch.testing.assert_close(result.norms, wanted.norms)
    torch.testing.assert_close(reach(turned_net, inputs.transpose(0, 1)).sizes, reach(net, inputs).sizes)


def test_a_stack_of_cells_is_a_cell() -> None:
    net = lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 2))).double()
    flow = gradient_flow(net, normal(5, 2, 3), square)
    twin, leaves = slow_flow(net, normal(5, 2, 3), square, ())
    torch.testing.assert_close(flow.norms, twin, rtol=1e-8, atol=1e-10)
    assert len(flow.leaves) == len(leaves) == 3


def test_a_net_without_input_has_a_number_of_steps() -> None:
    net = lp.Recurrent(lambda x, h: (h, 0.9 * torch.tanh(h)))
    flow = gradient_flow(net, None, square, normal(2, 3), steps=6)
    assert flow.norms.shape == (6, 6)
    assert 0 < flow.rate < 0.9


def test_random_numbers_are_drawn_once_and_can_be_given() -> None:
    net, inputs = example("ZoneoutLSTM"), normal(5, 2, 3)
    draws = net.draw(inputs)
    first, again = (gradient_flow(net, inputs, square, draws=draws).norms for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(gradient_flow(net, inputs, square).norms, first)


def test_one_row_of_the_steps_is_that_row() -> None:
    steps = StepByStepRun.of(example("ZoneoutLSTM"), normal(4, 3, 3), lengths=[4, 2, 3])
    one = steps.row(1)
    torch.testing.assert_close(one.states, steps.states[:, 1:2])
    for time in range(4):
        for result, whole in zip(one.step(time), steps.step(time), strict=True):
            torch.testing.assert_close(result, whole[1:2])
