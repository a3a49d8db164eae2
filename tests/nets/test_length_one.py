"""A context of length 1: the trace and the kernels of other lengths serve it, but for steps that differ there."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.test_context import Attention, Writer, memory_of
from tests.nets.test_free_lengths import Heads, Two, agree
from tests.nets.twins import ENGINES, FASTEST, close, thoroughly

X = torch.randn(6, 5, 3)
ORDERS = [(7, 1, 2), (1, 7, 2, 1)]


class Scalar(Attention):
    """The same decoder with dot products."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        del self.score

    def forward(self, x, h, memory):
        keys = self.key(memory["rows"])
        scores = (keys @ self.query(h).unsqueeze(2)).squeeze(2) / h.shape[1] ** 0.5
        weights = torch.softmax(scores.masked_fill(~memory["there"], -torch.inf), 1)
        read = (weights.unsqueeze(1) @ memory["rows"]).squeeze(1)
        h = self.gru(torch.cat([x, read], 1), h)
        return (h, weights), h


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cell", [Attention, Scalar])
def test_attention_is_traced_and_built_once_for_all_lengths(cell, engine, order, made):
    net = lp.Recurrent(cell(hidden=6), engine=engine)
    for index, size in enumerate(order):
        context = memory_of(5, size)
        context["rows"].requires_grad_()
        agree(net, X, context, [context["rows"]])
        assert (made == []) == (index > 0), f"{size}: {made}"
        made.clear()


@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("cell", [Attention, *thoroughly(Scalar)])
def test_it_is_what_the_plain_loop_computes(cell, engine):
    net = lp.Recurrent(cell(hidden=6), engine=engine)
    for size in (7, 1, 2):
        for arguments in ({}, {"lengths": torch.tensor([6, 3, 1, 5, 2])}, {"resets": torch.rand(6, 5) < 0.3}):
            report = lp.check_gradients(net, X, context=memory_of(5, size), **arguments)
            assert report.ok, f"{size}: {report}"


@pytest.mark.parametrize("order", [ORDERS[0], *thoroughly(ORDERS[1])])
@pytest.mark.parametrize("engine", FASTEST)
def test_torchs_attention_is_traced_once(engine, order, made):
    net = lp.Recurrent(Heads(), engine=engine)
    for index, size in enumerate(order):
        memory = torch.randn(5, size, 6, requires_grad=True)
        agree(net, X, (memory, torch.zeros(5, size, dtype=torch.bool)), [memory])
        assert (made == []) == (index > 0)
        made.clear()


def test_each_of_two_lengths_may_be_one(made):
    net = lp.Recurrent(Two(), engine="stepwise")
    for sizes in ((7, 9), (7, 1), (1, 4), (1, 1)):
        context = tuple(torch.randn(5, n, k, requires_grad=True) for n, k in zip(sizes, (6, 5), strict=True))
        agree(net, X, context, context)
    assert made == ["trace"]


@pytest.mark.parametrize("engine", FASTEST)
def test_generation_and_single_steps(engine, made):
    net = lp.Recurrent(Writer(), engine=engine)
    for index, size in enumerate((9, 1)):
        context, state, token = memory_of(2, size), None, torch.tensor([1, 4])
        tokens, _ = lp.generate(net, token, steps=4, temperature=0, context=context)
        for t in range(4):
            logits, state = net.step(token, state, context=context, time=t)
            token = logits.argmax(1)
            assert torch.equal(tokens[t], token)
        assert (made == []) == (index > 0)
        made.clear()


def written(memory):
    """Two names of the same memory at length 1 alone: `reshape` copies what does not lie in order."""
    turned = (memory * 2).transpose(1, 2)
    turned.reshape(turned.shape[0], -1).mul_(3)
    return turned.sum(2)


def normed(memory):
    """torch refuses a single place."""
    return memory[:, 0] if memory.shape[1] == 1 else nn.functional.instance_norm(memory.transpose(1, 2)).amax(2)


def masked(memory):
    scores = memory.sum(2)
    scores.masked_fill_(memory[:, :, 0] > 0, 0.3)
    return (scores.softmax(1).unsqueeze(1) @ memory).squeeze(1)


