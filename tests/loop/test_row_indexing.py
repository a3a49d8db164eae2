"""Indices by the number of the row, and masks: operators that act on rows alone, on every engine."""

import numpy
import pytest
import torch

import leporello as lp
from leporello.errors import UntraceableStep
from tests.nets.twins import FASTEST, close, thoroughly


def arange(x):
    return torch.arange(x.shape[0])


def one_place(x, h):
    return h[arange(x), h.abs().argmax(1)].unsqueeze(1) + x, h


def from_the_end(x, h):
    return h[arange(x), -1 - h.abs().argmax(1)].unsqueeze(1) + x, h


def two_axes(x, h):
    m = h.view(-1, 2, 3)
    return m[arange(x), (x[:, 0] > 0).long(), x.abs()[:, :3].argmax(1)].unsqueeze(1) + x, h


def whole_vectors(x, h):
    m = h.view(-1, 3, 2)
    return m[arange(x), (x[:, 0] > 0).long()].repeat(1, 3) + x, h


def several_places(x, h):
    return h[arange(x)[:, None], h.argsort(1)[:, :2]].repeat(1, 3), h


def written(x, h):
    h = h.clone()
    h[arange(x), h.argmax(1)] = x[:, 0]
    return h, h


def added(x, h):
    h = h.clone()
    h.index_put_((arange(x), h.argmax(1)), x[:, 0], accumulate=True)
    return h, h


def vectors_written(x, h):
    m = h.view(-1, 3, 2).clone()
    m[arange(x), (x[:, 0] > 0).long()] = x[:, :2]
    return m.flatten(1), m.flatten(1)


def several_vectors_written(x, h):
    m, rows, places = h.view(-1, 3, 2).clone(), arange(x)[:, None], h[:, :3].topk(2, 1).indices
    m[rows, places] = x[:, None, :2]
    m[rows, places, :1] *= 0.5
    return m.flatten(1), m.flatten(1)


def masked(x, h):
    h = h.clone()
    h[h > x] = 0.25
    return h, h


def rows_masked(x, h):
    h = h.clone()
    h[x[:, 0] > 0] = 0
    return h, h


def masked_by_a_tensor(x, h):
    h = h.clone()
    h[h < 0] = torch.full((1,), 0.5, dtype=h.dtype)
    return h, h


def chosen_marked(x, h):
    mask = torch.zeros_like(h)
    mask[arange(x).unsqueeze(1), h.topk(2, 1).indices] = 1
    return mask * h, h


def chosen_marked_in_one_axis(x, h):
    mask = torch.zeros_like(h)
    mask[arange(x).unsqueeze(1).repeat(1, 2).view(-1), h.topk(2, 1).indices.view(-1)] = 1
    return mask * h, h


def chosen_marked_by_expanded_rows(x, h):
    mask = torch.zeros_like(h)
    mask[arange(x).unsqueeze(1).expand(-1, 2).reshape(-1), h.topk(2, 1).indices.reshape(-1)] = 1
    return mask * h, h


def read_in_one_axis(x, h):
    return h[arange(x).repeat_interleave(2), h.topk(2, 1).indices.reshape(-1)].view(-1, 2), h


def rows_replaced_by_a_vector(x, h):
    h = h.clone()
    h[x[:, 0] > 0] = torch.linspace(0, 1, 6, dtype=h.dtype)
    return h, h


def features_masked(x, h):
    h = h.clone()
    h[:, torch.tensor([True, False, True, True, False, False])] = 0.5
    return h, h


def masks_of_numpy(x, h):
    mask = numpy.array([True, False, True, True, False, False])
    return h[:, mask] + h[:, [True, False, True, True, False, False]], h


STEPS = [
    one_place,
    from_the_end,
    two_axes,
    whole_vectors,
    several_places,
    written,
    added,
    vectors_written,
    several_vectors_written,
    masked,
    rows_masked,
    masked_by_a_tensor,
    chosen_marked_in_one_axis,
    rows_replaced_by_a_vector,
    masks_of_numpy,
    chosen_marked_by_expanded_rows,
    *thoroughly(chosen_marked, read_in_one_axis, features_masked),
]


@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("index", STEPS, ids=lambda step: step.__name__)
def test_each_row_reads_and_writes_its_own_place(index, engine):
    def step(x, h):
        output, h = index(x, torch.tanh(h + 0.5 * x))
        return output, h

    torch.manual_seed(1)
    inputs = torch.randn(4, 3, 6, dtype=torch.float64)
    net = lp.Recurrent(step, engine=engine)
    h = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    outputs, _ = net(inputs, h)
    state, plain = h, []
    for x in inputs:
        output, state = step(x, state)
        plain.append(output)
    close(outputs, torch.stack(plain))
    close(torch.autograd.grad(outputs.square().sum(), h), torch.autograd.grad(torch.stack(plain).square().sum(), h))


def test_as_many_values_as_a_mask_holds_are_refused_at_their_line():
    def step(x, h):
        h = h.clone()
        h[x[:, 0] > 0] = x
        return h, h

    with pytest.raises(UntraceableStep, match=r"cell +step[\s\S]*= x\n[\s\S]*torch.where\(mask.unsqueeze"):
        lp.Recurrent(step)(torch.randn(4, 3, 6), torch.zeros(3, 6))
