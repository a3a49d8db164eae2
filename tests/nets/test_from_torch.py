"""Networks of torch.nn carried across: the same outputs, final states and gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import leporello as lp
from leporello.errors import ArgumentError
from tests.nets.twins import close, gradients, normal, said

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "RNN": (nn.RNN, {}),
    "RNN relu": (nn.RNN, {"nonlinearity": "relu"}),
    "RNN without bias": (nn.RNN, {"bias": False}),
    "GRU": (nn.GRU, {}),
    "GRU without bias": (nn.GRU, {"bias": False}),
    "LSTM": (nn.LSTM, {}),
    "LSTM projected": (nn.LSTM, {"proj_size": 2}),
    "LSTM projected without bias": (nn.LSTM, {"proj_size": 2, "bias": False}),
}
SHAPES = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True},
    "two layers of both": {"num_layers": 2, "bidirectional": True},
}
OURS = {"weight_ih": "U", "weight_hh": "W", "bias_ih": "b", "bias_hh": "c", "weight_hr": "P"}
LENGTH, BATCH = 5, 3
CALLS = {
    "padded": lambda x: x,
    "packed, sorted": lambda x: pack_padded_sequence(x, torch.tensor([5, 4, 2])),
    "packed, unsorted": lambda x: pack_padded_sequence(x, torch.tensor([2, 5, 3]), enforce_sorted=False),
}


def pair(kind: str, shape: str) -> tuple[nn.Module, nn.Module]:
    maker, options = KINDS[kind]
    module = maker(3, 4, dtype=torch.float64, **SHAPES[shape], **options)
    for index, parameter in enumerate(module.parameters()):
        parameter.data.copy_(0.5 * normal(*parameter.shape, seed=index))
    return module, lp.from_torch(module)


def cells_of(net: nn.Module) -> list[lp.Cell]:
    """Layer by layer, and the forward direction first."""
    return [cell for cell in net.modules() if isinstance(cell, (lp.RNN, lp.GRU, lp.LSTM))]


def ours_of(module: nn.Module, net: nn.Module) -> dict[str, nn.Parameter]:
    """Our parameters under torch's names."""
    directions = 2 if module.bidirectional else 1
    found = {}
    for name, _ in module.named_parameters():
        kind, layer = name.rsplit("_l", 1)
        place = directions * int(layer[0]) + layer.endswith("_reverse")
        found[name] = getattr(cells_of(net)[place], OURS[kind])
    return found


def our_state(module: nn.Module, state: Any) -> Any:
    """As the docstring of torch_nn has it."""
    each = list(zip(*state, strict=True)) if isinstance(module, nn.LSTM) else list(state)
    if module.bidirectional and module.num_layers > 1:
        return tuple(zip(each[::2], each[1::2], strict=True))
    return tuple(each) if len(each) > 1 else each[0]


def torch_state(module: nn.Module) -> Any:
    count = module.num_layers * (2 if module.bidirectional else 1)
    h = normal(count, BATCH, module.proj_size or 4, seed=21, grad=True)
    return (h, normal(count, BATCH, 4, seed=22, grad=True)) if isinstance(module, nn.LSTM) else h


def flat(outputs: Tensor | PackedSequence) -> Tensor:
    return outputs.data if isinstance(outputs, PackedSequence) else outputs


MATCHED = [  # every kind and every shape, not all of them together
    *((kind, "one layer") for kind in ("RNN", "LSTM projected")),
    *((kind, "two layers") for kind in ("RNN relu", "GRU without bias")),
    ("LSTM", "both directions"),
    ("GRU", "two layers of both"),
]
MORE = [case for case in itertools.product(KINDS, SHAPES) if case not in MATCHED]


def thoroughly(cases: list[tuple[str, str]]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(("kind", "shape"), [*MATCHED, *thoroughly(MORE)])
def test_outputs_states_and_gradients_are_those_of_torch(kind: str, shape: str) -> None:
    module, net = pair(kind, shape)
    for call in CALLS:
        x, state = normal(LENGTH, BATCH, 3, grad=True), torch_state(module)
        wanted, after = module(CALLS[call](x), state)
        outputs, final = net(CALLS[call](x), our_state(module, state))
        given = [x, *(state if isinstance(state, tuple) else [state])]
        parameters = dict(module.named_parameters())
        ours = ours_of(module, net)
        with said(call):
            same_packing(outputs, wanted)
            close(flat(outputs), flat(wanted))
            close(final, our_state(module, after))
            got = gradients((flat(outputs), final), [*given, *(ours[name] for name in parameters)])
            expected = gradients((flat(wanted), our_state(module, after)), [*given, *parameters.values()])
            close(got, expected, what="gradient")


def same_packing(got: Tensor | PackedSequence, wanted: Tensor | PackedSequence) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, PackedSequence):
        assert torch.equal(got.batch_sizes, wanted.batch_sizes)
        close(got[2:], wanted[2:], what="indices")


