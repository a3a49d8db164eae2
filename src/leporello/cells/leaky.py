"""Leaky integrators, the networks of computational neuroscience: rates or currents, noise, Dale's law."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from leporello.cells.connectivity import balanced, constrained, mask_of, signs_of
from leporello.cells.parameters import check_choice, check_sizes, constant, is_number, orthogonal, uniform
from leporello.errors import ArgumentError
from leporello.loop.cell import Cell, named

NONLINEARITY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
}
FORMS = ("rate", "current")


class Leaky(Cell):
    """form="rate":     h' = (1 - alpha) h + alpha f(W h + U x + b + e);  o = c + V h'.
    form="current":  h' = (1 - alpha) h + alpha (W f(h) + U x + b + e);  r = f(h');  o = c + V r.

    e = sqrt(2 / alpha) noise N(0, 1) per step, row and unit in train(), 0 in eval(): so that a current receives
    sqrt(2 alpha) noise N(0, 1) a step, the discretised Langevin term. alpha is step size over time constant.

    U (hidden, inputs), W (hidden, hidden), V (outputs, hidden), b (hidden), c (outputs). At first W is orthogonal (with
    signs or a mask: balanced, spectral radius near 1), U and V are uniform within 1/sqrt(columns), b and c zero.

    alpha          in (0, 1]: a number for all units, or one per unit
    nonlinearity   f: "tanh", "relu" or "softplus"
    noise          the standard deviation, 0 or more
    signs          Dale's law, +1 or -1 per sending unit, 0 for a free one: |W| signs acts, column by column
    mask           (hidden, hidden) of 0 and 1, multiplied onto W: rows receive, columns send
    learn_alpha    alpha is learned, as sigmoid(alpha_logit), from the given one, which is below 1: one for all units if
                   a number was given
    """

    signs: Tensor | None
    mask: Tensor | None
    fixed_alpha: float | Tensor

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        *,
        alpha: float | Sequence[float] | Tensor,
        form: str = "rate",
        nonlinearity: str = "tanh",
        noise: float = 0.0,
        signs: Sequence[float] | Tensor | None = None,
        mask: Sequence[Sequence[float]] | Tensor | None = None,
        learn_alpha: bool = False,
        learned: bool = False,
    ) -> None:
        check_sizes(inputs=inputs, hidden=hidden, outputs=outputs)
        check_choice("form", form, FORMS)
        check_choice("nonlinearity", nonlinearity, NONLINEARITY)
        _check_noise(noise)
        super().__init__(learned=learned, h=hidden)
        self.inputs, self.hidden, self.outputs = inputs, hidden, outputs
        self.form, self.nonlinearity, self.noise, self.learn_alpha = form, nonlinearity, float(noise), learn_alpha
        self.U = uniform(hidden, inputs, bound=inputs**-0.5)
        self.W = orthogonal(hidden, hidden)
        self.V = uniform(outputs, hidden, bound=hidden**-0.5)
        self.b = constant(hidden, value=0)
        self.c = constant(outputs, value=0)
        self._set_alpha(_alpha_of(alpha, hidden, learn_alpha))
        self._set_connectivity(signs, mask)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        f, alpha, rate = NONLINEARITY[self.nonlinearity], self.alpha, self.form == "rate"
        a = self.b + x @ self.U.T + (h if rate else f(h)) @ self.connections().T
        if self.training and self.noise:
            a = a + (2 / alpha) ** 0.5 * self.noise * torch.randn_like(h)
        h = (1 - alpha) * h + alpha * (f(a) if rate else a)
        o = self.c + (h if rate else named(f(h), "r")) @ self.V.T
        return o, h

    @property
    def alpha(self) -> float | Tensor:
        """The weight of the new value in one step: a number, or a tensor with one per unit."""
        return torch.sigmoid(self.alpha_logit) if self.learn_alpha else self.fixed_alpha

    def connections(self) -> Tensor:
        """W as the step uses it: with signs and mask applied."""
        return constrained(self.W, self.signs, self.mask)

    def _set_alpha(self, alpha: Tensor) -> None:
        if self.learn_alpha:
            self.alpha_logit = nn.Parameter(torch.logit(alpha).to(self.W))
        elif alpha.dim():
            self.register_buffer("fixed_alpha", alpha.to(self.W))
        else:
            self.fixed_alpha = alpha.item()

    def _set_connectivity(
        self, signs: Sequence[float] | Tensor | None, mask: Sequence[Sequence[float]] | Tensor | None
    ) -> None:
        self.register_buffer("signs", None if signs is None else signs_of(signs, self.hidden).to(self.W))
        self.register_buffer("mask", None if mask is None else mask_of(mask, self.hidden).to(self.W))
        if signs is not None or mask is not None:
            self.W = nn.Parameter(balanced(self.W.detach(), self.signs, self.mask))


def _alpha_of(argument: float | Sequence[float] | Tensor, hidden: int, learn: bool) -> Tensor:
    """The argument `alpha` in float64, of shape () or (hidden,); raises outside (0, 1], and at 1 if it is learned."""
    try:
        alpha = torch.as_tensor(argument, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError):
        alpha = torch.full((), math.nan, device="cpu")
    fits = alpha.shape in ((), (hidden,))
    if not fits or not ((alpha > 0) & ((alpha < 1) if learn else (alpha <= 1))).all():
        raise ArgumentError(
            "'alpha' is no leak for these units.",
            came=f"shape {list(argument.shape)}" if isinstance(argument, Tensor) and not fits else repr(argument),
            expected=f"a number, or {hidden} of them, above 0 and {'below 1, to be learned' if learn else 'up to 1'}",
            tries="alpha = step size / time constant, 0.1 for example",
        )
    return alpha


def _check_noise(noise: float) -> None:
    if not is_number(noise) or not 0 <= noise < math.inf:
        raise ArgumentError(
            "'noise' is no standard deviation.",
            came=repr(noise),
            expected="a finite number, 0 or more",
            tries="noise=0.0 for none",
        )