READS = {  # what a step reads of its memory, and whether one trace serves a length of 1 too
    "mean": (lambda memory: memory.mean(1), True),
    "last": (lambda memory: memory[:, -1] - memory[:, 0] / 2, True),
    "broadcast": (lambda memory: (memory.unsqueeze(1) * memory.unsqueeze(2)).mean((1, 2)), True),
    "masked": (masked, True),
    "numbers": (lambda memory: memory.mean(1) * torch.tensor([0.5, 1.0, 2.0]), True),
    "decides": (lambda memory: memory.sum(1) if memory.shape[1] == 1 else memory.mean(1) * 2, False),
    "most": (lambda memory: memory.sum(1) * (2 if memory.shape[1] > 1 else 3), False),
    "squeezed": (lambda memory: memory.squeeze(1).flatten(1)[:, :3], False),
    "axes": (lambda memory: memory.sum(1) * memory.squeeze(1).dim(), False),
    "axes of all": (lambda memory: memory.sum(1) * memory.squeeze().dim(), False),
    "size of a part": (lambda memory: memory.sum(1) * memory[:, :2].shape[1], False),
    "second": (lambda memory: memory[:, 1] if memory.shape[1] > 1 else memory[:, 0], False),
    "written": (written, False),
    "first two": (lambda memory: memory[:, :2].sum(1), False),
    "last two": (lambda memory: memory[:, -2:].sum(1), False),
    "the rest": (lambda memory: memory[:, 1:].sum(1), False),
    "half": (lambda memory: memory[:, : memory.shape[1] // 2 + 1].sum(1), False),
    "normed": (normed, False),
}


@pytest.mark.parametrize("order", [(7, 1, 4), *thoroughly((1, 4, 7, 1))])
@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("name", READS)
def test_a_step_is_traced_for_one_place_where_it_differs_there(name, engine, order, made):
    read, together = READS[name]

    def step(x, h, memory):
        h = torch.tanh(x + h + read(memory))
        return h, h

    net = lp.Recurrent(step, engine=engine)
    for size in order:
        memory = torch.randn(5, size, 3, requires_grad=True)
        begin, outputs = torch.zeros(5, 3), []
        h = begin
        for x in X:
            output, h = step(x, h, memory)
            outputs.append(output)
        plain, (found, final) = torch.stack(outputs), net(X, begin, context=memory)
        close([found, final], [plain, h], 1e-5)
        gradient, expected = (torch.autograd.grad(value.square().sum(), memory) for value in (found, plain))
        close(gradient, expected, 1e-4)
    assert made.count("trace") == 1 or not together


def test_what_torch_refuses_at_one_place_is_refused():
    def step(x, h, memory):
        h = torch.tanh(x + h + nn.functional.instance_norm(memory.transpose(1, 2)).mean(2))
        return h, h

    net = lp.Recurrent(step)
    net(X, torch.zeros(5, 3), context=torch.randn(5, 7, 3))
    with pytest.raises(ArgumentError, match="spatial element"):
        net(X, torch.zeros(5, 3), context=torch.randn(5, 1, 3))


def test_other_lengths_stay_free_where_one_place_has_its_own_trace(made):
    def step(x, h, context):
        one, other = context
        h = torch.tanh(x + h + (one.sum(1) if one.shape[1] == 1 else one.mean(1) * 2) + other.mean(1))
        return h, h

    net = lp.Recurrent(step, engine="stepwise")
    for sizes in ((7, 9), (1, 9), (1, 6), (1, 4), (7, 5)):
        context = tuple(torch.randn(5, size, 3) for size in sizes)
        h = torch.zeros(5, 3)
        for x in X:
            _, h = step(x, h, context)
        close(net(X, torch.zeros(5, 3), context=context)[1], h, 1e-5)
    assert made == ["trace", "trace"]


def test_an_axis_that_broadcasts_leaves_the_others_free(made):
    def step(x, h, context):
        memory, gate = context
        h = torch.tanh(x + h + (memory * gate).mean(1))
        return h, h

    net = lp.Recurrent(step, engine="stepwise")
    for size in (7, 4, 1, 9):
        context = torch.randn(5, size, 3), torch.randn(5, 1, 3)
        h = torch.zeros(5, 3)
        for x in X:
            _, h = step(x, h, context)
        close(net(X, torch.zeros(5, 3), context=context)[1], h, 1e-5)
    assert made == ["trace"]
