"""An autograd.Function in a step: its own backward is the gradient, on every engine and by every method."""

import math
import threading

import pytest
import torch
from torch import Tensor, nn

import leporello as lp
from leporello.errors import EngineRefusal
from leporello.loop.own_gradients import has_own_gradients, without_own_gradients
from leporello.loop.text import text_of
from leporello.view.folded_loop import loop_from
from tests.errors.said import said
from tests.nets.twins import ENGINES, close


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (v,) = ctx.saved_tensors
        return gradient / (1 + 10 * v.abs()) ** 2


class NewStyle(torch.autograd.Function):
    """With setup_context, a number as argument, and a tensor kept as an attribute."""

    @staticmethod
    def forward(v, alpha):
        return (v > 0).to(v.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.v, ctx.alpha = inputs

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.alpha / (1 + (math.pi * ctx.v) ** 2), None


class ItsResult(torch.autograd.Function):
    """Keeps its result, which its backward reads."""

    @staticmethod
    def forward(ctx, v):
        result = v.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return 0.9 * gradient * result


class Heaviside(torch.autograd.Function):
    """Its forward, of which the backward reads a value in the middle, has no derivative in torch."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        ctx.twice = 2 * torch.heaviside(v, torch.zeros_like(v))
        return torch.heaviside(v, torch.zeros(1).to(v))

    @staticmethod
    def backward(ctx, gradient):
        (v,) = ctx.saved_tensors
        return gradient / (1 + (3 + ctx.twice) * v.abs()) ** 2


class Clipped(torch.autograd.Function):
    """Its backward is not linear in the gradient: torch and we may group the terms of a second derivative otherwise."""

    @staticmethod
    def forward(ctx, v):
        return v.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.4, 0.5)


class SumAndProduct(torch.autograd.Function):
    """Two inputs, two results and one without gradient."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        sign = torch.sign(a)
        ctx.mark_non_differentiable(sign)
        return a + b, a * b, sign

    @staticmethod
    def backward(ctx, of_sum, of_product, of_sign):
        a, b = ctx.saved_tensors
        return 2 * of_sum + of_product * b, of_sum + 3 * of_product * a


class Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradient, v):
        ctx.save_for_backward(gradient, v)
        return gradient * (v > 0)

    @staticmethod
    def backward(ctx, again):
        gradient, v = ctx.saved_tensors
        return again * torch.sigmoid(v), again * gradient * torch.sin(v)


