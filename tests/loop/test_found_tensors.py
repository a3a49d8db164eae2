"""Tensors that a step reads and the cell does not register: found by identity, read anew at each call."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import leporello as lp
from tests.nets.twins import FASTEST, close

X, H = torch.randn(5, 2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)


class Scaled(nn.Module):
    """The plain attribute `scale` is read, `unread` is not."""

    def __init__(self):
        super().__init__()
        self.W = nn.Linear(3, 3).double()
        self.scale = torch.rand(3, dtype=torch.float64)
        self.unread = torch.rand(7)

    def forward(self, x, h):
        h = torch.tanh(x + self.W(h) * self.scale)
        return h, h


def plain_loop(cell, inputs, state):
    outputs = []
    for x in inputs:
        output, state = cell(x, state)
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.parametrize("engine", FASTEST)
def test_each_call_reads_the_tensor_that_is_there(engine):
    net = lp.Recurrent(Scaled(), engine=engine)
    for _ in range(3):
        net.cell.scale = torch.rand(3, dtype=torch.float64)
        close(net(X, H)[0], plain_loop(net.cell, X, H))
        net.cell.scale.mul_(2)
        close(net(X, H)[0], plain_loop(net.cell, X, H))
    assert len(net._plan_cache.loops) == 1  # and none is traced anew


def test_a_tensor_of_another_shape_is_traced_anew():
    net = lp.Recurrent(Scaled())
    net(X, H)
    net.cell.scale = torch.rand(1, dtype=torch.float64)
    close(net(X, H)[0], plain_loop(net.cell, X, H))


def test_a_tensor_in_an_object_that_changes_its_shape_is_traced_anew():
    held = SimpleNamespace(scale=torch.rand(3, dtype=torch.float64))

    def step(x, h):
        h = 0.5 * h + x * held.scale
        return h, h

    net = lp.Recurrent(step)
    close(net(X, H)[0], plain_loop(step, X, H))
    held.scale = torch.rand(1, dtype=torch.float64)
    close(net(X, H)[0], plain_loop(step, X, H))
    held.scale = torch.rand(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(net(X, H)[0].sum(), held.scale)[0].shape == (3,)


def test_one_tensor_in_two_places_is_traced_anew_when_they_part():
    cell = Scaled()
    cell.both = [cell.scale, cell.scale]
    cell.forward = lambda x, h: (h * cell.both[0] + x * cell.both[1], 0.5 * h + x)
    net = lp.Recurrent(cell)
    close(net(X, H)[0], plain_loop(cell, X, H))
    cell.both[1] = torch.rand(3, dtype=torch.float64)
    close(net(X, H)[0], plain_loop(cell, X, H))


def test_a_tensor_that_is_not_read_is_no_business_of_ours():
    cell = Scaled()
    net = lp.Recurrent(cell)
    net(X, H)
    cell.unread = torch.rand(7)
    net(X, H)
    assert [port.name for port in lp.fold(cell, X[0], H).inputs if port.kind == "invariant"] == [
        "W.weight",
        "W.bias",
        "scale",
    ]
    assert len(net._plan_cache.loops) == 1


def test_parameters_elsewhere_get_gradients():
    cell = Scaled()
    del cell.scale
    parts = {"scale": nn.Parameter(torch.rand(3, dtype=torch.float64))}
    cell.scale = parts["scale"].detach()
    cell.parts = parts
    cell.forward = lambda x, h: 2 * (torch.tanh(x + cell.W(h) * cell.parts["scale"]),)
    outputs, _ = lp.Recurrent(cell)(X, H)
    expected = plain_loop(cell, X, H)
    of = [*cell.parameters(), parts["scale"]]
    close(torch.autograd.grad(outputs.sum(), of), torch.autograd.grad(expected.sum(), of))


def test_a_write_to_such_a_tensor_is_refused_by_name():
    cell = Scaled()

    def forward(x, h):
        cell.scale.mul_(0.9)
        return h * cell.scale, h

    cell.forward = forward
    before = cell.scale.clone()
    with pytest.raises(lp.errors.UntraceableStep, match="the step writes to 'scale', which all steps share"):
        lp.Recurrent(cell)(X, H)
    assert torch.equal(cell.scale, before)


def test_check_gradients_compares_their_gradients_too():
    cell = Scaled().float()
    cell.scale = torch.rand(3, requires_grad=True)
    report = lp.check_gradients(lp.Recurrent(cell), X.float(), H.float())
    assert report.ok
    assert "scale" in report.gradients


SCALES = [torch.rand(3, dtype=torch.float64) for _ in range(2)]


def test_a_global_that_a_comprehension_reads_is_found():
    def step(x, h):
        h = 0.5 * h + sum(x * SCALES[index] for index in range(2))
        return h, h

    close(lp.Recurrent(step)(X, H)[0], plain_loop(step, X, H))
