"""`net(inputs, context=...)`: tensors of the call that every step reads, and gradients reach."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import ENGINES, FASTEST, close, thoroughly


class Attention(lp.Cell):
    """A GRU that reads a mean of the memory, weighted by a network of the state and each of its rows."""

    def __init__(self, inputs=3, source=4, hidden=6):
        super().__init__(h=hidden)
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(source, hidden, bias=False)
        self.score, self.gru = nn.Linear(hidden, 1, bias=False), nn.GRUCell(inputs + source, hidden)

    def forward(self, x, h, memory):
        scores = self.score(torch.tanh(self.query(h).unsqueeze(1) + self.key(memory["rows"]))).squeeze(2)
        weights = torch.softmax(scores.masked_fill(~memory["there"], -torch.inf), 1)
        read = (weights.unsqueeze(1) @ memory["rows"]).squeeze(1)
        h = self.gru(torch.cat([x, read], 1), h)
        return (h, weights), h


def memory_of(batch, size, dtype=torch.float32):
    there = torch.arange(size) < torch.randint(1, size + 1, (batch, 1))
    return {"rows": torch.randn(batch, size, 4, dtype=dtype), "there": there}


X = torch.randn(7, 5, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_and_gradients_are_those_of_the_plain_loop(engine):
    net = lp.Recurrent(Attention(), engine=engine)
    report = lp.check_gradients(net, X, context=memory_of(5, 9))
    assert report.ok, report
    assert "rows" in report.gradients  # gradients reach the context


@pytest.mark.parametrize("arguments", [{"lengths": torch.tensor([7, 3, 1, 5, 2])}, {"resets": torch.rand(7, 5) < 0.3}])
@pytest.mark.parametrize("engine", FASTEST)
def test_rows_that_end_and_begin_again(engine, arguments):
    net = lp.Recurrent(Attention(), engine=engine)
    assert lp.check_gradients(net, X, context=memory_of(5, 4), **arguments).ok


@pytest.mark.parametrize("method", [lp.RTRL(), *thoroughly(lp.Truncated(3), lp.Checkpointed(2))])
def test_every_gradient_method_reads_it(method):
    net = lp.Recurrent(Attention(hidden=3), gradient=method)
    assert lp.check_gradients(net, X, context=memory_of(5, 4)).ok


def test_calls_after_the_first_use_the_tensors_that_they_are_given():
    net, plain = lp.Recurrent(Attention()), lp.Recurrent(Attention(), engine="reference")
    plain.load_state_dict(net.state_dict())
    for batch in (5, 5, 2):
        context = memory_of(batch, 6)
        close(net(X[:, :batch], context=context)[0][0], plain(X[:, :batch], context=context)[0][0], 1e-6)
    state = None
    outputs, _ = net(X[:, :2], context=context)
    for t in range(7):
        output, state = net.step(X[t, :2], state, context=context)
        close(output[0], outputs[0][t], 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_tensor_has_no_batch_axis(engine):
    def attend(x, h, memory):
        h = torch.softmax((x + h) @ memory.T, 1) @ memory
        return h, h

    net = lp.Recurrent(attend, engine=engine)
    report = lp.check_gradients(net, X, torch.zeros(5, 3), context=lp.shared(torch.randn(9, 3)))
    assert report.ok, report
    assert "memory" in report.gradients


@pytest.mark.parametrize("engine", FASTEST)
def test_a_cell_inside_of_others_gets_it(engine):
    cell = lp.Stack(lp.GRU(3, 3), lp.record(Attention(hidden=5), "h"))
    assert lp.check_gradients(lp.Recurrent(cell, engine=engine), X, context=memory_of(5, 4)).ok


def test_both_directions_read_it():
    net = lp.Bidirectional(Attention(), Attention(), batch_first=True)
    context = memory_of(5, 4)
    outputs, _ = net(X.transpose(0, 1), context=context)
    ahead, _ = net.ahead(X, context=context)
    close(outputs[0][..., :6], ahead[0].transpose(0, 1), 1e-6)
    assert "from the end" in net.explain(X.transpose(0, 1), context=context)


class Writer(lp.Cell):
    """Reads a letter and the memory, and gives the logits of the next letter."""

    def __init__(self, letters=7):
        super().__init__(h=6)
        self.embedding, self.attention, self.out = nn.Embedding(letters, 3), Attention(), nn.Linear(6, letters)

    def forward(self, x, h, memory):
        (_, _), h = self.attention(self.embedding(x), h, memory)
        return self.out(h + 0.1 * lp.time()), h


@pytest.mark.parametrize("engine", FASTEST)
def test_generated_tokens_are_those_of_single_steps(engine):
    net, context = lp.Recurrent(Writer(), engine=engine), memory_of(2, 5)
    tokens, after = lp.generate(net, torch.tensor([1, 4]), steps=6, temperature=0, context=context, time=2)
    token, state = torch.tensor([1, 4]), None
    for t in range(6):
        logits, state = net.step(token, state, context=context, time=2 + t)
        token = logits.argmax(1)
        assert torch.equal(tokens[t], token)
    close(after, state, 1e-6)


def test_compiled_by_torch():
    net, context = lp.Recurrent(Attention()), memory_of(5, 4)
    context["rows"].requires_grad_()
    run = torch.compile(lambda x, context: net(x, context=context)[0][0], backend="aot_eager", fullgraph=True)
    outputs = run(X, context)
    close(outputs, net(X, context=context)[0][0], 1e-6)
    gradient = torch.autograd.grad(outputs.square().sum(), context["rows"])[0]
    close(gradient, torch.autograd.grad(net(X, context=context)[0][0].square().sum(), context["rows"])[0], 1e-5)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (None, "the step reads a context, 'memory', and the call has none"),
        ({"rows": torch.zeros(2, 4, 4), "there": torch.ones(5, 4)}, "another batch.*at 'rows'.*lp.shared"),
        ({"rows": 3, "there": None}, "no tensor.*int, at 'rows'"),
        ({"rows": torch.zeros(5, 4, 4, device="meta"), "there": None}, "another device"),
    ],
)
def test_what_is_wrong_with_it_is_said(context, words):
    with pytest.raises(lp.errors.LeporelloError, match=f"(?s){words}"):
        lp.Recurrent(Attention())(X, context=context)


def test_a_step_that_takes_none_is_told_so():
    with pytest.raises(ArgumentError, match=r"(?s)'context' is passed, but the step does not take one.*third argument"):
        lp.Recurrent(lp.GRU(3, 4))(X, context=torch.zeros(5, 4))
    with pytest.raises(ArgumentError, match=r"lp\.shared takes a tensor"):
        lp.shared([1.0])


def test_a_step_that_writes_to_it_is_refused():
    def step(x, h, memory):
        memory.add_(1)
        return x, h

    with pytest.raises(lp.errors.UntraceableStep, match="writes to 'memory', which all steps share"):
        lp.Recurrent(step)(X, torch.zeros(5, 1), context=torch.zeros(5, 3))


@pytest.mark.parametrize("engine", FASTEST)
def test_a_memory_joined_with_the_state(engine):
    """The gradient of the state is a slice that begins behind the memory, wherever that ends."""

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRUCell(7, 4)

        def forward(self, x, h, memory):
            rows = torch.cat([memory, h.unsqueeze(1)], 1)
            weights = torch.einsum("bnd,bd->bn", rows, h).softmax(1)
            h = self.gru(torch.cat([x, torch.einsum("bn,bnd->bd", weights, rows)], 1), h)
            return h, h

    net = lp.Recurrent(Joined(), engine=engine)
    for size in (6, 9, 2):
        report = lp.check_gradients(net, X, torch.randn(5, 4), context=torch.randn(5, size, 4))
        assert report.ok, report
