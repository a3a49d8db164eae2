"""Complex numbers as two planes of real ones: kernels give what torch gives with complex numbers."""

import pytest
import torch
from torch import nn

import leporello as lp
from leporello.rewrite.real_planes import RULES, real_planes
from tests.nets.twins import close, thoroughly

Z = torch.complex128
torch.manual_seed(0)
W, V = 0.3 * torch.randn(4, 4, dtype=Z), torch.randn(4, dtype=Z)

# by name: from a state [rows, 4] and an input [rows, 4], both complex, to the next state
STEPS = {
    "add, sub": lambda h, x: h + 2 * x - (0.5 + 1j) * V,
    "rsub": lambda h, x: 1 - h,
    "mul": lambda h, x: h * x * 0.5j,
    "mul by real": lambda h, x: h * x.real * torch.tensor(2.0, dtype=torch.float64),
    "div": lambda h, x: x / (h + 2) / 3,
    "div by real": lambda h, x: h / (1 + x.real**2),
    "mm": lambda h, x: h @ W + x.real.to(Z) @ W + (h @ W.real.to(Z)),
    "mm by real": lambda h, x: torch.complex(h.real @ W.real, h.imag @ W.real),
    "addmm": lambda h, x: nn.functional.linear(h, W, V),
    "bmm": lambda h, x: torch.bmm(h.view(-1, 2, 2), x.view(-1, 2, 2)).flatten(1),
    "abs": lambda h, x: h / (1 + h.abs()) + x.abs(),
    "abs of zero": lambda h, x: (h * 0).abs() + h,
    "angle": lambda h, x: torch.polar(torch.ones_like(h.real), x.angle()) * h,
    "sgn": lambda h, x: torch.sgn(h) + torch.sgn(h * 0),
    "exp": lambda h, x: torch.exp(0.1 * h) * x,
    "tanh": lambda h, x: torch.tanh(0.3 * h + x),
    "reciprocal": lambda h, x: torch.reciprocal(h + 2),
    "pow": lambda h, x: 0.1 * h**2 + 0.01 * h**3 + 0.1 * torch.square(x),
    "neg, conj": lambda h, x: -h.conj() * x.conj().resolve_conj(),
    "real, imag": lambda h, x: torch.complex(x.imag, h.real),
    "as real and back": lambda h, x: torch.view_as_complex(torch.view_as_real(h).flip(-1).contiguous()) + x,
    "to complex": lambda h, x: h.real.to(Z) + x,
    "views": lambda h, x: torch.cat([h[:, :2], x[:, 2:]], 1).view(-1, 2, 2).transpose(1, 2).reshape(-1, 4).roll(1, 1),
    "parts": lambda h, x: torch.stack(h.chunk(2, 1) + x.split(2, 1), 1).sum(1).repeat(1, 2),
    "sums": lambda h, x: h.mean(1, keepdim=True) + x.sum(1, keepdim=True) + h,
    "full": lambda h, x: h * torch.full((4,), 0.5 + 2j, dtype=Z) + torch.zeros_like(x),
    "where": lambda h, x: torch.where(x.real > 0, h, x * 0.5) + torch.where(x.real > 0, h, 0.25),
    "masked_fill": lambda h, x: h.masked_fill(x.imag > 0, 0.5) + x,
    "detach": lambda h, x: h.detach() * x + h,
    "einsum": lambda h, x: (
        torch.einsum("bi,ij->bj", h, W) + (x[:, :, None] * h[:, None]).sum(1) + x[:, :1].expand(-1, 4)
    ),
    "conj_physical": lambda h, x: torch.conj_physical(h) + x.permute(1, 0).permute(1, 0),
    "index": lambda h, x: h[:, [3, 1, 2, 0]] + x.flip(1),
}


GROUPS = {names[0]: names for names in (list(STEPS)[start : start + 6] for start in range(0, len(STEPS), 6))}


def call(names, engine, **arguments):
    """Outputs, final states and gradients of several steps, each with a state of its own: one kernel for all."""
    torch.manual_seed(1)
    x = torch.randn(5, 3, 4, dtype=Z, requires_grad=True)
    states = tuple(torch.randn(3, 4, dtype=Z, requires_grad=True) for _ in names)

    def step(x, states):
        new = tuple(0.5 * STEPS[name](h, x) for name, h in zip(names, states, strict=True))
        return new, new

    outputs, final = lp.Recurrent(step, engine=engine)(x, states, **arguments)
    loss = sum((output.abs() ** 2).sum() for output in outputs) + sum(state.real.sum() for state in final)
    return {name: pair for name, *pair in zip(names, outputs, final, strict=True)}, torch.autograd.grad(
        loss, (x, *states), allow_unused=True
    )