BATCH_FIRST = [
    ("GRU", "one layer"),
    ("LSTM projected", "two layers"),
    ("LSTM projected", "both directions"),
    ("GRU", "two layers of both"),
]


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*BATCH_FIRST, *thoroughly([("GRU", "two layers"), ("GRU", "both directions"), ("LSTM projected", "one layer")])],
)
def test_batch_first_is_kept(kind: str, shape: str) -> None:
    maker, options = KINDS[kind]
    module = maker(3, 4, dtype=torch.float64, batch_first=True, **SHAPES[shape], **options)
    x = normal(BATCH, LENGTH, 3)
    with torch.no_grad():
        wanted, after = module(x)
        outputs, final = lp.from_torch(module)(x)
    close(outputs, wanted)
    close(final, our_state(module, after))


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        (nn.RNNCell, {}),
        (nn.RNNCell, {"nonlinearity": "relu", "bias": False}),
        (nn.GRUCell, {}),
        (nn.GRUCell, {"bias": False}),
        (nn.LSTMCell, {}),
        (nn.LSTMCell, {"bias": False}),
    ],
)
def test_a_cell_becomes_the_bare_cell(maker: type, options: dict[str, Any]) -> None:
    module = maker(3, 5, dtype=torch.float64, **options)
    cell = lp.from_torch(module)
    assert isinstance(cell, lp.Cell)
    state = (normal(2, 5, seed=2), normal(2, 5, seed=3)) if maker is nn.LSTMCell else normal(2, 5, seed=2)
    close(cell(normal(2, 3), state)[1], module(normal(2, 3), state))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("one layer", lp.Recurrent),
        ("two layers", lp.Recurrent),
        ("both directions", lp.Bidirectional),
        ("two layers of both", lp.Layers),
    ],
)
def test_the_kind_of_net_follows_the_shape(shape: str, expected: type) -> None:
    net = lp.from_torch(nn.GRU(3, 4, **SHAPES[shape]), engine="reference")
    assert type(net) is expected
    assert len(cells_of(net)) == {"one layer": 1, "two layers of both": 4}.get(shape, 2)
    assert {part.engine for part in net.modules() if isinstance(part, lp.Recurrent)} == {"reference"}
    assert isinstance(net.cell, lp.Stack if shape == "two layers" else lp.GRU) if expected is lp.Recurrent else True


def test_the_gradient_method_is_passed_on() -> None:
    method = lp.Full()
    net = lp.from_torch(nn.GRU(3, 4, bidirectional=True), gradient=method)
    assert net.ahead.gradient is method
    assert net.back.gradient is method


def test_parameters_are_copies_of_the_same_dtype_and_need_of_gradients() -> None:
    module = nn.LSTM(3, 4, num_layers=2, dtype=torch.bfloat16)
    module.weight_hh_l1.requires_grad_(False)
    net = lp.from_torch(module)
    for name, ours in ours_of(module, net).items():
        theirs = getattr(module, name)
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.device, ours.requires_grad) == (theirs.dtype, theirs.device, theirs.requires_grad)
        assert ours.data_ptr() != theirs.data_ptr()


def test_a_module_without_numbers_stays_one() -> None:
    net = lp.from_torch(nn.GRU(3, 4, device="meta"))
    assert {parameter.device.type for parameter in net.parameters()} == {"meta"}


def test_a_shared_parameter_stays_shared() -> None:
    module = nn.GRU(4, 4, num_layers=2)
    module.weight_ih_l1 = module.weight_ih_l0
    first, second = cells_of(lp.from_torch(module))
    assert first.U is second.U
    assert first.W is not second.W


def test_carrying_across_draws_no_random_numbers() -> None:
    module = nn.LSTM(3, 4, num_layers=2)
    before = torch.get_rng_state()
    lp.to_torch(lp.from_torch(module))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", ["two layers", pytest.param("two layers of both", marks=pytest.mark.slow)])
def test_dropout_stands_between_the_layers_in_training_only(shape: str) -> None:
    module = nn.GRU(3, 64, dropout=0.5, dtype=torch.float64, **SHAPES[shape])
    net = lp.from_torch(module)
    assert net.training
    x = normal(2, 8, 3)
    with torch.no_grad():
        trained = net(x)[0]
        assert not torch.equal(trained, net(x)[0])
        assert (trained != 0).all()  # nothing is dropped behind the last layer
        close(net.eval()(x)[0], module.eval()(x)[0])
        assert not lp.from_torch(module).training


@pytest.mark.parametrize("module", [nn.Linear(3, 4), nn.Transformer, 3, lp.GRU(3, 4), lp.Recurrent(lp.GRU(3, 4))])
def test_what_is_no_recurrent_module_is_refused(module: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no recurrent network of torch\.nn") as refusal:
        lp.from_torch(module)
    assert "nn.LSTMCell" in str(refusal.value)


def test_a_module_with_a_forward_of_its_own_is_refused() -> None:
    class Doubled(nn.GRU):
        def forward(self, *args: Any) -> Any:
            return tuple(2 * result for result in super().forward(*args))

    with pytest.raises(ArgumentError, match=r"no recurrent network of torch\.nn"):
        lp.from_torch(Doubled(3, 4))


def test_a_subclass_with_the_same_forward_is_taken() -> None:
    class Named(nn.GRU):
        pass

    module = Named(3, 4, dtype=torch.float64)
    close(lp.from_torch(module)(normal(2, 1, 3))[0], module(normal(2, 1, 3))[0])


def test_hooks_and_parametrizations_are_refused() -> None:
    hooked = nn.GRU(3, 4)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ArgumentError, match="a hook cannot be carried across"):
        lp.from_torch(hooked)
    normed = nn.utils.parametrizations.weight_norm(nn.GRU(3, 4), "weight_hh_l0")
    with pytest.raises(ArgumentError, match="a parametrization cannot be carried across"):
        lp.from_torch(normed)


@pytest.mark.parametrize("options", [{"engine": "reference"}, {"gradient": lp.Full()}])
def test_a_cell_takes_no_engine_and_no_gradient_method(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="a cell is one step"):
        lp.from_torch(nn.GRUCell(3, 4), **options)