class Outer(torch.autograd.Function):
    """Its backward calls a Function, which has a gradient of its own too."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (v,) = ctx.saved_tensors
        return Inner.apply(gradient, v)


def sum_and_product(v: Tensor) -> Tensor:
    total, product, sign = SumAndProduct.apply(v, 0.5 * v)
    return total * 0.3 + product + 0.1 * sign


FUNCTIONS = {
    "spike": Spike.apply,
    "new style": lambda v: NewStyle.apply(v, 2.0),
    "heaviside": Heaviside.apply,
    "its result": lambda v: ItsResult.apply(v) * 0.2,
    "two results": sum_and_product,
    "nested": Outer.apply,
    "clipped": Clipped.apply,
}


class Spiking(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.U, self.W = nn.Linear(3, 4).double(), nn.Linear(4, 4).double()

    def forward(self, x, state):
        v, z = state
        v = 0.8 * v + self.U(x) + self.W(z)
        z = self.function(v - 0.1)
        return z * v, (v, z)


@pytest.fixture(params=FUNCTIONS)
def cell(request):
    torch.manual_seed(3)
    return Spiking(FUNCTIONS[request.param])


def arguments():
    torch.manual_seed(5)
    return torch.randn(6, 2, 3, dtype=torch.float64), (
        torch.randn(2, 4, dtype=torch.float64),
        torch.zeros(2, 4, dtype=torch.float64),
    )


def plain_loop(cell, inputs, state):
    outputs = []
    for x in inputs:
        output, state = cell(x, state)
        outputs.append(output)
    return torch.stack(outputs)


def gradients(cell, outputs):
    return torch.autograd.grad(outputs.square().sum(), list(cell.parameters()))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_is_that_of_a_plain_loop(cell, engine):
    inputs, state = arguments()
    expected = plain_loop(cell, inputs, state)
    outputs, _ = lp.Recurrent(cell, engine=engine)(inputs, state)
    close(outputs, expected)
    close(gradients(cell, outputs), gradients(cell, expected))


def test_a_strip_has_the_same_gradient(cell):
    inputs, state = arguments()
    expected = plain_loop(cell, inputs, state)
    outputs, _ = lp.fold(cell, inputs[0], state).unfold(6).run(inputs, state)
    close(gradients(cell, outputs), gradients(cell, expected))


@pytest.mark.parametrize("engine", ["stepwise", "reference"])
@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "clipped"])
def test_gradients_of_gradients(function, engine):
    torch.manual_seed(3)
    cell = Spiking(FUNCTIONS[function])
    inputs, state = arguments()

    def second(outputs):
        first = torch.autograd.grad(outputs.square().sum(), list(cell.parameters()), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), list(cell.parameters()))

    outputs, _ = lp.Recurrent(cell, engine=engine)(inputs, state)
    close(second(outputs), second(plain_loop(cell, inputs, state)))


@pytest.mark.parametrize("function", ["spike", "new style", "two results"])
def test_forward_in_time(function):
    torch.manual_seed(3)
    cell = Spiking(FUNCTIONS[function])
    inputs, state = arguments()
    outputs, _ = lp.Recurrent(cell)(inputs, state, gradient=lp.RTRL())
    close(gradients(cell, outputs), gradients(cell, plain_loop(cell, inputs, state)))


@pytest.mark.slow
def test_check_gradients_agrees(cell):
    inputs, state = arguments()
    assert lp.check_gradients(lp.Recurrent(cell), inputs, state).ok


def test_its_text_is_read_back(cell):
    inputs, state = arguments()
    loop = lp.fold(cell, inputs[0], state)
    again = loop_from(loop.text())
    assert has_own_gradients(again)
    assert text_of(again).splitlines()[1:] == loop.text().splitlines()[1:]


def test_pictures_and_stages_show_the_forward_step_alone(cell):
    inputs, state = arguments()
    loop = lp.fold(cell, inputs[0], state)
    assert "own_gradient" not in loop.svg("operators")
    assert not has_own_gradients(loop.split().loop)
    assert len(without_own_gradients(loop).nodes) < len(loop.nodes)


def test_under_no_grad_a_function_passes_no_gradient():
    def step(x, h):
        with torch.no_grad():
            gate = ItsResult.apply(h)
        h = 0.5 * h + x * gate
        return h, h

    inputs, h = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = lp.Recurrent(step)(inputs, h)
    close(torch.autograd.grad(outputs.sum(), h), torch.autograd.grad(plain_loop(step, inputs, h).sum(), h))


def test_other_threads_apply_functions_as_ever_while_one_traces():
    results, stop = [], threading.Event()

    def work():
        while not stop.is_set():
            v = torch.tensor([0.5], requires_grad=True)
            Spike.apply(v).sum().backward()
            results.append(v.grad.item())

    worker = threading.Thread(target=work)
    worker.start()
    inputs, state = arguments()
    for _ in range(3):
        lp.fold(Spiking(Spike.apply), inputs[0], state)
    stop.set()
    worker.join()
    assert results == pytest.approx([1 / 36] * len(results))


def test_after_a_trace_functions_are_applied_as_ever():
    inputs, state = arguments()
    lp.fold(Spiking(Spike.apply), inputs[0], state)
    v = torch.tensor([0.5], requires_grad=True)
    Spike.apply(v).sum().backward()
    assert v.grad.item() == pytest.approx(1 / 36)
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)


GAIN = {"w": torch.full((4,), 0.7, dtype=torch.float64, requires_grad=True)}


def test_beside_a_parameter_that_the_cell_does_not_register():
    torch.manual_seed(3)
    cell = Spiking(lambda v: Spike.apply(v * GAIN["w"]) * GAIN["w"])
    inputs, state = arguments()
    outputs, _ = lp.Recurrent(cell)(inputs, state)
    of = [*cell.parameters(), GAIN["w"]]
    expected = torch.autograd.grad(plain_loop(cell, inputs, state).square().sum(), of)
    close(torch.autograd.grad(outputs.square().sum(), of), expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_detached_needs_no_derivative(engine):
    def step(x, h):
        z = torch.heaviside(h, torch.zeros_like(h)).detach()
        with torch.no_grad():
            z = z + torch.heaviside(x, z)
        return z, 0.9 * h * z + x

    inputs, h = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    assert lp.check_gradients(lp.Recurrent(step, engine=engine), inputs, h).ok


def test_an_operator_that_torch_cannot_differentiate_is_named_with_its_line():
    def step(x, h):
        return h, torch.heaviside(h, x)

    inputs, h = torch.randn(4, 2, 3), torch.randn(2, 3, requires_grad=True)
    line = "return h, torch.heaviside(h, x)"
    said(EngineRefusal, lambda: lp.Recurrent(step, engine="cpu")(inputs, h), "no derivative of heaviside", line)
    net = lp.Recurrent(step)
    assert "engine   reference (chosen by auto; not " in net.explain(inputs, h)
    close(net(inputs, h)[0], plain_loop(step, inputs, h))


class Signs(torch.autograd.Function):
    """Binary weights; what arrives at the backward is the gradient of one step, summed over the rows."""

    @staticmethod
    def forward(ctx, w, clips):
        ctx.save_for_backward(w)
        ctx.clips = clips
        return torch.sign(w)

    @staticmethod
    def backward(ctx, gradient):
        (w,) = ctx.saved_tensors
        kept = torch.where(w.abs() < 1, gradient, torch.zeros_like(gradient))
        return (kept.clamp(-1, 1) if ctx.clips else kept), None


class SignedProduct(torch.autograd.Function):
    """Its backward sums over the rows by itself."""

    @staticmethod
    def forward(ctx, h, w, clips):
        ctx.save_for_backward(h, w)
        ctx.clips = clips
        return h @ torch.sign(w)

    @staticmethod
    def backward(ctx, gradient):
        h, w = ctx.saved_tensors
        summed = h.T @ gradient
        return gradient @ torch.sign(w).T, summed.clamp(-1, 1) if ctx.clips else summed, None


class Normed(torch.autograd.Function):
    """Its backward makes each row's gradient depend on those of the others."""

    @staticmethod
    def forward(ctx, h, clips):
        ctx.clips = clips
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (1 + gradient.norm()) if ctx.clips else gradient / (
            1 + gradient.norm(dim=1, keepdim=True)
        ), None


BINARY = {
    "parameter": lambda h, w, clips: h @ Signs.apply(w, clips),
    "sum over rows": SignedProduct.apply,
    "rows": lambda h, w, clips: Normed.apply(h, clips) @ w,
}


class Binary(nn.Module):
    def __init__(self, product, clips):
        super().__init__()
        self.W, self.product, self.clips = nn.Parameter(torch.randn(4, 4, dtype=torch.float64)), product, clips

    def forward(self, x, h):
        h = torch.tanh(x + self.product(h, self.W, self.clips))
        return h, h


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("product", BINARY.values(), ids=BINARY)
def test_a_gradient_that_joins_rows_is_that_of_each_step(product, clips):
    """What is a sum over rows may be a sum over all steps; what clips that sum may not."""
    torch.manual_seed(2)
    net = lp.Recurrent(Binary(product, clips))
    inputs, h = torch.randn(6, 3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    before = torch.get_rng_state()
    explained = net.explain(inputs, h)
    assert ("engine   reference" in explained) == clips
    assert ("self.product" in explained or "Signs.apply" in explained or "Normed.apply" in explained) == clips
    assert torch.equal(torch.get_rng_state(), before)
    assert lp.check_gradients(net, inputs, h).ok
