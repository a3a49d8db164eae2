"""A network of ours as any other module: nested, saved, copied, shared, frozen, wrapped."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from tests.nets.twins import FASTEST, STEPWISE, agrees_with_the_plain_loop, close, gradients, normal, shaken, weighed


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(4, 5)
        self.net = lp.Recurrent(lp.GRU(3, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.net(self.embedding(tokens))[0])


TOKENS = torch.randint(5, (6, 3), generator=torch.Generator().manual_seed(0))


def test_a_net_trains_inside_another_module() -> None:
    model = Tagger().double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.roll(1, 0).flatten())
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_gradients_pass_through_the_net_to_the_module_below() -> None:
    model = shaken(Tagger())
    sources = list(model.parameters())
    got = gradients(model(TOKENS), sources)
    h, outputs = None, []
    for row in model.embedding(TOKENS):
        output, h = model.net.cell(row, h)
        outputs.append(model.head(output))
    close(got, gradients(torch.stack(outputs), sources))


def test_the_names_in_the_state_dict_are_those_of_the_modules() -> None:
    assert list(lp.Recurrent(lp.GRU(3, 4)).state_dict()) == ["cell.U", "cell.W", "cell.b", "cell.c"]
    assert [name for name in Tagger().state_dict() if name.startswith("net")] == [
        "net.cell.U",
        "net.cell.W",
        "net.cell.b",
        "net.cell.c",
    ]


def test_a_state_dict_goes_round() -> None:
    one, other = shaken(Tagger(), seed=1), shaken(Tagger(), seed=2)
    with torch.no_grad():
        assert not torch.equal(one(TOKENS), other(TOKENS))
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))
        close(other(TOKENS), one(TOKENS), tolerance=0)
        another = Tagger().double()
        another(TOKENS)
        another.load_state_dict(one.state_dict(), assign=True)
        close(another(TOKENS), one(TOKENS), tolerance=0)


@torch.no_grad()
def test_a_copy_computes_the_same_and_begins_without_traces() -> None:
    net = shaken(lp.Recurrent(lp.Stack(lp.LSTM(3, 4), lp.Leaky(4, 3, 2, alpha=[0.1, 0.2, 0.3]))))
    x = normal(4, 2, 3)
    wanted = net(x)
    assert net._plan_cache.loops
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(other) is lp.Recurrent
        assert not other._plan_cache.loops
        assert not other._plan_cache.plans
        close(other(x), wanted, tolerance=0)
        other.cell.cells[0].U.data.add_(1)
        assert not torch.equal(other(x)[0], wanted[0])
    close(net(x), wanted, tolerance=0)
    assert len(pickle.dumps(net)) < 20_000


def test_a_pickled_net_keeps_its_options() -> None:
    net = pickle.loads(pickle.dumps(lp.Recurrent(lp.GRU(3, 4), engine="reference", batch_first=True)))
    assert (net.engine, net.batch_first, net.gradient) == ("reference", True, lp.Full())


@pytest.mark.parametrize(
    "module",
    [
        lp.Bidirectional(lp.RNN(3, 4), lp.RNN(3, 4)),
        lp.Layers(lp.Recurrent(lp.RNN(3, 4)), lp.Recurrent(lp.RNN(4, 4))),
        lp.Summary(lp.RNN(3, 4), nn.Linear(4, 2)),
        lp.Recurrent(lp.record(lp.Feedback(lp.RNN(7, 4)))),
    ],
    ids=["both directions", "layers", "summary", "recorded feedback"],
)
@torch.no_grad()
def test_every_module_can_be_pickled(module: nn.Module) -> None:
    x = normal(4, 2, 3).float()
    wanted = module(x)
    close(pickle.loads(pickle.dumps(module))(x), wanted, tolerance=0)


@pytest.mark.parametrize("engine", STEPWISE)
def test_parameters_shared_between_cells_get_the_sum_of_both_gradients(engine: str) -> None:
    stack = lp.Stack(lp.RNN(4, 4), lp.RNN(4, 4), lp.RNN(4, 4))
    stack.cells[1].W = stack.cells[0].W
    stack.cells[2] = stack.cells[0]
    net = lp.Recurrent(shaken(stack), engine=engine)
    assert len(list(net.parameters())) == 7
    agrees_with_the_plain_loop(net, normal(4, 3, 4, grad=True))


def test_a_parameter_shared_inside_one_cell_gets_the_sum() -> None:
    cell = lp.Elman(3, 3, 3)
    cell.U = cell.W
    net = lp.Recurrent(shaken(cell))
    agrees_with_the_plain_loop(net, normal(4, 3, 3, grad=True))


def test_cells_shared_between_networks_get_the_sum() -> None:
    cell = shaken(lp.GRU(3, 3))
    one, two = lp.Recurrent(cell), lp.Recurrent(cell)
    x = normal(4, 2, 3, grad=True)
    got = two(one(x)[0])
    h, g, outputs = None, None, []
    for step in x:
        output, h = cell(step, h)
        output, g = cell(output, g)
        outputs.append(output)
    sources = [x, *cell.parameters()]
    close(got, (torch.stack(outputs), g))
    close(gradients(got, sources), gradients((torch.stack(outputs), g), sources))


@pytest.mark.parametrize("engine", FASTEST)
def test_frozen_parameters_get_no_gradient(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine)
    x = normal(4, 2, 3)
    net.cell.W.requires_grad_(False)
    agrees_with_the_plain_loop(net, x)
    net(x)[0].sum().backward()
    assert net.cell.W.grad is None
    assert net.cell.U.grad is not None
    net.requires_grad_(False)
    assert not net(x)[0].requires_grad
    for thawed in (net.cell.W, net.cell.b):
        thawed.requires_grad_(True)
        agrees_with_the_plain_loop(net, x)
    net.zero_grad()
    net(x)[0].sum().backward()
    assert net.cell.W.grad is not None
    assert net.cell.c.grad is None


@pytest.mark.parametrize("engine", FASTEST)
def test_unused_parameters_get_no_gradient(engine: str) -> None:
    class Idle(lp.GRU):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.unused, self.only_shown = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            output, h = super().forward(x, h)
            return output * self.only_shown, h

    net = lp.Recurrent(Idle(), engine=engine)
    net(normal(3, 2, 3).float())[1].sum().backward()
    assert net.cell.unused.grad is None
    shown = net.cell.only_shown.grad
    assert shown is None or not shown.any()
    assert net.cell.W.grad.abs().max() > 0


def test_functional_call_runs_on_other_parameters() -> None:
    net, other = shaken(lp.Recurrent(lp.GRU(3, 4)), seed=1), shaken(lp.Recurrent(lp.GRU(3, 4)), seed=2)
    x = normal(4, 2, 3)
    close(torch.func.functional_call(net, dict(other.named_parameters()), (x,)), other(x), tolerance=0)


def test_parametrized_weights_are_trained() -> None:
    cell = nn.utils.parametrizations.weight_norm(shaken(lp.GRU(3, 4)), "W")
    net = lp.Recurrent(cell)
    agrees_with_the_plain_loop(net, normal(4, 2, 3, grad=True))


def test_moving_a_net_to_another_dtype_moves_what_it_computes() -> None:
    net = lp.Recurrent(lp.Leaky(3, 4, 2, alpha=[0.1, 0.2, 0.3, 0.4], signs=[1, 1, -1, -1]))
    with torch.no_grad():
        assert net(normal(2, 1, 3).float())[0].dtype == torch.float32
        assert net.double()(normal(2, 1, 3))[0].dtype == torch.float64


def test_a_distributed_net_gets_the_same_gradients(tmp_path: Path) -> None:
    net = shaken(lp.Recurrent(lp.Stack(lp.LSTM(3, 4), lp.Elman(4, 3, 2))))
    x = normal(5, 3, 3)
    wanted = gradients(net(x), list(net.parameters()))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(net))
        for _ in range(2):
            wrapped.zero_grad()
            weighed(wrapped(x)).backward()
            close([parameter.grad for parameter in wrapped.module.parameters()], wanted)
    finally:
        torch.distributed.destroy_process_group()
