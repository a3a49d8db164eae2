"""lp.Checkpointed: the exact gradient, with the states at some steps kept and all else computed again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import leporello as lp
from leporello.call.arguments import checked_call
from leporello.errors import ArgumentError
from leporello.nets.plain_loop import plain_loop
from tests.cells.examples import EXAMPLES
from tests.errors.said import said
from tests.gradient.by_hand import FEW_PAIRS, TOLERANCE, Case, Nets
from tests.nets.twins import ENGINES, STEPWISE, close, gradients, normal, shaken, somewhere, thoroughly

METHODS = (
    lp.Checkpointed(),
    lp.Checkpointed(every=1),
    lp.Checkpointed(every=4),
    lp.Checkpointed(every=100),
    lp.Checkpointed(levels=2),
    lp.Checkpointed(every=6, levels=3),
)


QUICK = ("LSTM with projection", "TimeDelay", "ZoneoutLSTM")


@pytest.mark.parametrize(("name", "engine"), FEW_PAIRS)
def test_it_is_the_exact_gradient_for_every_window(name: str, engine: str) -> None:
    nets = Nets.of(name)
    cases = [Case.of(nets, length, 2, handed=True) for length in (1, 11)]
    cases.append(Case.of(nets, 11, 3, handed=True, lengths=[4, 11, 7], resets=somewhere(11, 3)))
    for case in cases:
        wanted = case.exact()
        for method in METHODS:
            close(case.by_net(method, engine), wanted, TOLERANCE, f"{method}: gradient")


@pytest.mark.parametrize("engine", ["stepwise", *thoroughly("cpu")])
@pytest.mark.parametrize("name", [*QUICK, *thoroughly(*(name for name in EXAMPLES if name not in QUICK))])
def test_every_cell_has_its_exact_gradient(name: str, engine: str) -> None:
    cell = shaken(EXAMPLES[name]())
    net, inputs = lp.Recurrent(cell, gradient=lp.Checkpointed(every=3), engine=engine), normal(7, 2, cell.inputs)
    draws, sources = net.draw(inputs), [parameter for parameter in cell.parameters() if parameter.requires_grad]
    wanted = plain_loop(cell, checked_call(cell, inputs, None), draws)
    close(gradients(net(inputs, draws=draws), sources), gradients(wanted, sources))


@pytest.mark.parametrize("engine", ENGINES)
def test_targets_and_coins_go_with_windows(engine: str) -> None:
    nets = Nets.of("Jordan")
    targets = normal(11, 3, 2, seed=9, grad=True)
    case = Case.of(nets, 11, 3, targets=targets, forcing=somewhere(11, 3, chance=0.6))
    close(case.by_net(lp.Checkpointed(every=3), engine), case.exact(), TOLERANCE)


@pytest.mark.parametrize("engine", STEPWISE)
def test_second_derivatives_are_exact(engine: str) -> None:
    cell = shaken(lp.RNN(3, 4))
    second = []
    for method in (lp.Full(), lp.Checkpointed(every=2)):
        x = normal(6, 2, 3, grad=True)
        outputs, _ = lp.Recurrent(cell, gradient=method, engine=engine)(x)
        (first,) = torch.autograd.grad(outputs.square().sum(), [x], create_graph=True)
        second.append(torch.autograd.grad(first.square().sum(), [x, *cell.parameters()]))
    close(second[1], second[0])


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_outputs_are_the_same_and_their_own(engine: str) -> None:
    cell = shaken(lp.LSTM(3, 4))
    x = normal(10, 2, 3)
    full, kept = (lp.Recurrent(cell, gradient=m, engine=engine)(x) for m in (lp.Full(), lp.Checkpointed(every=3)))
    close(kept, full)
    outputs, state = kept
    before = [leaf.clone() for leaf in state]
    with torch.no_grad():
        outputs.fill_(7)
    close(list(state), before, tolerance=0)


@pytest.mark.parametrize("engine", ["cpu", "stepwise"])
def test_it_keeps_a_small_part_of_what_full_keeps(engine: str) -> None:
    cell, x = lp.LSTM(8, 8), torch.randn(900, 2, 8)
    kept = {}
    for method in (lp.Full(), lp.Checkpointed(), lp.Checkpointed(levels=2)):
        total = 0

        def seen(value: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += value.untyped_storage().nbytes()
            return value

        with torch.autograd.graph.saved_tensors_hooks(seen, lambda value: value):
            outputs, _ = lp.Recurrent(cell, gradient=method, engine=engine)(x)
        kept[method] = total - x.untyped_storage().nbytes()
        outputs.sum().backward()
    assert kept[lp.Checkpointed()] < 0.05 * kept[lp.Full()]
    assert kept[lp.Checkpointed(levels=2)] < kept[lp.Checkpointed()]


def test_windows_are_as_long_as_the_root_of_the_length() -> None:
    assert lp.Checkpointed().lengths(10_000) == (100,)
    assert lp.Checkpointed(levels=2).lengths(27_000) == (900, 30)
    assert lp.Checkpointed(every=7, levels=2).lengths(10_000) == (7, 3)
    assert lp.Checkpointed().lengths(1) == (1,)


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 2.5}, {"levels": 0}, {"levels": True}], ids=repr)
def test_what_is_no_number_is_refused(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    said(ArgumentError, lambda: lp.Checkpointed(**options), f"the argument '{name}'", f"came      {value!r}")
