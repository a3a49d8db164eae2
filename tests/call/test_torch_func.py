"""The transforms of torch.func on a network: what they give on the plain Python loop, on every engine."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.utils import _pytree as pytree

import leporello as lp
from leporello.engine import operator_plan
from tests.close import assert_close
from tests.nets.twins import shaken

# torch loads its rules of forward-mode derivatives by a function of its own that it has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
ENGINES = ("cpu", "stepwise", "reference")


class Plain(nn.Module):
    """The plain Python loop over a cell."""

    def __init__(self, cell: lp.Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, inputs: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        state = self.cell.initial_state(inputs.shape[1]) if state is None else state
        outputs = []
        for x in inputs:
            output, state = self.cell(x, state)
            outputs.append(output)
        return torch.stack(outputs), state


class Leaky(lp.Cell):
    """A step with a detached value, a buffer and two state leaves."""

    def __init__(self) -> None:
        super().__init__(h=4, mean=4)
        self.U, self.W = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)
        self.register_buffer("rate", torch.linspace(0.1, 0.9, 4))

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        h, mean = state
        h = torch.tanh(self.U(x) + self.W(h) - mean.detach() * h)
        return h.square(), (h, mean + self.rate * (h - mean))


CELLS: dict[str, Callable[[], lp.Cell]] = {
    "GRU": lambda: lp.GRU(3, 5),
    "LSTM": lambda: lp.LSTM(3, 4),
    "Leaky": Leaky,
}


def loss_of(net: nn.Module) -> Callable[..., Tensor]:
    return lambda parameters, x: functional_call(net, parameters, (x,))[0].square().sum()


def outputs_of(net: nn.Module) -> Callable[..., Tensor]:
    return lambda parameters, x: functional_call(net, parameters, (x,))[0]


def descended(f: Any, parameters: Any, x: Tensor) -> Any:
    """The parameters after one step down the gradient."""
    return {name: parameters[name] - 0.1 * value for name, value in grad(f)(parameters, x).items()}


# f: the loss, g: the outputs, p: parameters, ps: those of three networks, x: inputs, xs: of two samples
TRANSFORMS: dict[str, Callable[..., Any]] = {
    "functional_call": lambda f, g, p, ps, x, xs: f(p, x),
    "grad": lambda f, g, p, ps, x, xs: grad(f, (0, 1))(p, x),
    "vjp": lambda f, g, p, ps, x, xs: vjp(g, p, x)[1](g(p, x).cos()),
    "vmap over inputs": lambda f, g, p, ps, x, xs: vmap(f, (None, 0))(p, xs),
    "vmap over a later axis": lambda f, g, p, ps, x, xs: vmap(g, (None, 1), 2)(p, xs.transpose(0, 1)),
    "vmap over parameters": lambda f, g, p, ps, x, xs: vmap(f, (0, None))(ps, x),
    "vmap over both": lambda f, g, p, ps, x, xs: vmap(g, (0, 0))({k: v[:2] for k, v in ps.items()}, xs),
    "vmap of vmap": lambda f, g, p, ps, x, xs: vmap(vmap(f, (None, 0)), (0, None))(ps, xs),
    "gradients of each sample": lambda f, g, p, ps, x, xs: vmap(grad(f), (None, 0))(p, xs),
    "gradients of one row each": lambda f, g, p, ps, x, xs: vmap(grad(f), (None, 0))(p, xs[:, :, :1]),
    "gradients of an ensemble": lambda f, g, p, ps, x, xs: vmap(grad(f), (0, None))(ps, x),
    "grad of an ensemble": lambda f, g, p, ps, x, xs: grad(lambda ps: vmap(f, (0, None))(ps, x).sum())(ps),
    "grad of samples": lambda f, g, p, ps, x, xs: grad(lambda p: vmap(f, (None, 0))(p, xs).square().sum())(p),
    "jacrev": lambda f, g, p, ps, x, xs: jacrev(g, (0, 1))(p, x[:2, :1]),
    "jvp": lambda f, g, p, ps, x, xs: jvp(g, (p, x), ({k: v.cos() for k, v in p.items()}, x.sin())),
    "jacfwd": lambda f, g, p, ps, x, xs: jacfwd(g, 1)(p, x[:2, :1]),
    "hessian": lambda f, g, p, ps, x, xs: hessian(f, 1)(p, x[:3, :1]),
    "jacrev of jacrev": lambda f, g, p, ps, x, xs: jacrev(jacrev(f, 1), 1)(p, x[:2, :1]),
    "grad of grad": lambda f, g, p, ps, x, xs: grad(lambda x: grad(f, 1)(p, x).square().sum())(x),
    "grad of jvp": lambda f, g, p, ps, x, xs: grad(lambda p: jvp(f, (p, x), (p, x.cos()))[1])(p),
    "a Hessian times a vector": lambda f, g, p, ps, x, xs: jvp(
        grad(f), (p, x), ({k: v.cos() for k, v in p.items()}, x)
    ),
    "meta-learning": lambda f, g, p, ps, x, xs: grad(lambda p: vmap(lambda x: f(descended(f, p, x), x))(xs).sum())(p),
}
SLOW = {"jacrev of jacrev", "a Hessian times a vector", "meta-learning", "grad of jvp", "hessian", "vmap of vmap"}
CASES = [
    pytest.param(name, cell, engine, marks=[] if quick else [pytest.mark.slow])
    for name in TRANSFORMS
    for cell in CELLS
    for engine in ENGINES
    for quick in [engine != "reference" and (name not in SLOW or engine == "cpu") and cell == "Leaky"]
]


@pytest.mark.parametrize(("name", "cell", "engine"), CASES)
def test_a_transform_gives_what_it_gives_on_the_plain_loop(name: str, cell: str, engine: str) -> None:
    torch.manual_seed(0)
    made = shaken(CELLS[cell]()).double()
    x, xs = torch.randn(5, 3, 3).double(), torch.randn(2, 5, 3, 3).double()
    found, wanted = ({}, {})
    for net, results in ((lp.Recurrent(made, engine=engine), found), (Plain(made), wanted)):
        p = {name: value.detach() for name, value in net.named_parameters()}
        ps = {name: torch.stack([value, value.cos(), 0.5 * value]) for name, value in p.items()}
        given = TRANSFORMS[name](loss_of(net), outputs_of(net), p, ps, x, xs)
        results.update({str(i): leaf for i, leaf in enumerate(pytree.tree_leaves(given))})
    assert_close(found, wanted, name)


@pytest.mark.parametrize("engine", ENGINES)
def test_lengths_resets_and_a_state_are_mapped(engine: str) -> None:
    torch.manual_seed(0)
    net = lp.Recurrent(shaken(lp.LSTM(3, 4)).double(), engine=engine)
    xs, state = torch.randn(3, 5, 2, 3).double(), torch.randn(3, 2, 4).double()
    lengths, resets = torch.tensor([[5, 2], [1, 4], [3, 3]]), torch.rand(3, 5, 2) < 0.3

    def call(x: Tensor, h: Tensor, lengths: Tensor, resets: Tensor) -> Tensor:
        outputs, (_, c) = net(x, (h, torch.zeros_like(h)), lengths=lengths, resets=resets)
        return outputs.square().sum() + c.sum()

    mapped = vmap(grad(call, (0, 1)))(xs, state, lengths, resets)
    for i in range(3):
        alone = grad(call, (0, 1))(xs[i], state[i], lengths[i], resets[i])
        assert_close({"x": mapped[0][i], "h": mapped[1][i]}, {"x": alone[0], "h": alone[1]}, f"element {i}")


def test_a_step_of_the_network_is_transformed() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)).double())
    x, h = torch.randn(7, 3).double(), torch.randn(7, 4).double()
    jacobians = vmap(jacrev(lambda x, h: net.step(x[None], h[None])[1][0], 1))(x, h)
    whole = jacrev(lambda h: net.cell(x, h)[1])(h)
    assert_close({"h": jacobians}, {"h": torch.stack([whole[i, :, i] for i in range(7)])}, "jacobians")


@pytest.mark.parametrize("engine", ENGINES)
def test_truncated_gradients_are_those_of_each_sample(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)).double(), gradient=lp.Truncated(2), engine=engine)
    p = {name: value.detach() for name, value in net.named_parameters()}
    xs = torch.randn(3, 5, 2, 3).double()
    mapped = vmap(grad(loss_of(net)), (None, 0))(p, xs)
    for i in range(3):
        alone = torch.autograd.grad(net(xs[i])[0].square().sum(), list(net.parameters()))
        assert_close({k: v[i] for k, v in mapped.items()}, dict(zip(p, alone, strict=True)), f"sample {i}")


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_that_a_step_defines_itself_count(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.LIF(3, 4)).double(), engine=engine)
    p = {name: value.detach() for name, value in net.named_parameters()}
    ps = {name: torch.stack([value, 2 * value]) for name, value in p.items()}
    xs = 3 * torch.randn(2, 6, 2, 3).double()
    mapped = vmap(grad(loss_of(net)))(ps, xs)
    for i in range(2):
        alone = grad(loss_of(net))({k: v[i] for k, v in ps.items()}, xs[i])
        assert any(value.any() for value in alone.values())
        assert_close({k: v[i] for k, v in mapped.items()}, alone, f"network {i}")


def test_parameters_outside_of_all_transforms_get_gradients() -> None:
    nets = [lp.Recurrent(shaken(lp.GRU(3, 4)).double()) for _ in range(3)]
    parameters, buffers = stack_module_state(nets)
    base, x = copy.deepcopy(nets[0]).to("meta"), torch.randn(5, 2, 3).double()
    losses = vmap(lambda p, b: functional_call(base, (p, b), (x,))[0].square().sum())(parameters, buffers)
    losses.sum().backward()
    for i, net in enumerate(nets):
        net(x)[0].square().sum().backward()
        alone = {name: value.grad for name, value in net.named_parameters()}
        assert_close({k: v.grad[i] for k, v in parameters.items()}, alone, f"network {i}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: lp.Bidirectional(lp.GRU(3, 4), lp.LSTM(3, 4)),
        lambda: lp.Summary(lp.LSTM(3, 4), nn.Linear(4, 2)),
    ],
)
def test_other_networks_are_transformed(make: Callable[[], nn.Module]) -> None:
    net, xs = shaken(make()), torch.randn(3, 5, 2, 3).double()
    p = {name: value.detach() for name, value in net.named_parameters()}
    mapped = vmap(grad(loss_of(net)), (None, 0))(p, xs)
    for i in range(3):
        net.zero_grad()
        net(xs[i])[0].square().sum().backward()
        alone = {name: value.grad for name, value in net.named_parameters()}
        assert_close({k: v[i] for k, v in mapped.items()}, alone, f"sample {i}")


def test_forward_hooks_see_values_under_a_transform() -> None:
    net, seen = lp.Recurrent(lp.GRU(3, 4)), []
    handle = net.cell.register_forward_hook(lambda module, given, made: seen.append(made))
    vmap(lambda x: net(x)[0])(torch.randn(2, 5, 1, 3))
    handle.remove()
    assert len(seen) == 5


def test_random_numbers_follow_the_randomness_of_vmap() -> None:
    net = lp.Recurrent(lp.ZoneoutLSTM(3, 4, zoneout_h=0.5, zoneout_c=0.5), engine="cpu")
    x = torch.randn(5, 2, 3).expand(3, 5, 2, 3)
    same = vmap(lambda x: net(x)[0], randomness="same")(x)
    different = vmap(lambda x: net(x)[0], randomness="different")(x)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: net(x)[0])(x)


def test_dual_numbers_go_through_a_network() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)).double(), engine="cpu")
    x, change = torch.randn(2, 5, 2, 3).double()
    with forward_ad.dual_level():
        outputs = forward_ad.unpack_dual(net(forward_ad.make_dual(x, change))[0])
    assert_close({"o": outputs.tangent}, {"o": jvp(lambda x: net(x)[0], (x,), (change,))[1]}, "tangent")


# ---- errors


def test_a_length_out_of_range_is_refused_in_vmap() -> None:
    net = lp.Recurrent(lp.GRU(3, 4))
    with pytest.raises(lp.errors.ArgumentError, match="'lengths' is out of range"):
        vmap(lambda x, n: net(x, lengths=n)[0])(torch.randn(2, 5, 1, 3), torch.tensor([[5], [6]]))
    assert net(torch.randn(5, 1, 3))[0].shape == (5, 1, 4)


def test_a_method_with_sweeps_of_its_own_is_refused() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), gradient=lp.RTRL())
    with pytest.raises(lp.errors.ArgumentError, match=r"RTRL\(\) is not transformed by torch.func"):
        grad(lambda x: net(x)[0].sum())(torch.randn(5, 2, 3))


def test_a_truncated_network_has_no_derivative_forward_in_time() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), gradient=lp.Truncated(2), engine="cpu")
    x = torch.randn(5, 2, 3)
    with pytest.raises(lp.errors.EngineRefusal, match="forward in time is exact"):
        jvp(lambda x: net(x)[0], (x,), (x,))


def test_a_recorded_call_is_refused_and_not_made_a_constant() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), engine="cpu")
    x = torch.randn(5, 2, 3)
    with pytest.raises(lp.errors.ArgumentError, match="recorded as a graph"):
        torch.func.linearize(lambda x: net(x)[0], x)


# ---- time


def _times(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The shortest time of each; they take turns, so that what else the machine does hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
        call()
    for _ in range(rounds):
        for name, call in contestants.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: min(each) for name, each in seconds.items()}


def test_eight_networks_by_vmap_are_one_sweep_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [lp.Recurrent(lp.GRU(4, 8), engine="stepwise") for _ in range(8)]
    parameters, _ = stack_module_state(nets)
    f, x = loss_of(copy.deepcopy(nets[0])), torch.randn(20, 1, 4)
    sweeps: list[int] = []
    run = operator_plan.run_sweep
    monkeypatch.setattr(operator_plan, "run_sweep", lambda *given: sweeps.append(given[1]) or run(*given))
    vmap(grad(f), (0, None))({name: value.detach() for name, value in parameters.items()}, x)
    assert sweeps == [20, 20]


@pytest.mark.slow  # what else the machine does moves the figure: it is 4.1 to 4.3 where nothing else runs
def test_eight_small_networks_by_vmap_are_four_times_faster_than_one_after_another() -> None:
    nets = [lp.Recurrent(lp.GRU(4, 8), engine="stepwise") for _ in range(8)]
    parameters, _ = stack_module_state(nets)
    parameters = {name: value.detach() for name, value in parameters.items()}
    each = [{name: value[i] for name, value in parameters.items()} for i in range(8)]
    f, x = loss_of(copy.deepcopy(nets[0])), torch.randn(20, 1, 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = _times(
            {
                "by vmap": lambda: vmap(grad(f), (0, None))(parameters, x),
                "one after another": lambda: [grad(f)(own, x) for own in each],
            },
            rounds=15,
        )
    finally:
        torch.set_num_threads(threads)
    assert seconds["one after another"] >= 4 * seconds["by vmap"], seconds
