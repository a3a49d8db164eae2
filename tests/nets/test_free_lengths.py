"""Contexts of another length in every call: one trace and one kernel serve them all."""

import pytest
import torch
from torch import nn

import leporello as lp
from tests.nets.test_context import Attention, Writer, memory_of
from tests.nets.twins import ENGINES, FASTEST, STEPWISE, close, thoroughly

X = torch.randn(6, 5, 3)


def by_hand(cell, inputs, context):
    h, outputs = cell.initial_state(inputs.shape[1]), []
    for x in inputs:
        output, h = cell(x, h, context)
        outputs.append(output[0] if isinstance(output, tuple) else output)
    return torch.stack(outputs), h


def agree(net, inputs, context, tensors):
    """Outputs, final state and gradients are those of a plain loop."""
    outputs, final = net(inputs, context=context)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    sources = [*tensors, *net.cell.parameters()]
    gradients = torch.autograd.grad(outputs.square().sum() + final.sum(), sources)
    plain, last = by_hand(net.cell, inputs, context)
    close([outputs, final], [plain, last], 1e-5)
    close(gradients, torch.autograd.grad(plain.square().sum() + last.sum(), sources), 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_length_but_the_first_is_traced_or_built_for(engine, made):
    net = lp.Recurrent(Attention(hidden=6), engine=engine)
    for index, size in enumerate((9, 4, 6, 3, 12, 2)):  # 6, 4 and 3 are sizes of parameters, states and inputs too
        context = memory_of(5, size)
        context["rows"].requires_grad_()
        agree(net, X, context, [context["rows"]])
        assert (made == []) == (index > 0), f"{size}: {made}"
        made.clear()


@pytest.mark.parametrize("first", [6, *thoroughly(4, 3)])
def test_a_first_length_that_is_another_size_too_is_free(first, made):
    net = lp.Recurrent(Attention(hidden=6), engine="stepwise")
    net(X, context=memory_of(5, first))
    made.clear()
    context = memory_of(5, 11)
    close(net(X, context=context)[0][0], by_hand(net.cell, X, context)[0], 1e-5)
    assert made == []


class Two(lp.Cell):
    """Reads two memories."""

    def __init__(self):
        super().__init__(h=4)
        self.a, self.b, self.x = nn.Linear(6, 4), nn.Linear(5, 4), nn.Linear(3, 4)

    def forward(self, x, h, context):
        def read(keys):
            weights = torch.softmax((keys @ h.unsqueeze(2)).squeeze(2), 1)
            return (weights.unsqueeze(1) @ keys).squeeze(1)

        h = torch.tanh(self.x(x) + read(self.a(context[0])) + read(self.b(context[1])))
        return h, h


@pytest.mark.parametrize("engine", FASTEST)
def test_lengths_that_were_alike_may_differ(engine, made):
    net = lp.Recurrent(Two(), engine=engine)
    counts = []
    for sizes in ((7, 7), (7, 9), (3, 8), (9, 7)):
        context = tuple(torch.randn(5, n, k, requires_grad=True) for n, k in zip(sizes, (6, 5), strict=True))
        agree(net, X, context, context)
        counts.append(made.count("trace"))
    assert counts == [1, 2, 2, 2]


@pytest.mark.parametrize("engine", FASTEST)
def test_shared_tensors_have_free_lengths_too(engine, made):
    def attend(x, h, memory):
        h = torch.softmax((x + h) @ memory.T, 1) @ memory
        return h, h

    net = lp.Recurrent(attend, engine=engine)
    for index, size in enumerate((9, 4, 3, 17)):
        report = lp.check_gradients(net, X, torch.zeros(5, 3), context=lp.shared(torch.randn(size, 3)))
        assert report.ok, report
        assert index == 0 or made.count("kernel") == 0
        made.clear()


class Heads(lp.Cell):
    """Attention of several heads, by torch's own module."""

    def __init__(self):
        super().__init__(h=8)
        self.attention, self.x = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6), nn.Linear(3, 8)

    def forward(self, x, h, context):
        memory, missing = context
        read, weights = self.attention((h + self.x(x)).unsqueeze(1), memory, memory, key_padding_mask=missing)
        h = torch.tanh(read.squeeze(1) + h)
        return (h, weights.squeeze(1)), h


@pytest.mark.parametrize("engine", FASTEST)
def test_torchs_attention_over_a_memory(engine, made):
    net = lp.Recurrent(Heads(), engine=engine)
    for index, size in enumerate((9, 5)):
        memory = torch.randn(5, size, 6, requires_grad=True)
        missing = torch.arange(size) >= torch.tensor([[size], [1], [2], [4], [3]])
        agree(net, X, (memory, missing), [memory])
        assert (made == []) == (index > 0)
        made.clear()


class Scaled(Attention):
    """Computes with the length as a number that is no size: such a step is traced for every length."""

    def forward(self, x, h, memory):
        (_, weights), h = super().forward(x, h, memory)
        return (h / memory["rows"].shape[1] ** 0.5, weights), h


@pytest.mark.parametrize("engine", STEPWISE)
def test_a_step_that_computes_with_the_length_is_right(engine):
    net = lp.Recurrent(Scaled(), engine=engine)
    for size in (9, 4):
        context = memory_of(5, size)
        close(net(X, context=context)[0][0], by_hand(net.cell, X, context)[0], 1e-5)


