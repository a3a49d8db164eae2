"""`lp.time()`: the number of the step, from the call's argument `time`."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import ENGINES, FASTEST, close

X = torch.randn(9, 2, 3)


class Clockwork(lp.Cell):
    """Units that change every 1, 2 or 4 steps."""

    def __init__(self):
        super().__init__(h=6)
        self.U, self.W = nn.Linear(3, 6), nn.Linear(6, 6)
        self.register_buffer("periods", torch.tensor([1, 1, 2, 2, 4, 4]))

    def forward(self, x, h):
        h = torch.where(lp.time() % self.periods == 0, torch.tanh(self.U(x) + self.W(h)), h)
        return h, h


def by_hand(cell, inputs, begin=0):
    h, outputs = torch.zeros(inputs.shape[1], 6), []
    for t, x in enumerate(inputs):
        new = torch.tanh(cell.U(x) + cell.W(h))
        h = torch.where((begin + t) % cell.periods == 0, new, h)
        outputs.append(h)
    return torch.stack(outputs)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_numbered_from_zero_or_from_the_argument(engine):
    net = lp.Recurrent(Clockwork(), engine=engine)
    for _ in range(2):  # the second call is a cached one
        close(net(X)[0], by_hand(net.cell, X), 1e-6)
    close(net(X, time=3)[0], by_hand(net.cell, X, 3), 1e-6)
    close(net(X[:5])[0], by_hand(net.cell, X[:5]), 1e-6)


@pytest.mark.parametrize("engine", FASTEST)
def test_rows_may_have_begun_at_different_times(engine):
    net = lp.Recurrent(Clockwork(), engine=engine)
    outputs, _ = net(X, time=torch.tensor([3, 1]))
    close(outputs, torch.stack([by_hand(net.cell, X, 3)[:, 0], by_hand(net.cell, X, 1)[:, 1]], 1), 1e-6)


@pytest.mark.parametrize("engine", FASTEST)
def test_windows_and_single_steps_go_on_where_they_are_told(engine):
    net = lp.Recurrent(Clockwork(), engine=engine)
    whole, _ = net(X)
    first, state = net(X[:5])
    close(torch.cat([first, net(X[5:], state, time=5)[0]]), whole, 1e-6)
    state, outputs = None, []
    for t, x in enumerate(X):
        output, state = net.step(x, state, time=t)
        outputs.append(output)
    close(torch.stack(outputs), whole, 1e-6)


CALLS = {
    "plain": {},
    "lengths": {"lengths": [4, 9]},
    "resets": {"resets": torch.arange(18).view(9, 2) % 5 == 3},
    "later": {"time": 2},
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_gradients_with_lengths_and_resets(arguments):
    assert lp.check_gradients(lp.Recurrent(Clockwork(), engine="cpu"), X, **arguments).ok


def test_a_strip_counts_too():
    cell = Clockwork()
    close(lp.fold(cell, X[0]).unfold(9).run(X)[0], by_hand(cell, X), 1e-6)


def test_a_picture_does_not_show_it():
    assert "time" not in str(lp.fold(Clockwork(), X[0]))


def test_compiled_by_torch():
    net = lp.Recurrent(Clockwork())
    compiled = torch.compile(net, backend="eager")
    close(compiled(X, time=2)[0], net(X, time=2)[0], 1e-6)
    close(compiled(X)[0], net(X)[0], 1e-6)


def test_a_cell_called_by_hand_needs_to_be_told():
    cell = Clockwork()
    with pytest.raises(ArgumentError, match=r"(?s)lp.time\(\) is read outside of a network.*lp.time.at\(0\)"):
        cell(X[0])
    with lp.time.at(1):
        _, h = cell(X[0], torch.ones(2, 6))
    assert torch.equal(h[:, 2:], torch.ones(2, 4))


@pytest.mark.parametrize("bad", [1.5, True, "now", torch.zeros(2), torch.zeros(3, dtype=torch.int64)], ids=str)
def test_a_time_that_is_no_number_of_a_step_is_refused(bad):
    with pytest.raises(ArgumentError, match=r"(?s)'time' is no number of a step.*2 integers, one per row"):
        lp.Recurrent(Clockwork())(X, time=bad)
