"""`lp.Recurrent(cell, batch_axis=...)`: states whose batch is not their first axis."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, MissingState, StateMismatch
from tests.nets.twins import ENGINES, FASTEST, close

X = torch.randn(7, 5, 3)


class Decoder(nn.Module):
    """One step of torch's own GRU, whose state is (layers, batch, hidden)."""

    def __init__(self, layers=2):
        super().__init__()
        self.gru = nn.GRU(3, 4, num_layers=layers)

    def forward(self, x, h):
        y, h = self.gru(x.unsqueeze(0), h)
        return y.squeeze(0), h


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_of_torchs_gru_gives_what_the_whole_gru_gives(engine):
    net = lp.Recurrent(Decoder(), batch_axis=1, engine=engine)
    for batch in (5, 5, 2):
        state = torch.randn(2, batch, 4)
        outputs, final = net.cell.cell.gru(X[:, :batch], state)
        close(net(X[:, :batch], state), (outputs, final), 1e-5)
    for x in X:
        output, state = net.step(x[:2], state)
    close((output, state), (outputs[-1], final), 1e-5)
    report = lp.check_gradients(net, X, torch.randn(2, 5, 4))
    assert report.ok, report


@pytest.mark.parametrize("engine", FASTEST)
def test_a_step_of_torchs_lstm_has_a_pair_of_states(engine):
    lstm = nn.LSTM(3, 4, num_layers=2)

    def step(x, state):
        y, state = lstm(x.unsqueeze(0), state)
        return y.squeeze(), state  # the batch stays, where it is 1 too

    net = lp.Recurrent(step, batch_axis=1, engine=engine)
    for batch in (5, 1):
        state = torch.randn(2, batch, 4), torch.randn(2, batch, 4)
        close(net(X[:, :batch], state), lstm(X[:, :batch], state), 1e-5)
    assert "state0" in net.explain(X[:, :1], state)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(nn.LSTM, {"bidirectional": True, "proj_size": 2}, marks=pytest.mark.slow),
        (nn.GRU, {"batch_first": True}),
    ],
)
def test_dropout_between_the_layers_of_torchs_modules_is_drawn_at_every_step(kind, options):
    inner = kind(3, 4, num_layers=3, dropout=0.5, **options)
    axis = 1 if inner.batch_first else 0

    def step(x, state):
        y, state = inner(x.unsqueeze(axis), state)
        return y.squeeze(axis), state

    net = lp.Recurrent(step, batch_axis=1)
    state = (torch.randn(6, 5, 2), torch.randn(6, 5, 4)) if kind is nn.LSTM else torch.randn(3, 5, 4)
    assert [draw.shape for draw in net.draw(X, state)] == [(7, 5, 1, 4), (7, 5, 1, 4)]
    report = lp.check_gradients(net, X, state)
    assert report.ok, report
    inner.eval()
    assert not net.draw(X, state)


class Two(lp.Cell):
    """One leaf as (batch, n), another as (n, batch)."""

    def __init__(self):
        super().__init__(h=3, c=4)
        self.W = nn.Linear(3, 4)

    def forward(self, x, state):
        c = torch.tanh(self.W(state.h + x).T + state.c)
        return c.T, (state.h * 0.5 + x, c)


@pytest.mark.parametrize("axes", [{"c": 1}, (0, 1)])
@pytest.mark.parametrize("engine", FASTEST)
def test_each_leaf_has_its_own(engine, axes):
    net = lp.Recurrent(Two(), batch_axis=axes, engine=engine)
    outputs, final = net(X)
    assert (final.h.shape, final.c.shape) == ((5, 3), (4, 5))
    close(net(X[3:], net(X[:3])[1])[0], outputs[3:], 1e-6)
    assert lp.check_gradients(net, X, resets=torch.rand(7, 5) < 0.3).ok
    assert net.initial_state(6).c.shape == (4, 6)


def test_another_number_of_layers_is_another_state():
    net = lp.Recurrent(Decoder(), batch_axis=1)
    net(X, torch.zeros(2, 5, 4))
    with pytest.raises(ArgumentError, match="the step fails"):
        net(X, torch.zeros(3, 5, 4))


def test_what_is_wrong_is_said():
    state = torch.zeros(2, 5, 4)
    with pytest.raises(StateMismatch, match=r"another batch[\s\S]*batch_axis=\{'h': 1\}"):
        lp.Recurrent(Decoder())(X, state)
    with pytest.raises(MissingState, match="declares no initial state"):
        lp.Recurrent(Decoder(), batch_axis=1)(X)
    with pytest.raises(StateMismatch, match="'h' has no axis 3"):
        lp.Recurrent(Decoder(), batch_axis=3)(X, state)
    with pytest.raises(ArgumentError, match=r"does not fit the state[\s\S]*one for each of h"):
        lp.Recurrent(Decoder(), batch_axis={"c": 1})(X, state)
    with pytest.raises(ArgumentError, match="'batch_axis' is no axis"):
        lp.Recurrent(Decoder(), batch_axis="h")


class Squeezing(lp.Cell):
    """`squeeze()` on values of the step and of the context, which loses the batch of one row in plain torch."""

    def __init__(self):
        super().__init__(h=4)
        self.W = nn.Linear(3, 4)

    def forward(self, x, h, context):
        h = torch.tanh(self.W(x).unsqueeze(1) + h.unsqueeze(1)).squeeze()
        h = torch.cat([h[:, :2], context.squeeze()], 1)
        return nn.functional.dropout(h), h * lp.time()


@pytest.mark.parametrize("engine", FASTEST)
@pytest.mark.parametrize("batch", [1, 2])
def test_check_gradients_of_a_step_that_squeezes_keeps_the_batch_of_one_row(engine, batch):
    net = lp.Recurrent(Squeezing(), engine=engine)
    report = lp.check_gradients(net, X[:, :batch], context=torch.randn(batch, 1, 2), time=torch.arange(batch))
    assert report.ok, report
    assert len(report.outputs) == 2
    assert "context" in report.gradients


def test_a_cell_with_one_state_is_told_that_it_gets_the_tensor():
    class Named(lp.Cell):
        def forward(self, x, state):
            return x, state.h + x

    with pytest.raises(ArgumentError, match=r"state in the place of state\.h"):
        lp.Recurrent(Named(h=3))(X)
