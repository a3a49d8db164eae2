"""Our networks as those of torch.nn: round trips, and refusals of what torch.nn cannot express."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.test_from_torch import KINDS, SHAPES
from tests.nets.twins import close, normal, shaken, thoroughly


def same(one: nn.Module, other: nn.Module) -> None:
    """The same class, options and parameters, bit for bit."""
    assert type(one) is type(other)
    assert repr(one) == repr(other)
    mine, yours = dict(one.named_parameters()), dict(other.named_parameters())
    assert mine.keys() == yours.keys()
    for name, parameter in mine.items():
        assert torch.equal(parameter, yours[name])
        assert (parameter.dtype, parameter.requires_grad) == (yours[name].dtype, yours[name].requires_grad)
        assert parameter is not yours[name]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same_module(kind: str, shape: str, batch_first: bool) -> None:
    maker, options = KINDS[kind]
    layers = SHAPES[shape]
    dropout = 0.25 if "num_layers" in layers else 0.0
    module = maker(3, 4, batch_first=batch_first, dropout=dropout, dtype=torch.float64, **layers, **options)
    next(module.parameters()).requires_grad_(False)
    back = lp.to_torch(lp.from_torch(module))
    same(back, module)
    x = normal(5, 2, 3)
    close(back.eval()(x), module.eval()(x), tolerance=0)


@pytest.mark.parametrize("maker", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("bias", [True, False])
def test_there_and_back_is_the_same_cell(maker: type, bias: bool) -> None:
    module = maker(3, 5, bias=bias).eval()
    back = lp.to_torch(lp.from_torch(module))
    same(back, module)
    assert not back.training
    close(back(normal(2, 3).float()), module(normal(2, 3).float()), tolerance=0)


@pytest.mark.parametrize(
    "net",
    [
        lp.Recurrent(lp.RNN(3, 5, nonlinearity="relu", bias=False), engine="reference"),
        lp.Recurrent(lp.Stack(lp.LSTM(3, 5, projection=2), lp.LSTM(2, 5, projection=2))),
        lp.Recurrent(lp.Stack(lp.GRU(3, 5), dropout=0.5)),
        *thoroughly(
            lp.Bidirectional(lp.GRU(3, 5), lp.GRU(3, 5)),
            lp.Layers(lp.Recurrent(lp.GRU(3, 5)), lp.Recurrent(lp.GRU(5, 5))),
        ),
        lp.Layers(lp.Bidirectional(lp.RNN(3, 5), lp.RNN(3, 5)), lp.Bidirectional(lp.RNN(10, 5), lp.RNN(10, 5))),
    ],
    ids=["RNN", "stack", "stack of one", "both directions", "layers", "layers of both"],
)
def test_our_net_computes_the_same_in_torch(net: nn.Module) -> None:
    shaken(net).eval()
    module = lp.to_torch(net)
    outputs, _ = module(normal(4, 2, 3))
    close(outputs, net(normal(4, 2, 3))[0])
    assert {parameter.data_ptr() for parameter in net.parameters()}.isdisjoint(
        parameter.data_ptr() for parameter in module.parameters()
    )


def test_the_module_trains_on_its_new_parameters() -> None:
    """torch.nn keeps a list of its weights beside their names: it must hold ours too."""
    net = lp.Recurrent(lp.LSTM(3, 5)).double()
    module = lp.to_torch(net)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    before = module(normal(4, 2, 3))[0].detach()
    module(normal(4, 2, 3))[0].sum().backward()
    optimiser.step()
    after = module(normal(4, 2, 3))[0]
    assert (after - before).abs().max() > 1e-3
    close(lp.from_torch(module)(normal(4, 2, 3))[0], after)


def test_directions_that_share_a_cell_share_their_parameters() -> None:
    cell = lp.GRU(3, 4)
    module = lp.to_torch(lp.Bidirectional(cell, cell))
    assert module.weight_hh_l0 is module.weight_hh_l0_reverse


class OfMyOwn(lp.GRU):
    def forward(self, x: Any, h: Any) -> Any:
        output, h = super().forward(x, h)
        return 2 * output, h


def only_one_bias() -> lp.Cell:
    cell = lp.GRU(3, 4)
    cell.c = None
    return cell


REFUSED = {
    "identity": (lp.Recurrent(lp.RNN(3, 4, nonlinearity="identity")), "nonlinearity 'identity'"),
    "identity cell": (lp.RNN(3, 4, nonlinearity="identity"), "nonlinearity 'identity'"),
    "layer norm": (lp.Recurrent(lp.LayerNormLSTM(3, 4)), "torch.nn has no LayerNormLSTM"),
    "bare Elman": (lp.Elman(3, 4, 2), "torch.nn has no Elman"),
    "a forward of its own": (lp.Recurrent(OfMyOwn(3, 4)), "torch.nn has no OfMyOwn"),
    "projected cell": (lp.LSTM(3, 4, projection=2), "nn.LSTMCell has no projection"),
    "bare stack": (lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4)), "torch.nn has no Stack"),
    "sizes": (lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 5))), "hidden=5"),
    "kinds": (lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.LSTM(4, 4))), "LSTM"),
    "biases": (lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4, bias=False))), "bias=False"),
    "projections": (lp.Recurrent(lp.Stack(lp.LSTM(3, 4), lp.LSTM(4, 4, projection=2))), "projection=2"),
    "functions": (lp.Recurrent(lp.Stack(lp.RNN(3, 4), lp.RNN(4, 4, nonlinearity="relu"))), "'relu'"),
    "directions": (lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 5)), "hidden=5"),
    "stacks in both directions": (
        lp.Bidirectional(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4)), lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4))),
        "reads both directions",
    ),
    "some in both": (
        lp.Layers(lp.Bidirectional(lp.GRU(3, 4), lp.GRU(3, 4)), lp.Recurrent(lp.GRU(8, 4))),
        "others in one",
    ),
    "stacks in layers": (lp.Layers(lp.Recurrent(lp.Stack(lp.GRU(3, 4), lp.GRU(4, 4)))), "several layers itself"),
    "batch first": (
        lp.Layers(lp.Recurrent(lp.GRU(3, 4), batch_first=True), lp.Recurrent(lp.GRU(4, 4))),
        "batch_first",
    ),
    "learned": (lp.Recurrent(lp.GRU(3, 4, learned=True)), "no initial state"),
    "one bias": (lp.Recurrent(only_one_bias()), "two biases or none"),
    "summary": (lp.Summary(lp.GRU(3, 4), nn.Identity()), "torch.nn has no Summary"),
    "feedback": (lp.Recurrent(lp.Feedback(lp.GRU(7, 4))), "torch.nn has no Feedback"),
    "a module of torch": (nn.Linear(3, 4), "torch.nn has no Linear"),
    "a function": (lambda x, h: (x, h), "torch.nn has no function"),
}


@pytest.mark.parametrize(("net", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_torch_cannot_express_is_refused(net: Any, why: str) -> None:
    with pytest.raises(ArgumentError, match=r"torch\.nn cannot express this net") as refusal:
        lp.to_torch(net)
    assert why in str(refusal.value)
    assert "\n  try " in str(refusal.value)


def test_hooks_are_refused() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    net.register_forward_hook(lambda *_: None)
    with pytest.raises(ArgumentError, match="a hook cannot be carried across"):
        lp.to_torch(net)
