"""A step reads its input, its state and what the cell registers; it writes to nothing, and nothing hangs on it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import leporello as lp
from leporello.errors import ArgumentError, UntraceableStep
from tests.errors import steps
from tests.errors.said import said

X = torch.randn(5, 2, steps.INPUTS)
STATE = torch.zeros(2, steps.HIDDEN)


def reading(scale: Any) -> Callable[..., Any]:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return scale(h) if callable(scale) else scale * h, h

    return step


@pytest.mark.parametrize(
    "cell",
    [
        steps.Attribute(),
        steps.InList(),
        steps.InDict(),
        steps.InModule(),
        steps.LooseParameters(),
        steps.InObject(),
        steps.Global(),
        reading(torch.ones(steps.HIDDEN)),
        reading(nn.Linear(steps.HIDDEN, 1)),
        steps.LooseParameters().forward,
        functools.partial(lambda scale, x, h: (scale * h, h), torch.ones(steps.HIDDEN)),
    ],
    ids=[
        *("attribute", "list", "dict", "module", "parameters", "object", "global", "closure", "module in a closure"),
        *("method", "partial"),
    ],
)
def test_a_tensor_that_the_cell_does_not_register_is_read_where_it_is(cell: Any) -> None:
    assert lp.check_gradients(lp.Recurrent(cell), X, STATE).ok


def test_a_tensor_that_cannot_be_found_is_refused_at_its_line() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return next(ones) * h, h

    ones = iter([torch.ones(steps.HIDDEN)] * 1000)
    said(
        UntraceableStep,
        lambda: lp.Recurrent(step)(X, STATE),
        "the step reads a tensor that cannot be found from the cell, so that a later call could not read it again.",
        "return next(ones) * h, h",
        "came      float32 [4]",
        "self.register_buffer",
    )


def test_rows_numbered_by_numpy_are_refused_with_what_to_write() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return h[numpy.arange(x.shape[0]), h.argmax(1)].unsqueeze(1), h

    said(ArgumentError, lambda: lp.Recurrent(step)(X, STATE), "torch.arange(x.shape[0], device=x.device)")


def test_numbers_and_tensors_made_in_the_step_are_fine() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return h + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.arange(4), 0.5 * h + torch.ones(()) + x.sum(
            -1, keepdim=True
        )

    assert lp.Recurrent(step, engine="stepwise")(X, STATE)[0].shape == (5, 2, 4)


@pytest.mark.parametrize(
    ("step", "name"),
    [(steps.Shrinks, "W.weight"), (steps.Detached, "W.weight")],
)
def test_a_write_to_a_parameter_is_refused_at_its_line(step: type, name: str) -> None:
    cell = step()
    before = {key: value.clone() for key, value in cell.state_dict().items()}
    said(
        UntraceableStep,
        lambda: lp.Recurrent(cell)(X),
        f"the step writes to '{name}', which all steps share.",
        steps.place(step),
        steps.line(step.__name__),
        "make it a state leaf",
    )
    assert all(torch.equal(value, before[key]) for key, value in cell.state_dict().items())


def test_another_tensor_in_the_place_of_a_buffer_is_refused_by_name() -> None:
    cell = steps.Exchanges()
    count = cell.count
    said(
        UntraceableStep,
        lambda: lp.Recurrent(cell)(X),
        "the step writes to 'count', which all steps share.",
        steps.line("Exchanges"),
    )
    assert cell.count is count


@pytest.mark.parametrize(
    ("step", "name"),
    [(steps.Remembers, "last"), (steps.Accumulates, "mem"), (steps.Counts, "calls"), (steps.Appends, "seen")],
)
def test_an_attribute_set_in_a_step_is_refused_by_name_and_put_back(step: type, name: str) -> None:
    cell = step()
    before = {key: list(value) if isinstance(value, list) else value for key, value in vars(cell).items()}
    said(
        UntraceableStep,
        lambda: lp.Recurrent(cell)(X),
        f"the step sets the attribute '{name}', which all steps share.",
        steps.place(step),
        steps.line(step.__name__),
        "lp.record",
    )
    assert vars(cell) == before


def test_a_state_in_an_attribute_that_has_the_batch_is_refused_with_what_makes_a_cell() -> None:
    cell = lp.Recurrent(steps.Accumulates(rows=2))
    said(ArgumentError, lambda: cell(X), steps.line("Accumulates"), "lp.Stateful(module, names)")
    cell.cell.mem = None
    said(ArgumentError, lambda: cell(X), steps.line("Accumulates"), "None before the first step", "lp.Stateful")


def test_a_sparse_tensor_that_a_step_reads_is_refused_by_name() -> None:
    def step(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sparse.mm(places, h.T).T, h

    places = torch.eye(steps.HIDDEN).to_sparse()
    said(UntraceableStep, lambda: lp.Recurrent(step)(X, STATE), "a sparse tensor, 'places'", "value.to_dense()")


def nothing(*_: Any) -> None:
    return None


def something(*given: Any) -> Any:
    return given[1]


HOOKS = {
    "backward hook": lambda module: module.register_full_backward_hook(nothing),
    "backward pre-hook": lambda module: module.register_full_backward_pre_hook(nothing),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("part", ["cell", "submodule"])
def test_a_hook_is_refused_by_kind_and_module_until_it_is_removed(kind: str, part: str) -> None:
    cell = steps.Good()
    net = lp.Recurrent(cell)
    wanted = net(X)[0]
    handle = HOOKS[kind](cell if part == "cell" else cell.U)
    said(
        UntraceableStep,
        lambda: net(X),
        f"a module of the cell has a {kind}, which would run once per trace and not once per step.",
        "module  Good" if part == "cell" else "module  U (Linear)",
    )
    handle.remove()
    assert torch.equal(net(X)[0], wanted)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("part", ["cell", "submodule"])
def test_a_forward_hook_that_returns_a_value_is_refused_by_module_until_it_is_removed(register: str, part: str) -> None:
    cell = steps.Good()
    net = lp.Recurrent(cell)
    wanted = net(X)[0]
    handle = getattr(cell if part == "cell" else cell.U, register)(something)
    module = "module    Good" if part == "cell" else "module    'U' (Linear)"
    said(UntraceableStep, lambda: net(X), "a forward hook on a module of the cell returns a value", module)
    handle.remove()
    assert torch.equal(net(X)[0], wanted)


def test_where_no_step_is_run_for_it_a_forward_hook_is_refused_by_name() -> None:
    cell = steps.Good()
    cell.U.register_forward_hook(nothing)
    said(UntraceableStep, lambda: lp.fold(cell, X[0]), "a forward hook, which would run once per trace", "U (Linear)")


def test_a_counter_of_flops_around_a_first_call_does_not_see_its_trace() -> None:
    with FlopCounterMode(display=False) as counter:
        lp.Recurrent(steps.Good(), engine="stepwise")(X)[0].sum().backward()
    assert type(counter.get_total_flops()) is int


def test_hooks_on_the_network_itself_run() -> None:
    net, seen = lp.Recurrent(steps.Good()), []
    net.register_forward_hook(lambda module, given, results: seen.append(results[0].shape))
    net(X)
    assert seen == [(5, 2, steps.HIDDEN)]


def test_a_network_inside_a_step_is_refused_by_name() -> None:
    class Reader(steps.Good):
        def __init__(self) -> None:
            super().__init__()
            self.words = lp.Recurrent(lp.GRU(3, 3))

    said(
        UntraceableStep,
        lambda: lp.Recurrent(Reader())(X),
        "the cell holds a whole network, 'words'",
        "came      Recurrent",
    )


def test_a_function_with_its_own_backward_is_refused_at_the_line_that_fails() -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(steps.FailingFunction())(X),
        "the step leaves torch for numpy",
        steps.line("Fails"),
    )


def test_a_function_that_writes_to_its_input_is_refused_at_its_line() -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(steps.WritingFunction())(X),
        "the step calls Writes, an autograd.Function that writes to its input",
        steps.line("Writes"),
    )


def test_a_function_with_too_few_gradients_is_refused() -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(steps.MiscountingFunction())(X),
        "the backward of Miscounts, an autograd.Function, returns another number of gradients than its forward has",
        "came      1",
        "expected  2",
        steps.line("MiscountingFunction"),
    )


def test_a_profiler_runs_on_after_a_refusal() -> None:
    calls: list[str] = []

    def note(frame: object, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(note)
    try:
        said(UntraceableStep, lambda: lp.Recurrent(steps.FailingFunction())(X))
        assert sys.getprofile() is note
    finally:
        sys.setprofile(None)
    assert calls


def test_functions_with_their_own_backward_work_again_after_a_refusal() -> None:
    said(UntraceableStep, lambda: lp.Recurrent(steps.FailingFunction())(X))
    h = torch.randn(3, requires_grad=True)
    steps.Writes.apply(h * 1).sum().backward()
    assert torch.equal(h.grad, torch.full((3,), 2.0))


def test_random_numbers_with_the_batch_axis_behind_are_refused_at_their_line() -> None:
    said(
        UntraceableStep,
        lambda: lp.Recurrent(steps.NoiseOnItsSide())(X),
        "the step draws random numbers whose batch axis is not in front.",
        "came      normal numbers [4, batch]",
        "expected  [batch, ...]: each row its own; or no batch axis: all rows share them",
        steps.line("NoiseOnItsSide"),
    )


def test_random_numbers_of_an_unknown_kind_are_refused_at_their_line() -> None:
    said(UntraceableStep, lambda: lp.Recurrent(steps.Permutes())(X), "randperm", steps.line("Permutes"))