@pytest.mark.parametrize("group", [*list(GROUPS)[:2], *thoroughly(*list(GROUPS)[2:])])
def test_kernels_give_what_torch_gives(group):
    results, gradients = call(GROUPS[group], "cpu")
    wanted, wanted_gradients = call(GROUPS[group], "reference")
    for name, pair in results.items():
        close(pair, wanted[name], what=name)
    zero = torch.zeros(1)
    close([zero if g is None else g for g in gradients], [zero if g is None else g for g in wanted_gradients])


@pytest.mark.parametrize("arguments", [{"lengths": [5, 2, 1]}, {"resets": torch.eye(5, 3, dtype=torch.bool)}])
def test_with_lengths_and_resets(arguments):
    close(call(["tanh"], "cpu", **arguments), call(["tanh"], "reference", **arguments))


def test_complex_parameters_learn():
    class Diagonal(lp.Cell):
        def __init__(self):
            super().__init__(h=4)
            self.W = nn.Parameter(0.3 * torch.randn(4, 4, dtype=torch.complex64))

        def initial_state(self, batch, *, device=None, dtype=None):
            return torch.zeros(batch, 4, dtype=self.W.dtype)

        def forward(self, x, h):
            h = torch.tanh(h @ self.W + x)
            return h.real, h

    assert lp.check_gradients(lp.Recurrent(Diagonal(), engine="cpu"), torch.randn(6, 2, 4)).ok
    net = lp.Recurrent(Diagonal())
    outputs, state = net(torch.randn(6, 2, 4))
    assert (outputs.dtype, state.dtype) == (torch.float32, torch.complex64)
    assert lp.fold(net, torch.randn(6, 2, 4)).inputs[0].dtype == torch.float32  # and pictures show the user's own step
    _, state = net.step(torch.randn(2, 4), state)
    assert state.dtype == torch.complex64


def test_an_operator_without_a_rule_leaves_the_loop_as_it_is():
    def step(x, h):
        return torch.fft.fft(h), 0.5 * h + x

    x = torch.randn(4, 2, 3, dtype=Z)
    assert real_planes(lp.fold(step, x[0], x[0])) is None
    assert "stepwise" in lp.Recurrent(step).explain(x, x[0])


def test_a_loop_of_real_numbers_is_left_alone():
    assert real_planes(lp.fold(lp.GRU(3, 4), torch.randn(2, 3))) is None


def test_every_rule_is_tried():
    """Every name in the table occurs in a traced step of this page, but for those that are other names of one."""
    seen = set()
    for step in STEPS.values():
        loop = lp.fold(
            lambda x, h, step=step: 2 * (step(h, x),), torch.randn(3, 4, dtype=Z), torch.randn(3, 4, dtype=Z)
        )
        seen |= {node.target._schema.name.split("::")[1] for node in loop.nodes if hasattr(node.target, "_schema")}
    aliases = {
        "conj_physical",
        "getitem",
        "_neg_view",
        "_conj_physical",
        "resolve_conj",
        "resolve_neg",
        "t",
        "reshape",
        "copy",
        "detach",
    }
    rare = {"_unsafe_view", "expand_as", "split_with_sizes", "alias", "index_select", "gather", "unbind", "squeeze"}
    rare |= {"constant_pad_nd", "diagonal", "unfold", "slice_scatter", "select_scatter", "cumsum", "imag", "real"}
    assert set(RULES) - seen <= aliases | rare, set(RULES) - seen - aliases - rare


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.round()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient


def test_an_operator_with_its_own_gradient_keeps_it():
    def step(x, h):
        h = torch.polar(torch.ones_like(x), x) * h + Rounded.apply(3 * x)
        return h.real, 0.5 * h

    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(2, 3, dtype=Z)
    found, wanted = (
        torch.autograd.grad(lp.Recurrent(step, engine=engine)(x, h)[0].square().sum(), x)
        for engine in ("cpu", "reference")
    )
    close(found, wanted)
