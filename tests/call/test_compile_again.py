"""A compiled network called again: other sizes, other numbers, other modes, another cell; and training."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.call.plan_cache import network_by_handle
from tests.call.compiling import _compiler_begins_anew, compiled  # noqa: F401
from tests.call.test_compile import Own, Tagger
from tests.nets.twins import FASTEST, close, gradients, normal, shaken


@pytest.mark.parametrize("engine", FASTEST)
def test_another_length_and_batch_need_no_other_graph(engine: str) -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)), engine=engine)
    graph = compiled(net, dynamic=True)
    graph(normal(9, 7, 3, grad=True))
    with torch.compiler.set_stance("fail_on_recompile"):
        for length, batch in ((5, 2), (8, 6), (63, 5)):
            x = normal(length, batch, 3, grad=True)
            sources = [x, *net.parameters()]
            got, wanted = graph(x), net(x)
            close(got, wanted)
            close(gradients(got, sources), gradients(wanted, sources))


def test_another_length_and_batch_work_without_being_announced() -> None:
    net = lp.Recurrent(shaken(lp.RNN(3, 4)))
    graph = compiled(net)
    for length, batch in ((5, 2), (6, 2), (7, 8), (1, 1)):
        x = normal(length, batch, 3)
        close(graph(x, lengths=torch.full((batch,), length)), net(x))


@pytest.mark.parametrize("engine", FASTEST)
def test_three_updates_of_a_compiled_model_are_those_of_the_model(engine: str) -> None:
    words, lengths, tags = torch.tensor([[0, 6, 2]] * 5), torch.tensor([5, 2, 4]), torch.tensor([[0, 1, 1]] * 5)
    eager = shaken(Tagger(engine))
    other = copy.deepcopy(eager)
    graph = compiled(other)
    for model, run in ((eager, eager), (other, graph)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.nll_loss(run(words, lengths).flatten(0, 1), tags.flatten()).backward()
            optimizer.step()
    close(list(other.parameters()), list(eager.parameters()), what="parameter")


def test_states_are_made_cut_and_taken_apart_in_a_graph() -> None:
    net, x = lp.Recurrent(shaken(lp.LSTM(3, 4))), normal(5, 3, 3)

    def two_windows(x: torch.Tensor) -> Any:
        _, state = net(x, net.initial_state(x.shape[1], dtype=x.dtype))
        outputs, state = net(x, lp.detach(state))
        return outputs, lp.rows(state, slice(0, 1))

    got, wanted = compiled(two_windows)(x), two_windows(x)
    close(got, wanted)
    close(gradients(got, list(net.parameters())), gradients(wanted, list(net.parameters())))


def test_float32_is_compiled() -> None:
    net = lp.Recurrent(lp.GRU(3, 4), engine="cpu")
    x = normal(5, 3, 3, dtype=torch.float32)
    close(compiled(net)(x), net(x), 1e-6)


def test_modes_hold_in_a_graph() -> None:
    net, x = lp.Recurrent(shaken(lp.ZoneoutLSTM(3, 4)), engine="stepwise"), normal(5, 3, 3)
    graph = compiled(net)
    assert graph(x)[0].requires_grad
    net.eval()
    close(graph(x), net(x))
    with torch.no_grad():
        outputs = graph(x)[0]
        close(outputs, net(x)[0])
    assert not outputs.requires_grad
    with torch.inference_mode():
        close(graph(x), net(x))
    net.train()
    assert not torch.equal(graph(x)[0], graph(x)[0])


def test_autocast_holds_in_a_graph() -> None:
    net, x = lp.Recurrent(lp.RNN(3, 4), engine="stepwise"), normal(5, 3, 3, dtype=torch.float32)
    graph = compiled(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = graph(x), net(x)
    assert torch.equal(got[0], wanted[0])
    assert not torch.equal(got[0], graph(x)[0])


def test_a_cell_that_changes_changes_the_graph() -> None:
    net, x = lp.Recurrent(shaken(Own())), normal(5, 3, 3)
    graph = compiled(net)
    close(graph(x), net(x))
    net.cell.rate = 0.1
    close(graph(x), net(x), what="after an attribute")
    net.cell.squash = torch.sigmoid
    close(graph(x), net(x), what="after a function")
    net.cell.shift = normal(4)
    close(graph(x), net(x), what="after a buffer")
    net.cell.U.weight = nn.Parameter(normal(4, 3, seed=9))
    close(graph(x), net(x), what="after a parameter")
    net.cell.U.weight.requires_grad_(False)
    graph(x)[0]["h"].sum().backward()
    assert net.cell.U.weight.grad is None
    assert net.cell.U.bias.grad is not None


def test_a_net_that_changes_changes_the_graph() -> None:
    net, x = lp.Recurrent(shaken(lp.RNN(3, 4)), engine="stepwise"), normal(5, 3, 3, grad=True)
    graph = compiled(net)
    exact = gradients(graph(x), [x])
    net.gradient = lp.Truncated(2)
    close(gradients(graph(x), [x]), gradients(net(x), [x]), what="after a gradient method")
    assert not torch.allclose(gradients(graph(x), [x])[0], exact[0])
    net.gradient = lp.Truncated(3)
    close(gradients(graph(x), [x]), gradients(net(x), [x]), what="after another window")
    net.batch_first = True
    close(graph(x), net(x), what="after the order of axes")


def test_a_copy_of_a_compiled_net_is_another_net() -> None:
    net, x = lp.Recurrent(shaken(lp.Leaky(3, 4, 2, alpha=0.5))), normal(5, 3, 3)
    graph = compiled(net)
    wanted = graph(x)
    copies = [copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))]
    names = [one._handle for one in (net, *copies)]
    assert len(set(names)) == 4
    assert [network_by_handle(name) for name in names] == [net, *copies]
    copies[0].cell.fixed_alpha = 0.1
    close(compiled(copies[0])(x), copies[0](x))
    close(graph(x), wanted)


def test_nothing_keeps_a_compiled_net_alive() -> None:
    net = lp.Recurrent(lp.RNN(3, 4), engine="stepwise")
    compiled(net)(torch.randn(5, 3, 3))[0].sum().backward()
    gone = weakref.ref(net.cell.U)
    del net
    gc.collect()
    assert gone() is None


def test_a_backward_sweep_runs_though_its_net_is_gone() -> None:
    net, x = lp.Recurrent(lp.RNN(3, 4), engine="stepwise"), normal(5, 3, 3, dtype=torch.float32, grad=True)
    wanted = gradients(net(x), [x])
    got = compiled(net)(x)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    close(gradients(got, [x]), wanted, 1e-6)


def test_importing_leporello_imports_no_compiler() -> None:
    code = "import sys, leporello; print('torch._dynamo' in sys.modules, 'leporello.call.compiled' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
