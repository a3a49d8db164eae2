"""A module that keeps its state in attributes, as a cell."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, MissingState, UntraceableStep
from tests.nets.twins import FASTEST, close

X = torch.randn(6, 2, 3)


class Spiking(nn.Module):
    """As libraries of spiking networks write it: the potential is an attribute, or a buffer."""

    def __init__(self, buffer=False):
        super().__init__()
        self.U = nn.Linear(3, 5)
        if buffer:
            self.register_buffer("mem", torch.zeros(1, 5))
        else:
            self.mem = None

    def begin(self, batch):
        self.mem = torch.full((batch, 5), 0.25)

    def forward(self, x):
        self.mem = 0.9 * self.mem + self.U(x)
        spikes = lp.surrogate.arctan()(self.mem - 1)
        self.mem = self.mem - spikes
        return spikes


class Deep(nn.Module):
    """A state in a submodule, and a pair in an attribute."""

    def __init__(self):
        super().__init__()
        self.lif, self.inner, self.head = Spiking(), nn.LSTMCell(3, 4), nn.Linear(9, 2)
        self.pair = None

    def forward(self, x):
        self.pair = self.inner(x, self.pair)
        return self.head(torch.cat([self.lif(x), self.pair[0]], 1))


def begin_deep(module, batch):
    module.lif.begin(batch)
    module.pair = (torch.zeros(batch, 4), torch.ones(batch, 4))


def by_hand(module, begin):
    begin(module, 2)
    return torch.stack([module(x) for x in X])


@pytest.mark.parametrize("engine", FASTEST)
def test_it_runs_as_the_module_does_called_again_and_again(engine):
    for module, names, begin in (
        (Spiking(), ["mem"], Spiking.begin),
        (Spiking(buffer=True), ["mem"], Spiking.begin),
        (Deep(), ["lif.mem", "pair"], begin_deep),
    ):
        net = lp.Recurrent(lp.Stateful(module, names, begin), engine=engine)
        close(net(X)[0], by_hand(module, begin), 1e-5)
        assert lp.check_gradients(net, X, resets=torch.rand(6, 2) < 0.3).ok


def test_the_modules_own_attributes_stay_as_they_are():
    module = Spiking()
    lp.Recurrent(lp.Stateful(module, "mem", Spiking.begin))(X)
    assert module.mem is None


def test_names_of_the_state():
    cell = lp.Stateful(Deep(), ["lif.mem", "pair"], begin_deep)
    assert cell.state_names() == ["lif.mem", "pair0", "pair1"]
    _, state = lp.Recurrent(cell)(X)
    assert state._fields == ("lif_mem", "pair")


def test_without_begin_it_begins_with_zeros_of_the_present_shape_or_with_what_is_passed():
    module = Spiking()
    with pytest.raises(
        MissingState, match=r"(?s)what this module begins with is not known.*begin=lambda module, batch"
    ):
        lp.Recurrent(lp.Stateful(module, "mem"))(X)
    zeros = lp.Recurrent(lp.Stateful(module, "mem"))(X, torch.zeros(2, 5))[0]
    module.begin(7)
    close(lp.Recurrent(lp.Stateful(module, "mem"))(X)[0], zeros, 1e-6)


def test_a_tensor_without_elements_says_nothing_of_how_it_begins():
    module = Deep()
    module.lif.mem, module.pair = torch.zeros(0), (torch.zeros(0), torch.zeros(0))
    cell = lp.Stateful(module, ["lif.mem", "pair"])
    with pytest.raises(MissingState, match=r"(?s)not known.*cell +Deep"):
        lp.Recurrent(cell)(X)
    begun = lp.Stateful(module, ["lif.mem", "pair"], begin_deep)
    net = lp.Recurrent(cell, engine="stepwise")
    close(net(X, begun.initial_state(2)), lp.Recurrent(begun, engine="stepwise")(X), 1e-6)
    assert "pair1" in net.explain(X, begun.initial_state(2))


def test_a_module_that_needs_a_second_argument_gets_the_context():
    class Biased(Spiking):
        def forward(self, x, bias):
            return super().forward(x) + bias

    net, bias = lp.Recurrent(lp.Stateful(Biased(), "mem", begin=Spiking.begin)), torch.randn(2, 5)
    assert lp.check_gradients(net, X, context=bias).ok
    with pytest.raises(ArgumentError, match="the step reads a context, 'bias', and the call has none"):
        net(X)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lp.Stateful(len, ["mem"]), "'module' is no module"),
        (lambda: lp.Stateful(Spiking(), []), "'attributes' has no names"),
        (lambda: lp.Stateful(Spiking(), ["mem", "mem"]), "a list of different names"),
        (lambda: lp.Stateful(Spiking(), ["lif.mem"]), "the module has no part 'lif'"),
    ],
)
def test_what_it_cannot_be_made_of_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_an_attribute_that_is_not_named_is_refused_by_name():
    class Noting(Spiking):
        def forward(self, x):
            self.seen = super().forward(x)
            return self.seen

    with pytest.raises(UntraceableStep, match=r"(?s)the attribute 'module.seen'.*Stateful of Noting.*lp.Stateful"):
        lp.Recurrent(lp.Stateful(Noting(), "mem"))(X, torch.zeros(2, 5))


def test_such_a_module_by_itself_is_refused_with_the_way_out():
    with pytest.raises(ArgumentError, match=r"(?s)does not take an input and a state.*lp.Stateful"):
        lp.Recurrent(Spiking())(X, torch.zeros(2, 5))
