"""Random numbers of a step without a batch axis: one set a step, which all rows share."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError, EngineRefusal, UntraceableStep
from leporello.rewrite.rows_for_draws import MAX_NUMBERS
from tests.nets.twins import ALL, ENGINES, agrees_with_the_plain_loop, close, normal, shaken, somewhere, thoroughly

LENGTH, BATCH = 7, 5


class Shared(lp.Cell):
    """Weights dropped anew at each step, a mask of weights, noise in three forms, and noise of each row."""

    def __init__(self):
        super().__init__(h=6)
        self.U, self.W = nn.Linear(3, 6), nn.Linear(6, 6)

    def forward(self, x, h):
        dropped = F.dropout(self.W.weight, 0.5, self.training)
        masked = self.U.weight * torch.bernoulli(torch.full_like(self.U.weight, 0.5))
        noise = torch.randn(6) + 0.3 * torch.randn(1, 6) * torch.rand(())
        h = torch.tanh(F.linear(x, masked, self.U.bias) + h @ dropped.T + noise.to(h) + 0.1 * torch.randn_like(h))
        return h, h


class Shaped(lp.Cell):
    """Shared numbers that are expanded, joined, taken apart, and read by values whose rows are merged with an axis."""

    def __init__(self):
        super().__init__(h=6)
        self.W = nn.Linear(6, 6)

    def forward(self, x, h):
        rows = x.shape[0]
        a, b = torch.randn(2, 6).unbind(0)
        joined = torch.cat([x * torch.rand(3), torch.randn(1, 3).expand(rows, 3)], 1)
        weight = torch.distributions.Normal(self.W.weight, 0.1).rsample()
        h = torch.tanh(joined + h @ weight.T) * a + b.softmax(0)
        h = torch.where(torch.rand(()) < 0.5, h, 0.5 * h) + 0.1 * torch.randint(0, 3, (6,))
        h = (h.reshape(-1, 3) * torch.rand(3)).reshape(rows, 6)
        return h.view(rows, 2, 3) @ torch.randn(3, 4), torch.tanh(h)


class Spikes(lp.Cell):
    """A gradient of its own behind shared noise; an output that is noise alone."""

    def __init__(self):
        super().__init__(h=3)

    def forward(self, x, h):
        h = lp.surrogate.arctan()(0.5 * h + x + torch.randn(3, dtype=x.dtype))
        return (h, torch.randn(1, 3, dtype=x.dtype).expand_as(x)), h


def net_of(cell, engine, **options):
    return shaken(lp.Recurrent(cell(), engine=engine, **options))


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize(("length", "batch"), [(LENGTH, BATCH), (1, 1), (LENGTH, 1)])
def test_results_and_gradients_are_those_of_the_plain_loop(engine, length, batch):
    agrees_with_the_plain_loop(net_of(Shared, engine), normal(length, batch, 3, grad=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_so_they_are_with_lengths_and_resets(engine):
    lengths = torch.tensor([7, 1, 3, 6, 4])
    resets = somewhere(LENGTH, BATCH)
    agrees_with_the_plain_loop(
        net_of(Shared, engine), normal(LENGTH, BATCH, 3, grad=True), lengths=lengths, resets=resets
    )


@pytest.mark.parametrize("engine", ALL)
@pytest.mark.parametrize(("cell", "batch"), [(Shaped, BATCH), (Shaped, 1), (Spikes, BATCH)])
def test_so_they_are_however_the_numbers_are_used(cell, engine, batch):
    net = lp.Recurrent(cell(), engine=engine)
    report = lp.check_gradients(net, torch.randn(LENGTH, batch, 3))
    assert report.ok, report


@pytest.mark.parametrize("method", [lp.Checkpointed(2), lp.RTRL(), *thoroughly(lp.Truncated(3))])
def test_every_gradient_method_shares_them(method):
    report = lp.check_gradients(lp.Recurrent(Shared(), gradient=method), torch.randn(LENGTH, BATCH, 3))
    assert report.ok, report


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_rows_stay_equal_and_steps_and_calls_differ(engine):
    class Step(lp.Cell):
        def __init__(self):
            super().__init__(h=6)

        def forward(self, x, h):
            h = torch.tanh(h + x.sum(1, keepdim=True) + torch.randn(6))
            return h, h

    net = lp.Recurrent(Step(), engine=engine)
    x = torch.randn(1, 1, 3).expand(LENGTH, BATCH, 3)
    first, second = net(x)[0], net(x)[0]  # the second is a cached call
    for outputs in (first, second):
        assert (outputs == outputs[:, :1]).all()
        assert (outputs[1:, 0] != outputs[:-1, 0]).any(-1).all()
    assert (first != second).any(-1).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_draws_have_no_batch_axis_in_calls_steps_and_strips(engine):
    net, x = net_of(Shared, engine), normal(LENGTH, BATCH, 3)
    draws = net.draw(x)
    shapes = [tuple(draw.shape) for draw in draws]
    assert shapes == [(7, 6, 6), (7, 6, 3), (7, 6), (7, 1, 6), (7,), (7, 5, 6)]
    whole, final = net(x, draws=draws)
    close(net.fold(x).unfold(LENGTH).run(x, draws=draws)[0], whole)
    state = None
    for time in range(LENGTH):
        output, state = net.step(x[time], state, draws=[draw[time] for draw in draws])
        close(output, whole[time])
    close(state, final)
    with pytest.raises(ArgumentError, match=r"draws\[4\] has the wrong form[\s\S]*uniform float32 \(\)"):
        net.step(x[0], draws=[draw[0] for draw in draws[:4]] + [draws[4][:1], draws[5][0]])
    with pytest.raises(ArgumentError, match=r"draws\[2\] has the wrong form[\s\S]*normal float32 \(7, 6\)"):
        net(x, draws=[*draws[:2], draws[2][:, None].expand(7, 5, 6), *draws[3:]])


class Wide(lp.Cell):
    """More weights than are copied for each row."""

    def __init__(self):
        super().__init__(h=65)
        self.W = nn.Linear(65, 65)

    def forward(self, x, h):
        weight = F.dropout(self.W.weight, 0.5, self.training)  # here
        h = torch.tanh(x.sum(1, keepdim=True) + F.linear(h, weight))
        return h, h


def test_many_numbers_run_on_the_reference_which_explain_says():
    net, x = lp.Recurrent(Wide()), torch.randn(LENGTH, BATCH, 3)
    assert MAX_NUMBERS < 65 * 65
    report = lp.check_gradients(net, x)
    assert report.ok, report
    said = net.explain(x)
    assert "engine   reference (chosen by auto; not " in said
    assert "stepwise: all rows share random numbers of a step" in said
    assert "F.dropout(self.W.weight, 0.5, self.training)" in said
    assert "4,225 numbers are more than the 4,096" in said
    assert "reference" not in lp.Recurrent(Wide().eval()).explain(x)


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_an_engine_asked_for_by_name_refuses_many_numbers_and_works_afterwards(engine):
    net, x = lp.Recurrent(Wide(), engine=engine), torch.randn(LENGTH, BATCH, 3)
    with pytest.raises(EngineRefusal, match=r"4,225 numbers[\s\S]*Wide[\s\S]*lp\.once") as caught:
        net(x)
    assert "test_shared_draws.py, line" in str(caught.value)
    assert net.eval()(x)[0].shape == (LENGTH, BATCH, 65)


UNMAPPED = {
    "an operator without a rule": (
        lambda x, h: (x + torch.histc(torch.randn(9), 3), h),
        "torch cannot map it over rows",
    ),
    "rows found by their number": (
        lambda x, h: (x + F.embedding((x[:, 0] > 0).long(), torch.randn(2, 3)), h),
        "the number of rows as a number in arange",
    ),
}


@pytest.mark.parametrize("name", UNMAPPED)
def test_what_cannot_be_mapped_over_rows_runs_on_the_reference(name):
    step, why = UNMAPPED[name]
    net, x, h = lp.Recurrent(step), torch.randn(LENGTH, BATCH, 3), torch.zeros(BATCH, 1)
    assert why in net.explain(x, h)
    report = lp.check_gradients(net, x, h)
    assert report.ok, report


def test_a_decision_by_a_shared_number_is_refused_at_its_line():
    def step(x, h):
        if torch.rand(()) < 0.5:
            x = 2 * x
        return x, h

    with pytest.raises(UntraceableStep, match=r"if torch\.rand\(\(\)\) < 0\.5"):
        lp.Recurrent(step)(torch.randn(LENGTH, BATCH, 3), torch.zeros(BATCH, 1))
