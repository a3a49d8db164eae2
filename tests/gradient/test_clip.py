"""clip_state: the norm of a row's state gradient, as it arrives at a step, has a limit; net.clipped says how often."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leporello as lp
from leporello.errors import ArgumentError
from leporello.loop.state import leaves_of, map_leaves
from tests.errors.said import said
from tests.gradient.by_hand import CELLS, FEW_PAIRS, TOLERANCE, Case, Nets, filled
from tests.nets.twins import ENGINES, FASTEST, close, normal, shaken, somewhere, thoroughly

LIMIT = 1.5
METHODS = (
    lp.Full(clip_state=LIMIT),
    lp.Truncated(4, clip_state=LIMIT),
    lp.Truncated(4, every=1, clip_state=LIMIT),
    lp.Checkpointed(every=3, clip_state=LIMIT),
    lp.Checkpointed(every=5, levels=2, clip_state=LIMIT),
)


class Way:
    """One row, by hand: steps forward, then back one at a time, clipping what arrives at each."""

    def __init__(self, case: Case, row: int) -> None:
        self.case, self.row, self.acted = case, row, 0
        lengths = case.arguments.get("lengths")
        self.length = len(case.inputs) if lengths is None else lengths[row]

    def back(self) -> None:
        case, only = self.case, slice(self.row, self.row + 1)
        states = [lp.detach(case.cell.initial_state(1))]
        with torch.no_grad():
            for time in range(self.length):
                states.append(case._step(self.row, time, states[-1])[1])
        arriving = [gradient[only] for gradient in case.at_final]
        for time in reversed(range(self.length)):
            arriving = self.clipped(arriving)
            state = map_leaves(lambda leaf: leaf.detach().requires_grad_(), states[time])
            before = leaves_of(state)
            output, after = case._step(self.row, time, state)
            heard = [(output, case.at_outputs[time, only]), *zip(leaves_of(after), arriving, strict=True)]
            heard = [(value, gradient) for value, gradient in heard if value.requires_grad]
            sources = [source for source in case.sources if source.requires_grad]
            found = torch.autograd.grad(
                [value for value, _ in heard], [*before, *sources], [g for _, g in heard], allow_unused=True
            )
            arriving = [torch.zeros_like(b) if g is None else g for b, g in zip(before, found, strict=False)]
            for source, gradient in zip(sources, found[len(before) :], strict=True):
                if gradient is not None:
                    source.grad = gradient if source.grad is None else source.grad + gradient

    def clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if norm <= LIMIT:
            return gradients
        self.acted += 1
        return [gradient * LIMIT / norm for gradient in gradients]


@pytest.mark.parametrize(("name", "engine"), FEW_PAIRS)
def test_gradients_are_those_clipped_by_hand(name: str, engine: str) -> None:
    nets, method = Nets.of(name), lp.Full(clip_state=LIMIT)
    for arguments in ({}, {"lengths": [4, 9, 7]}, {"resets": somewhere(9, 3)}):
        case = Case.of(nets, 9, 3, **arguments)
        for source in case.sources:
            source.grad = None
        ways = [Way(case, row) for row in range(3)]
        for way in ways:
            way.back()
        wanted = [source.grad for source in case.sources]
        found = case.by_net(method, engine)
        close(filled(found, case.sources), filled(wanted, case.sources), TOLERANCE, "gradient")
        steps, acted = sum(way.length for way in ways), sum(way.acted for way in ways)
        assert acted
        assert nets[method, engine].clipped == pytest.approx(acted / steps)


@pytest.mark.parametrize("name", ["LSTM", *thoroughly(*(name for name in CELLS if name != "LSTM"))])
def test_every_method_clips_as_on_the_reference(name: str) -> None:
    nets = Nets.of(name)
    case = Case.of(nets, 9, 3, lengths=[4, 9, 7], resets=somewhere(9, 3))
    for method in METHODS:
        wanted = filled(case.by_net(method, "reference"), case.sources)
        for engine in ("cpu", "stepwise"):
            found = filled(case.by_net(method, engine), case.sources)
            close(found, wanted, TOLERANCE, f"{method}: gradient")
            assert nets[method, engine].clipped == pytest.approx(nets[method, "reference"].clipped), method


@pytest.mark.parametrize("engine", FASTEST)
def test_a_limit_that_is_never_reached_changes_nothing(engine: str) -> None:
    case = Case.of(Nets.of("LSTM"), 7, 2)
    close(case.by_net(lp.Full(clip_state=1e6), engine), case.by_net(lp.Full(), engine), 1e-13)
    assert case.nets[lp.Full(clip_state=1e6), engine].clipped == 0
    assert case.nets[lp.Full(), engine].clipped is None


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exploding_gradient_stays_finite(engine: str) -> None:
    class Growing(lp.Cell):
        def __init__(self) -> None:
            super().__init__(h=2)
            self.w = torch.nn.Parameter(torch.tensor(1e3))

        def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
            return h, x + torch.sin(self.w * h)

    found = {}
    for method in (lp.Full(), lp.Full(clip_state=1.0)):
        net = lp.Recurrent(Growing(), gradient=method, engine=engine)
        net(normal(200, 3, 2).float())[0].sum().backward()
        found[method] = net.cell.w.grad.isfinite().all().item()  # type: ignore[union-attr]
    assert list(found.values()) == [False, True]


def test_a_method_of_one_call() -> None:
    net = lp.Recurrent(shaken(lp.GRU(3, 4)))
    x = normal(9, 2, 3, grad=True)
    wanted = torch.autograd.grad(lp.Recurrent(net.cell, gradient=lp.Truncated(3))(x)[0].sum(), x)
    for _ in range(2):  # the second call is a warm one
        close(torch.autograd.grad(net(x, gradient=lp.Truncated(3))[0].sum(), x), wanted, tolerance=0)
        exact = torch.autograd.grad(net(x)[0].sum(), x)
        assert not torch.equal(exact[0], wanted[0])
    assert net.gradient == lp.Full()
    said(ArgumentError, lambda: net(x, gradient=3), "the argument 'gradient' is no gradient method.", "came      3")


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), "1", True], ids=repr)
def test_what_is_no_limit_is_refused(limit: Any) -> None:
    said(
        ArgumentError,
        lambda: lp.Full(clip_state=limit),
        "the argument 'clip_state' is no limit for a norm.",
        repr(limit),
    )
