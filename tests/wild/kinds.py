"""The kinds of wild cells, and the operators of each: what people's own cells hold beyond layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import leporello as lp
from tests.random_operators import Operator
from tests.wild.choices import INDICES, TIES
from tests.wild.complex_numbers import COMPLEX
from tests.wild.contexts import CONTEXTS
from tests.wild.own_gradients import OWN_GRADIENTS
from tests.wild.products import CONVOLUTIONS, PRODUCTS


def _clockwork(v: Tensor) -> Tensor:
    periods = torch.arange(v.shape[-1]) % 3 + 1
    return torch.where(lp.time() % periods == 0, torch.tanh(v), 0.5 * v)


def _kept(v: Tensor) -> Tensor:
    return v * lp.once(lambda: torch.bernoulli(torch.full_like(v, 0.7)))


TIME = {
    "time": Operator("v", lambda v, p, k: v[0] * torch.sin(0.3 * lp.time()), lambda b: b),
    "plus time": Operator("v", lambda v, p, k: v[0] + 0.01 * lp.time().to(v[0].dtype), lambda b: b + 0.2),
    "clockwork": Operator("v", lambda v, p, k: _clockwork(v[0]), lambda b: max(b, 1.0)),
    "every other step": Operator("v", lambda v, p, k: torch.where((lp.time() + k) % 2 == 0, v[0], v[0].flip(1))),
    "position": Operator(
        "v", lambda v, p, k: v[0] + p[0][lp.time().squeeze(1) % 4], lambda b: b + 1, lambda s, k: [(4, s[0][0])]
    ),
}
DRAWN_ONCE = {
    "dropped weights": Operator(
        "v",
        lambda v, p, k: v[0] @ lp.once(F.dropout, p[0], 0.5, True).T,
        lambda b: 2 * b,
        lambda s, k: [(3, s[0][0])],
        draws=True,
    ),
    "kept mask": Operator("a", lambda v, p, k: _kept(v[0]), lambda b: b, draws=True),
    "kept noise": Operator(
        "v", lambda v, p, k: v[0] + 0.1 * lp.once(torch.randn_like, v[0]), lambda b: b + 0.5, draws=True
    ),
}
KINDS: dict[str, dict[str, Operator]] = {
    "convolutions": CONVOLUTIONS,
    "own gradients": OWN_GRADIENTS,
    "ties": TIES,
    "products": PRODUCTS,
    "indices": INDICES,
    "time": TIME,
    "drawn once": DRAWN_ONCE,
    "complex": COMPLEX,
    "contexts": CONTEXTS,
}
