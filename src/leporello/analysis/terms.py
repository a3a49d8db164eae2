"""`terms`: the derivative of a state with respect to the parameters, as the sum over the steps that it is.

    a(t) = b(t) + c(t) a(t - 1), a(0) = 0, so that   a(t) = sum over i of c(t) ... c(i + 1) b(i)

with a = dh/dw, b(i) what the parameters do to the state in step i alone, and c(j) = dh(j)/dh(j - 1). Truncated
back-propagation leaves out the terms of early steps: what that costs can be read off. A learned initial state is no
parameter of the step, and has no term here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leporello.analysis.progress import watched
from leporello.analysis.refusals import refuse_out_of_range
from leporello.analysis.steps import Steps
from leporello.errors import ArgumentError
from leporello.loop.state import Tree
from leporello.modules.recurrent import Recurrent
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


ROUNDING = 1e-14  # what is missing of a sum that is whole


@dataclass(frozen=True, eq=False, repr=False)
class Terms(Plottable):
    """The terms of dh(t)/dw, and the whole, computed apart from them.

    t       the state is the one after so many steps
    terms   by parameter, (t, numbers of the state, *shape of the parameter): at [i - 1] the term of step i
    whole   by parameter, (numbers of the state, *shape): dh(t)/dw by autograd through all steps
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
        """What they say, in a sentence."""
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
        """The size of each term against how far back its step lies, and what is missing where the sum is cut.

        ax   two axes of matplotlib to draw on; by default a figure of its own
        """
        figure, (sizes, missing) = axes_side_by_side(ax, 2, 9.6, 3.9)
        back = torch.arange(self.t)
        norms = positive_or_nan(self.sizes.flip(0))
        sizes.vlines(back, 0, norms, color=PALE, linewidth=max(0.8, min(4, 120 / self.t)))
        sizes.plot(back, norms, color=INK, linewidth=0, marker="o", markersize=max(1.5, min(4, 150 / self.t)))
        lines = []
        if len(self.terms) > 1:
            sizes.get_lines()[0].set_label("all together")
            for index, (name, own) in enumerate(list(self.terms.items())[:4]):
                lines.append(positive_or_nan(own.flatten(1).norm(dim=-1).flip(0)))
                sizes.plot(
                    back, lines[-1], color=INK, linewidth=0.9, linestyle=LINE_STYLES[1 + index], label=f"of {name}"
                )
        label_axes(sizes, "steps back", "size of the term", f"The terms of dh({self.t})/dw")
        log_axis_powers_of_ten(sizes, [norms, *lines])
        if len(self.terms) > 1:
            legend(sizes)
        cut = positive_or_nan(torch.where(self.cut > ROUNDING, self.cut, 0))
        missing.plot(torch.arange(len(cut)), cut, color=RED, linewidth=1.6)
        label_axes(missing, "last terms kept", "missing share of the whole", "What is missing if early terms are cut")
        log_axis_powers_of_ten(missing, [cut])
        low, high = missing.get_ylim()
        if low < 0.01 < high:
            named_level(missing, 0.01, "1%")
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
    row          of the batch
    parameters   their names in the cell; all that the step reads, by default
    inputs, state, arguments   as in a call of the net; random numbers are drawn once

    In float64. t times the numbers of the state times those of the parameters are kept: name those of interest.

    >>> found = terms(lp.Recurrent(lp.Elman(2, 4, 1)), torch.randn(6, 1, 2), 6, parameters=["W"])
    >>> found.terms["W"].shape, found.error < 1e-12
    (torch.Size([6, 4, 4, 4]), True)
    """
    steps = Steps.of(net, inputs, state, **arguments)
    steps.refuse_stateless()
    refuse_out_of_range("t", t, 1, steps.length, "the length of the inputs")
    refuse_out_of_range("row", row, 0, steps.batch - 1, "the last row")
    steps = steps.row(row)
    invariants = _parameters(steps, net, parameters)
    each: dict[str, list[Tensor]] = {name: [] for name in invariants}
    product = torch.eye(steps.state_layout.size, dtype=torch.float64, device=steps.device)
    for time in watched(list(reversed(range(t))), "terms"):
        product, found = _one_term(steps, time, product, invariants)
        for name, value in found.items():
            each[name].append(value)
    apart = {name: torch.stack(column[::-1]) for name, column in each.items()}
    whole = _whole(steps, t, invariants)
    return _told(t, {name: own.cpu() for name, own in apart.items()}, {name: own.cpu() for name, own in whole.items()})


def _one_term(
    steps: Steps, time: int, product: Tensor, invariants: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """From the product of the later Jacobians: the same with this step's, and this step's term."""
    place = steps.states[time].clone().requires_grad_()
    with torch.enable_grad():
        _, after = steps.step(time, place, invariants=invariants)
    found = _rows_of(after, product.unsqueeze(1), [place, *invariants.values()])
    return found[0].squeeze(1), dict(zip(invariants, found[1:], strict=True))


def _whole(steps: Steps, t: int, invariants: dict[str, Tensor]) -> dict[str, Tensor]:
    """dh(t)/dw by autograd through all steps at once."""
    state = steps.states[0]
    with torch.enable_grad():
        for time in range(t):
            _, state = steps.step(time, state, invariants=invariants)
    unit = torch.eye(state.shape[-1], dtype=torch.float64, device=steps.device)
    found = _rows_of(state, unit.unsqueeze(1), list(invariants.values()))
    return dict(zip(invariants, found, strict=True))


def _rows_of(value: Tensor, weights: Tensor, sources: list[Tensor]) -> list[Tensor]:
    """The gradients of so many weightings of a value: (weightings, *shape) for each source."""
    if not value.requires_grad:
        return [source.new_zeros(len(weights), *source.shape) for source in sources]
    found = [torch.autograd.grad(value, sources, one, retain_graph=True, materialize_grads=True) for one in weights]
    return [torch.stack(column) for column in zip(*found, strict=True)]


def _parameters(steps: Steps, net: Recurrent, names: Sequence[str] | None) -> dict[str, Tensor]:
    """The parameters asked for, as leaves of their own."""
    own = {name for name, parameter in net.cell.named_parameters() if parameter.is_floating_point()}
    pairs = zip(steps.loop.inputs, steps.values, strict=True)
    there = {port.name: value for port, value in pairs if port.kind == "invariant" and port.name in own}
    wanted = list(there) if names is None else [names] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in there]
    if unknown or not wanted:
        raise ArgumentError(
            f"the step reads no parameter '{unknown[0]}'." if unknown else "the step reads no parameters.",
            cell=steps.loop.name,
            expected=", ".join(there) or "a cell with parameters",
        )
    return {name: there[name].clone().requires_grad_() for name in wanted}


def _told(t: int, apart: dict[str, Tensor], whole: dict[str, Tensor]) -> Terms:
    size = math.sqrt(sum(value.square().sum().item() for value in whole.values()))
    largest = max(value.abs().max().item() for value in whole.values()) or 1.0
    error = max((value.sum(0) - whole[name]).abs().max().item() for name, value in apart.items()) / largest
    sizes = sum(value.flatten(1).square().sum(1) for value in apart.values())
    assert isinstance(sizes, Tensor)
    missing = sizes.new_zeros(t + 1)
    for name, value in apart.items():
        kept = torch.cat([torch.zeros_like(value[:1]), value.flip(0).cumsum(0)])
        missing += (whole[name] - kept).flatten(1).square().sum(1)
    cut = missing.sqrt() / size if size else torch.zeros_like(missing)
    return Terms(t, apart, whole, sizes.sqrt(), error, cut)
