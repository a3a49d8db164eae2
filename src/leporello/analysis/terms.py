"""`terms`: the derivative of a state with respect to the parameters, as a sum over steps.

    a(t) = b(t) + c(t) a(t - 1), a(0) = 0, so that   a(t) = sum over i of c(t) ... c(i + 1) b(i)

with a = dh/dw, b(i) the derivative of step i alone with respect to the parameters, and c(j) = dh(j)/dh(j - 1).
Truncated back-propagation leaves out the terms of early steps; the result shows how much that is. A learned initial
state is no parameter of the step, and has no term here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.arguments import check_range
from leporello.analysis.progress_bar import with_progress_bar
from leporello.analysis.step_by_step import StepByStepRun
from leporello.errors import ArgumentError
from leporello.loop.state import Tree
from leporello.nets.recurrent import Recurrent
from leporello.plotting import (
    INK,
    LINE_STYLES,
    PALE,
    RED,
    Plottable,
    axes_side_by_side,
    label_axes,
    legend,
    log_axis_powers_of_ten,
    named_level,
    positive_or_nan,
    verdict_title,
)
from leporello.text_table import plain_table, round_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ROUNDING = 1e-14  # a missing share this small is rounding


@dataclass(frozen=True, eq=False, repr=False)
class Terms(Plottable):
    """The terms of dh(t)/dw, and the whole, computed independently of them.

    t       the state is the one after so many steps
    terms   by parameter, (t, size of the state, *shape of the parameter): at [i - 1] the term of step i
    whole   by parameter, (size of the state, *shape): dh(t)/dw by autograd through all steps
    sizes   (t,): the size of each term, all parameters together
    error   the largest difference between the sum and the whole, relative to the largest value of the whole
    cut     (t + 1,): |whole - sum of the last m terms| / |whole| at [m]: what a gradient cut after m steps lacks
    """

    t: int
    terms: dict[str, Tensor]
    whole: dict[str, Tensor]
    sizes: Tensor
    error: float
    cut: Tensor

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if not self.cut[0] > 0:
            return f"no parameter has to do with the state after {self.t} steps"
        enough = int((self.cut <= 0.01).nonzero()[0])
        if enough == self.t:
            return f"it takes all {self.t} terms of dh({self.t})/dw to come within 1% of the whole"
        last = f"the last of the {self.t} terms" if enough == 1 else f"the last {enough} of the {self.t} terms"
        return f"{last} of dh({self.t})/dw {'makes' if enough == 1 else 'make'} up all but 1% of the whole"

    def __str__(self) -> str:
        lines = [f"{self.verdict}."]
        counts = round_numbers(self.t)
        missing = [f"{self.cut[m].item():.1%}" for m in counts]
        lines.append(plain_table([["last terms kept", *map(str, counts)], ["missing", *missing]], indent=2))
        lines.append(f"  their sum differs from the whole by {self.error:.0e}")
        lines.append(f"  parameters: {', '.join(self.terms)}")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, ax: Any = None) -> Figure:
        """The size of each term against how many steps back it is, and the share that is missing where the sum is cut.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (sizes_axes, missing_axes) = axes_side_by_side(ax, 2, 9.6, 3.9)
        back = torch.arange(self.t)
        norms = positive_or_nan(self.sizes.flip(0))
        sizes_axes.vlines(back, 0, norms, color=PALE, linewidth=max(0.8, min(4, 120 / self.t)))
        sizes_axes.plot(back, norms, color=INK, linewidth=0, marker="o", markersize=max(1.5, min(4, 150 / self.t)))
        curves = []
        if len(self.terms) > 1:
            sizes_axes.get_lines()[0].set_label("all together")
            for index, (name, term) in enumerate(list(self.terms.items())[:4]):
                curves.append(positive_or_nan(term.flatten(1).norm(dim=-1).flip(0)))
                style = LINE_STYLES[1 + index]
                sizes_axes.plot(back, curves[-1], color=INK, linewidth=0.9, linestyle=style, label=f"of {name}")
        label_axes(sizes_axes, "steps back", "size of the term", f"The terms of dh({self.t})/dw")
        log_axis_powers_of_ten(sizes_axes, [norms, *curves])
        if len(self.terms) > 1:
            legend(sizes_axes)
        cut = positive_or_nan(torch.where(self.cut > ROUNDING, self.cut, 0))
        missing_axes.plot(torch.arange(len(cut)), cut, color=RED, linewidth=1.6)
        title = "What is missing if early terms are cut"
        label_axes(missing_axes, "last terms kept", "missing share of the whole", title)
        log_axis_powers_of_ten(missing_axes, [cut])
        low, high = missing_axes.get_ylim()
        if low < 0.01 < high:
            named_level(missing_axes, 0.01, "1%")
        if ax is None:
            verdict_title(figure, self.verdict)
        return figure


