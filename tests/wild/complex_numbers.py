"""Complex numbers between real ones: rows as in `tests/random_operators.py`.

Two more letters: `z` complex numbers of any shape, `y` complex numbers of the first one's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.random_operators import Operator, Shape


def _complex(takes: str, function: Callable[..., Tensor], bound: Callable[..., float], **options: Any) -> Operator:
    return Operator(takes, lambda v, p, k: function(*v, *p), bound, **options)


def _is_vector(shape: Shape) -> bool:
    return len(shape) == 1


def _in_pairs(v: Tensor) -> Tensor:
    return torch.view_as_complex(v.reshape(v.shape[0], -1, 2))


def _turned(v: Tensor, angles: Tensor) -> Tensor:
    return v * torch.polar(torch.ones_like(angles), angles)


def _decayed(v: Tensor, rates: Tensor, angles: Tensor) -> Tensor:
    """An eigenvalue within the unit circle, as linear recurrent units write it."""
    return v * torch.exp(torch.complex(-torch.exp(rates), angles))


def _multiplied(v: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    return v @ torch.complex(real, imaginary).T


def _mod_relu(v: Tensor, bias: Tensor) -> Tensor:
    size = v.abs() + 0.01
    return torch.relu(size + bias) * v / size


def _doubled(b: float, *_: float) -> float:
    return 2 * b


COMPLEX = {
    # from real numbers
    "complex": _complex("as", torch.complex, lambda a, b: a + b),
    "imaginary": _complex("a", lambda v: 1j * v + 0.5, lambda b: b + 0.5),
    "in pairs": _complex("v", _in_pairs, _doubled, fits=lambda s: s[0] % 2 == 0),
    "on the circle": _complex("a", lambda v: torch.exp(1j * v), lambda b: 1.0),
    "polar": _complex("as", lambda a, b: torch.polar(torch.sigmoid(a), b), lambda a, b: 1.0),
    # of complex numbers
    "times a complex": _complex("z", lambda v: v * (0.6 - 0.3j), lambda b: b),
    "conjugate": _complex("z", torch.conj, lambda b: b),
    "turned": _complex("z", _turned, lambda b: b, weights=lambda s, k: [s[0][-1:]]),
    "decayed": _complex("z", _decayed, lambda b: b, weights=lambda s, k: [s[0][-1:]] * 2),
    "complex gains": _complex(
        "z", lambda v, p: v * torch.view_as_complex(p), lambda b: b, weights=lambda s, k: [(s[0][-1], 2)]
    ),
    "complex matrix": _complex(
        "z", _multiplied, lambda b: 12 * b, weights=lambda s, k: [(3, s[0][-1])] * 2, fits=_is_vector
    ),
    "complex parameter": _complex(
        "z", lambda v, p: v @ p.T, lambda b: 12 * b, weights=lambda s, k: [(3, s[0][-1], "complex")], fits=_is_vector
    ),
    "squashed": _complex("z", lambda v: v / (1 + v.abs()), lambda b: 1.0),
    "mod relu": _complex("z", _mod_relu, lambda b: b + 0.3, weights=lambda s, k: [s[0][-1:]], smooth=False),
    "complex square": _complex("z", lambda v: v * v, lambda b: b * b),
    "complex mean": _complex("z", lambda v: v - v.mean(-1, keepdim=True), _doubled),
    "complex slice": _complex("z", lambda v: v[..., 1:] * 1j, lambda b: b, fits=lambda s: s[-1] > 1),
    "complex roll": _complex("z", lambda v: torch.roll(v, 1, -1), lambda b: b),
    # of two
    "complex sum": _complex("zy", lambda a, b: a - b, lambda a, b: a + b),
    "complex product": _complex("zy", lambda a, b: a * b, lambda a, b: a * b),
    "by the conjugate": _complex("zy", lambda a, b: a * b.conj(), lambda a, b: a * b),
    "complex quotient": _complex("zy", lambda a, b: a / (3 + torch.tanh(b.abs()) * 1j), lambda a, b: a),
    "complex inner product": _complex(
        "zy",
        lambda a, b: torch.einsum("bi,bi->b", a, b.conj()).unsqueeze(1),
        lambda a, b: 12 * a * b,
        fits=lambda a, b: _is_vector(a),
    ),
    "complex stack": _complex("zy", lambda a, b: torch.cat([a, b.conj()], -1), max),
    # to real numbers
    "real part": _complex("z", lambda v: v.real, lambda b: b),
    "imaginary part": _complex("z", lambda v: v.imag, lambda b: b),
    "both parts": _complex("z", lambda v: torch.view_as_real(v).flatten(1), lambda b: b),
    "size": _complex("z", torch.abs, lambda b: b, smooth=False),
    "power": _complex("z", lambda v: (v * v.conj()).real, lambda b: b * b),
    "spectrum": _complex("v", torch.fft.rfft, lambda b: 12 * b, refused=True),
    "from a spectrum": _complex("z", torch.fft.irfft, lambda b: 12 * b, refused=True, fits=lambda s: s == (3,)),
}
