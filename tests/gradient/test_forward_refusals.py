"""What methods that go forward in time cannot do is refused by name, before any work, and the net works afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import ArgumentError, RowsMeet, UntraceableStep
from tests.call.compiling import _compiler_begins_anew, compiled  # noqa: F401
from tests.errors.said import said
from tests.nets.test_dtypes import Rotating
from tests.nets.twins import close, normal, shaken

METHODS = [lp.RTRL(), lp.UORO()]
ENGINES = ("stepwise", "reference")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_inputs_that_require_a_gradient(method: Any, engine: str) -> None:
    net = lp.Recurrent(lp.RNN(3, 4), gradient=method, engine=engine)
    x = torch.zeros(5, 2, 3, requires_grad=True)
    what = f"the argument 'inputs' requires a gradient, and {method} gives it none."
    said(ArgumentError, lambda: net(x), what, "float32 [rows, 3]", "into the cell", "inputs.detach()", "lp.Full()")
    assert net(x.detach())[0].requires_grad
    with torch.no_grad():
        net(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_targets_that_require_a_gradient(method: Any, engine: str) -> None:
    net = lp.Recurrent(lp.Jordan(3, 4, 2), gradient=method, engine=engine)
    x, y = torch.zeros(5, 2, 3), torch.zeros(5, 2, 2, requires_grad=True)
    what = f"the argument 'targets' requires a gradient, and {method} gives it none."
    said(ArgumentError, lambda: net(x, targets=y), what, "targets.detach()")
    assert net(x, targets=y.detach())[0].requires_grad


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_gradients_of_gradients(method: Any, engine: str) -> None:
    net = lp.Recurrent(lp.RNN(3, 4), gradient=method, engine=engine)
    parameters = list(net.parameters())

    def twice() -> None:
        torch.autograd.grad(net(torch.zeros(5, 2, 3))[0].square().sum(), parameters, create_graph=True)

    said(ArgumentError, twice, f"a gradient by {method} has no gradient of its own.", "lp.Full()")
    torch.autograd.grad(net(torch.zeros(5, 2, 3))[0].square().sum(), parameters)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_rows_that_meet(method: Any) -> None:
    class Meeting(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=3)
            self.W = nn.Parameter(torch.eye(3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x + (h - h.mean(0)) @ self.W)
            return h, h

    net = lp.Recurrent(Meeting(), gradient=method)
    said(RowsMeet, lambda: net(torch.randn(5, 2, 3)), "rows of the batch influence each other", "lp.Full()")
    net.gradient = lp.Full()
    net(torch.randn(5, 2, 3))


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_complex_states(method: Any, engine: str) -> None:
    net = lp.Recurrent(Rotating(), gradient=method, engine=engine)
    x = normal(5, 2, 3, dtype=torch.complex128)
    said(UntraceableStep, lambda: net(x), "complex values are not carried forward in time", "lp.Full()")
    said(UntraceableStep, lambda: net.explain(x), "complex values are not carried forward in time", "lp.Full()")


class Foreign(lp.Cell):
    """An operator of the user's own that torch cannot map over rows."""

    def __init__(self) -> None:
        super().__init__(h=3)
        self.W = nn.Parameter(torch.eye(3))

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x + torch.ops.tests_forward.halved(h @ self.W))
        return h, h


@torch.library.custom_op("tests_forward::halved", mutates_args=())
def _halved(value: Tensor) -> Tensor:
    return value * 0.5


_halved.register_fake(torch.empty_like)
_halved.register_autograd(lambda context, gradient: gradient * 0.5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_operators_that_torch_cannot_map_over_rows(method: Any, engine: str) -> None:
    net, x = lp.Recurrent(Foreign(), gradient=method, engine=engine), torch.randn(5, 2, 3)
    what = "this step has an operator whose derivatives cannot be carried forward in time."
    said(UntraceableStep, lambda: net(x), what, "because", "gradient=lp.Full(), which goes back in time")
    net.gradient = lp.Full()
    assert net(x)[0].requires_grad


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_compiled_graph_that_trains(method: Any) -> None:
    net, x = lp.Recurrent(shaken(lp.GRU(3, 4)), gradient=method), normal(5, 2, 3)
    graph = compiled(net)
    with pytest.raises(RuntimeError) as caught:
        graph(x)
    assert f"the gradient method {method} is not compiled." in str(caught.value)
    with torch.no_grad():
        close(graph(x), net(x), 1e-12)


def test_names_that_are_taken() -> None:
    def step(x: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x["grad"]["o"] + h)
        return h, h

    net, h = lp.Recurrent(step, gradient=lp.RTRL()), torch.zeros(2, 3, requires_grad=True)
    x = {"grad": {"o": torch.zeros(5, 2, 3)}}
    said(UntraceableStep, lambda: net(x, h), "an input has a name that is taken: 'grad.o'.", "another name")