def terms(
    net: Recurrent,
    inputs: Tree,
    t: int,
    state: Tree = None,
    *,
    row: int = 0,
    parameters: Sequence[str] | None = None,
    **arguments: Any,
) -> Terms:
    """The derivative of the state after t steps with respect to the parameters, term by term.

        dh(t)/dw = sum over i = 1 ... t of (dh(t)/dh(t-1) ... dh(i+1)/dh(i)) df(x(i), h(i-1), w)/dw

    t            from 1 to the length
    row          which row of the batch
    parameters   their names in the cell; all that the step reads, by default
    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    In float64. The result takes t * size of the state * size of the parameters of memory: name those of interest.

    >>> result = terms(lp.Recurrent(lp.Elman(2, 4, 1)), torch.randn(6, 1, 2), 6, parameters=["W"])
    >>> result.terms["W"].shape, result.error < 1e-12
    (torch.Size([6, 4, 4, 4]), True)
    """
    run = StepByStepRun.of(net, inputs, state, **arguments)
    run.check_floating_state()
    check_range("t", t, 1, run.length, "the length of the inputs")
    check_range("row", row, 0, run.batch - 1, "the last row")
    run = run.row(row)
    weights = _differentiable_parameters(run, net, parameters)
    by_parameter: dict[str, list[Tensor]] = {name: [] for name in weights}
    product = torch.eye(run.state_layout.size, dtype=torch.float64, device=run.device)
    for time in with_progress_bar(list(reversed(range(t))), "terms"):
        product, step_terms = _one_term(run, time, product, weights)
        for name, term in step_terms.items():
            by_parameter[name].append(term)
    all_terms = {name: torch.stack(column[::-1]).cpu() for name, column in by_parameter.items()}
    whole = {name: derivative.cpu() for name, derivative in _whole_derivative(run, t, weights).items()}
    return _compare(t, all_terms, whole)


def _one_term(
    run: StepByStepRun, time: int, product: Tensor, weights: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """From the product of the later Jacobians: the product with this step's, and this step's term by parameter."""
    state = run.states[time].clone().requires_grad_()
    with torch.enable_grad():
        _, after = run.step(time, state, invariants=weights)
    state_gradients, *step_terms = _weighted_gradients(after, product.unsqueeze(1), [state, *weights.values()])
    return state_gradients.squeeze(1), dict(zip(weights, step_terms, strict=True))


def _whole_derivative(run: StepByStepRun, t: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """dh(t)/dw by autograd through all steps at once, by parameter."""
    state = run.states[0]
    with torch.enable_grad():
        for time in range(t):
            _, state = run.step(time, state, invariants=weights)
    unit = torch.eye(state.shape[-1], dtype=torch.float64, device=run.device)
    gradients = _weighted_gradients(state, unit.unsqueeze(1), list(weights.values()))
    return dict(zip(weights, gradients, strict=True))


def _weighted_gradients(value: Tensor, weightings: Tensor, sources: list[Tensor]) -> list[Tensor]:
    """The gradients of several weightings of a value: (weightings, *shape) for each source."""
    if not value.requires_grad:
        return [source.new_zeros(len(weightings), *source.shape) for source in sources]
    rows = [torch.autograd.grad(value, sources, one, retain_graph=True, materialize_grads=True) for one in weightings]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _differentiable_parameters(run: StepByStepRun, net: Recurrent, names: Sequence[str] | None) -> dict[str, Tensor]:
    """Copies of the parameters of these names, or of all that the step reads, that require gradients."""
    floating = {name for name, parameter in net.cell.named_parameters() if parameter.is_floating_point()}
    pairs = zip(run.loop.inputs, run.values, strict=True)
    read = {port.name: value for port, value in pairs if port.kind == "invariant" and port.name in floating}
    wanted = list(read) if names is None else [names] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in read]
    if unknown or not wanted:
        raise ArgumentError(
            f"the step reads no parameter '{unknown[0]}'." if unknown else "the step reads no parameters.",
            cell=run.loop.name,
            expected=", ".join(read) or "a cell with parameters",
        )
    return {name: read[name].clone().requires_grad_() for name in wanted}


def _compare(t: int, all_terms: dict[str, Tensor], whole: dict[str, Tensor]) -> Terms:
    """The result: the sizes of the terms, and their partial sums beside the whole."""
    norm = math.sqrt(sum(derivative.square().sum().item() for derivative in whole.values()))
    largest = max(derivative.abs().max().item() for derivative in whole.values()) or 1.0
    error = max((value.sum(0) - whole[name]).abs().max().item() for name, value in all_terms.items()) / largest
    squares = sum(value.flatten(1).square().sum(1) for value in all_terms.values())
    assert isinstance(squares, Tensor)
    missing = squares.new_zeros(t + 1)
    for name, value in all_terms.items():
        last_terms = torch.cat([torch.zeros_like(value[:1]), value.flip(0).cumsum(0)])  # [m]: the sum of the last m
        missing += (whole[name] - last_terms).flatten(1).square().sum(1)
    cut = missing.sqrt() / norm if norm else torch.zeros_like(missing)
    return Terms(t, all_terms, whole, squares.sqrt(), error, cut)
