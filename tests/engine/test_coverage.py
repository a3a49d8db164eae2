"""What kernels cover equals torch; what they do not cover is refused by name, and `auto` goes on without them.

Many steps stand in one cell, each with an output of its own, because building a kernel takes about a second. Where a
cell is refused or wrong, its steps are tried one by one, and those at fault are named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, fx, nn

import leporello as lp
from leporello.kernel.lowering_context import refuse
from tests.close import TOLERANCE, error
from tests.engine.steps import REFUSED, TABLES, Step

STEPS = {name: step for table in TABLES.values() for name, step in table.items()}
TOGETHER = 12  # steps in one cell
GROUPS = [[*table][begin : begin + TOGETHER] for table in TABLES.values() for begin in range(0, len(table), TOGETHER)]

pytestmark = pytest.mark.kernels


class Many(lp.Cell):
    """Steps side by side: each an output of its own, and all of them part of the state that goes round."""

    def __init__(self, steps: dict[str, Step]) -> None:
        super().__init__(h=6)
        self.steps = steps
        numbers = torch.Generator().manual_seed(1)
        drawn = [torch.randn(6, 6, generator=numbers, dtype=torch.float64) / 3 for _ in steps]
        self.each = nn.ParameterList(map(nn.Parameter, drawn))

    def forward(self, x: Tensor, h: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        found = {name: step(x, h, p) for (name, step), p in zip(self.steps.items(), self.each, strict=True)}
        heard = [torch.tanh((v.flatten(1) * torch.linspace(0.1, 0.9, v[0].numel())).mean(1)) for v in found.values()]
        return found, torch.tanh(
            0.7 * h + x + torch.stack(heard, 1).mean(1, keepdim=True) * torch.linspace(0.3, 0.6, 6)
        )


def by_hand(cell: lp.Cell, x: Tensor, h: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The slow twin: a plain loop."""
    outputs = []
    for each in x:
        output, h = cell(each, h)
        outputs.append(output)
    return {name: torch.stack([output[name] for output in outputs]) for name in outputs[0]}, h


def results(cell: lp.Cell, run: Callable[[Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]) -> dict[str, Tensor]:
    """Outputs, final state and gradients of three steps of three rows."""
    numbers = torch.Generator().manual_seed(0)
    x, h = (torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in ((3, 3, 6), (3, 6)))
    sources = {"input": x.requires_grad_(), "state": h.requires_grad_(), **dict(cell.named_parameters())}
    outputs, state = run(x, h)
    heard = [*outputs.values(), state]
    weights = [torch.randn(value.shape, generator=numbers, dtype=torch.float64) for value in heard]
    found = torch.autograd.grad(heard, list(sources.values()), weights, allow_unused=True)
    gradients = {f"gradient of {n}": g for n, g in zip(sources, found, strict=True) if g is not None}
    return {name: value.detach() for name, value in {**outputs, "final state": state, **gradients}.items()}


def faults(names: Iterable[str]) -> list[str]:
    """What is refused, or differs from the plain loop."""
    cell = Many({name: STEPS[name] for name in names})
    try:
        found = results(cell, lp.Recurrent(cell, engine="cpu"))
    except lp.errors.EngineRefusal as refusal:
        return [refusal.what]
    wanted = results(cell, lambda x, h: by_hand(cell, x, h))
    off = {name: error(found[name], wanted[name]) for name in wanted}
    return [f"{name} is off by {size:.0e}" for name, size in off.items() if not size <= TOLERANCE[torch.float64]]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} to {names[-1]}")
def test_what_is_covered_equals_torch(names: list[str]) -> None:
    together = faults(names)
    if together:
        alone = {name: faults([name]) for name in names}
        assert not {name: found for name, found in alone.items() if found}, "each step alone"
        raise AssertionError(f"right alone, wrong together: {together}")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused_by_name_and_auto_goes_on(name: str) -> None:
    net, x = lp.Recurrent(Many({name: REFUSED[name]}), engine="cpu"), torch.zeros(2, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        with pytest.raises(lp.errors.EngineRefusal, match=name) as refusal:
            net(x)
        net.engine = "auto"
        told = net.explain(x)
    assert "engine   stepwise" in told
    assert " ".join(f"not cpu: {refusal.value.what.removesuffix('.')}".split()) in " ".join(told.split())


def middle_of(h: Tensor) -> Tensor:
    return h.median(-1, keepdim=True).values


def direct(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    middle = h.median(-1, keepdim=True).values
    return middle, torch.tanh(h + middle + x)


def by_a_helper(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    middle = middle_of(h)
    return middle, torch.tanh(h + middle + x)


def one_of_many(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.tanh(h + x)
    b = torch.sigmoid(a) * h
    c = torch.erfinv(b / 2)
    return a, torch.tanh(c + b)


@pytest.mark.parametrize(
    ("step", "operator", "code"),
    [
        (direct, "median (in 'middle', ", "middle = h.median(-1, keepdim=True).values"),
        (by_a_helper, "median (in 'middle', ", "return h.median(-1, keepdim=True).values"),
        (one_of_many, "erfinv (in 'c', ", "c = torch.erfinv(b / 2)"),
    ],
)
def test_a_refusal_names_the_operator_the_value_the_line_and_the_cell(
    step: Callable[..., tuple[Tensor, Tensor]], operator: str, code: str
) -> None:
    lines, first = inspect.getsourcelines(middle_of if step is by_a_helper else step)
    number = first + next(place for place, line in enumerate(lines) if line.strip() == code)
    net, x, h = lp.Recurrent(step, engine="cpu"), torch.zeros(2, 3, 4), torch.zeros(3, 4)
    with pytest.raises(lp.errors.EngineRefusal) as refusal:
        net(x, h)
    why = f"the operator {operator}test_coverage.py, line {number}: {code}) is not covered by kernels"
    assert refusal.value.what == f"{why}."
    assert f"{step.__name__} (test_coverage.py, line {inspect.getsourcelines(step)[1]})" in str(refusal.value)
    assert 'engine="auto"' in refusal.value.details["tries"]
    net.engine = "auto"
    told = " ".join(net.explain(x, h).split())
    assert "engine stepwise" in told
    assert why in told


def test_a_refusal_names_the_users_line_where_the_trace_has_kept_it() -> None:
    graph = fx.Graph()
    node = graph.call_function(torch.ops.aten.median.dim, (graph.placeholder("h"), -1))
    node.meta["line"] = "my_cell.py, line 12: m = h.median(-1)"
    with pytest.raises(lp.errors.EngineRefusal, match=r"median \(my_cell.py, line 12: m = h.median\(-1\)\) is not"):
        refuse(node)
