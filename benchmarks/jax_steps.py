"""The cells of `OWN` in jax: one step each, (parameters, state, input) -> (next state, output), as `lax.scan` takes it.

Knows the equations and the names of parameters; knows nothing of tasks or threads. Imported only where there is jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array, lax, nn

Parameters = Mapping[str, Array]
Step = Callable[[Parameters, Any, Array], tuple[Any, Array]]


def layer_norm_lstm(p: Parameters, state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    h, c = state
    from_x = _layer_norm(x @ p["U"].T, p["gain_x"], p["b"])
    from_h = _layer_norm(h @ p["W"].T, p["gain_h"])
    i, f, g, o = jnp.split(from_x + from_h, 4, -1)
    c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
    h = nn.sigmoid(o) * jnp.tanh(_layer_norm(c, p["gain_c"], p["shift_c"]))
    return (h, c), h


def peephole_lstm(p: Parameters, state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    h, c = state
    i, f, g, o = jnp.split(p["b"] + x @ p["U"].T + h @ p["W"].T, 4, -1)
    c = nn.sigmoid(f + p["p_f"] * c) * c + nn.sigmoid(i + p["p_i"] * c) * jnp.tanh(g)
    h = nn.sigmoid(o + p["p_o"] * c) * jnp.tanh(c)
    return (h, c), h


def leaky(p: Parameters, h: Array, x: Array) -> tuple[Array, Array]:
    h = 0.9 * h + 0.1 * jnp.tanh(p["b"] + x @ p["U"].T + h @ p["W"].T)
    return h, p["c"] + h @ p["V"].T


def jordan(p: Parameters, o: Array, x: Array) -> tuple[Array, Array]:
    h = jnp.tanh(p["b"] + x @ p["U"].T + o @ p["W"].T)
    o = p["c"] + h @ p["V"].T
    return o, o


def fast_slow(p: Parameters, state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    h, s = state
    a, g = jnp.split(_linear(p, "U", x) + h @ p["W.weight"].T, 2, -1)
    g = nn.sigmoid(g) * nn.sigmoid(_linear(p, "S", s))
    h = (1 - g) * h + g * jnp.tanh(a)
    s = 0.95 * s + 0.05 * h
    return (h, s), h


def adaptive_rate(p: Parameters, state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
    v, a = state
    r = nn.softplus(v - p["strength"] * a)
    v = 0.9 * v + 0.1 * (r @ p["W.weight"].T + _linear(p, "U", x))
    a = 0.98 * a + 0.02 * r
    return (v, a), _linear(p, "V", r)


def agent(p: Parameters, h: Array, x: Array) -> tuple[Array, Array]:
    e = jnp.tanh(_linear(p, "encode", x))
    z, n = jnp.split(_linear(p, "mix", jnp.concatenate([e, h], -1)), 2, -1)
    z = nn.sigmoid(z)
    h = (1 - z) * h + z * jnp.tanh(_layer_norm(n, p["norm.weight"], p["norm.bias"]))
    return h, _linear(p, "head", e + h)


STEPS: dict[str, Step] = {
    "LayerNormLSTM": layer_norm_lstm,
    "PeepholeLSTM": peephole_lstm,
    "Leaky": leaky,
    "Jordan": jordan,
    "FastSlow": fast_slow,
    "AdaptiveRate": adaptive_rate,
    "Agent": agent,
}


def _linear(p: Parameters, name: str, x: Array) -> Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _layer_norm(x: Array, gain: Array, shift: Array | float = 0.0) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + shift