@pytest.mark.parametrize("engine", FASTEST)
def test_places_are_counted_from_the_end(engine):
    def step(x, h, memory):
        last = torch.select_scatter(memory, h, 1, -1)
        h = torch.tanh(x + h + memory[:, -1] - memory[:, -2] + last.mean(1))
        return h, h

    net = lp.Recurrent(step, engine=engine)
    for size in (9, 4, 2):
        report = lp.check_gradients(net, X, torch.randn(5, 3), context=torch.randn(5, size, 3))
        assert report.ok, f"{size}: {report}"


@pytest.mark.parametrize("engine", STEPWISE)
def test_half_a_length_is_no_free_size(engine):
    def step(x, h, memory):
        h = torch.tanh(x + h + memory[:, : memory.shape[1] // 2].sum(1))
        return h, h

    net = lp.Recurrent(step, engine=engine)
    for size in (9, 4):
        assert lp.check_gradients(net, X, torch.randn(5, 3), context=torch.randn(5, size, 3)).ok


def test_a_step_that_decides_by_the_length_is_right():
    def step(x, h, memory):
        read = memory.mean(1) if memory.shape[1] > 5 else memory.sum(1)
        h = torch.tanh(x + h + read)
        return h, h

    net = lp.Recurrent(step)
    for size, read in ((9, torch.mean), (4, torch.sum), (7, torch.mean), (3, torch.sum)):
        memory, h = torch.randn(5, size, 3), torch.zeros(5, 3)
        for x in X:
            h = torch.tanh(x + h + read(memory, 1))
        close(net(X, torch.zeros(5, 3), context=memory)[1], h, 1e-5)


@pytest.mark.parametrize("engine", FASTEST)
def test_random_numbers_of_a_free_shape(engine):
    def step(x, h, memory):
        weights = nn.functional.dropout(torch.softmax((memory @ h.unsqueeze(2)).squeeze(2), 1), 0.5)
        h = torch.tanh(x + (weights.unsqueeze(1) @ memory).squeeze(1))
        return h, h

    net = lp.Recurrent(step, engine=engine)
    for size in (9, 4):
        memory = torch.randn(5, size, 3)
        assert [tuple(draw.shape) for draw in net.draw(X, torch.ones(5, 3), context=memory)] == [(6, 5, size)]
        assert lp.check_gradients(net, X, torch.ones(5, 3), context=memory).ok


@pytest.mark.parametrize("engine", FASTEST)
def test_generation_and_single_steps(engine, made):
    net = lp.Recurrent(Writer(), engine=engine)
    for index, size in enumerate((9, 4)):
        context, state, token = memory_of(2, size), None, torch.tensor([1, 4])
        tokens, _ = lp.generate(net, token, steps=4, temperature=0, context=context)
        for t in range(4):
            logits, state = net.step(token, state, context=context, time=t)
            token = logits.argmax(1)
            assert torch.equal(tokens[t], token)
        assert (made == []) == (index > 0)
        made.clear()


@pytest.mark.parametrize("method", [lp.Truncated(2), *thoroughly(lp.Checkpointed(2), lp.RandomTruncated(0.5))])
def test_gradient_methods_that_go_back_in_time(method, made):
    net = lp.Recurrent(Attention(hidden=4), gradient=method, engine="stepwise")
    for index, size in enumerate((9, 4)):
        context = memory_of(5, size)
        context["rows"].requires_grad_()
        net(X, context=context)[0][0].sum().backward()
        assert context["rows"].grad is not None
        assert (made == []) == (index > 0)
        made.clear()


def test_explain_names_the_lengths():
    net = lp.Recurrent(Attention())
    assert "n0" in net.explain(X, context=memory_of(5, 9))
    assert net.explain(X, context=memory_of(5, 4)).count("n0") == net.explain(X, context=memory_of(5, 9)).count("n0")


def test_a_step_in_which_rows_meet_is_traced_for_every_length():
    def step(x, h, memory):
        read = memory.mean(1) * x.shape[0] if x.shape[0] > 2 else memory.sum(1)  # decides by the batch
        h = torch.tanh(x + h + read)
        return h, h

    net = lp.Recurrent(step)
    for size in (9, 4, 9):
        memory, h = torch.randn(5, size, 3), torch.zeros(5, 3)
        for x in X:
            h = torch.tanh(x + h + memory.mean(1) * 5)
        close(net(X, torch.zeros(5, 3), context=memory)[1], h, 1e-5)


def test_a_trace_that_was_forgotten_is_made_for_every_length_again():
    net = lp.Recurrent(Attention(), engine="stepwise")
    for size in (9, 4, 7):
        context = memory_of(5, size)
        close(net(X, context=context)[0][0], by_hand(net.cell, X, context)[0], 1e-5)
        for table in (net._plan_cache.loops, net._plan_cache.plans, net._plan_cache.calls):
            table.clear()
        net._plan_cache.recent = None
        context = memory_of(5, size + 1)
        close(net(X, context=context)[0][0], by_hand(net.cell, X, context)[0], 1e-5)
